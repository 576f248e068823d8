//! Files made to exhaust time or memory: the limits bound the cost of a proof.

use weftlink_plan::plan::{Aliasing, Channel, Lane, Loop, Node, Program, Protocol, Step, Wait};
use weftlink_plan::{Affine, Algorithm, Fault, Plan, verify};

/// A plan of ranks with these lanes, correct or not.
fn plan(ranks: u32, lanes: Vec<Vec<Node>>) -> Plan {
    let lanes: Vec<_> = lanes.into_iter().map(|nodes| Lane { channel: 0, nodes }).collect();
    let mut plan = Algorithm::Ring.plan(1, 1);
    plan.ranks = ranks;
    plan.aliasing = vec![Aliasing::InPlace];
    plan.programs = vec![Program { lanes }; ranks as usize];
    plan
}

fn is_too_large(plan: Plan) -> bool {
    matches!(verify(plan).map_err(|refusal| *refusal.fault), Err(Fault::TooLarge { .. }))
}

#[test]
fn loops_that_never_run_count_as_work() {
    let repeat = |times, body| Node::Loop(Loop { times, body });
    for dead in [
        vec![repeat(0, vec![]); 10_000],
        vec![repeat(9, vec![]); 10_000],
        vec![repeat(0, vec![Step::sync().into(); 10_000])],
    ] {
        let mut body = vec![Step::sync().into()];
        body.extend(dead);
        assert!(is_too_large(plan(1, vec![vec![repeat(1_000_000, body.clone())]])));
        assert!(verify(plan(1, vec![vec![repeat(10, body)]])).is_ok());
    }
    // An empty loop costs nothing.
    let nothing = repeat(u32::MAX, vec![]);
    assert!(verify(plan(1, vec![vec![nothing]])).is_ok());
}

#[test]
fn ranks_that_enter_and_leave_without_a_step_are_counted() {
    let mut idle = plan(4000, vec![vec![]]);
    idle.channels = vec![Channel { protocol: Protocol::Simple, depth: 256 }];
    assert!(is_too_large(idle));
}

#[test]
fn satisfied_waits_are_not_polled_again() {
    // Two lanes take turns, while all waits of the first but the last are satisfied. Polled from the start each time, those
    // would take an hour.
    const TURNS: u32 = 100_000;
    let turn = |of: u32, times| {
        let count = Affine { offset: 0, base: 1, by: vec![1], modulo: None };
        let wait = Wait::Reached { rank: 0.into(), counter: of, count };
        Node::repeat(times, [Step::sync().after([wait]).signal(1 - of)])
    };
    let mut waits = vec![Wait::entered(0); 1_000_000];
    waits.push(Wait::reached(0, 1, TURNS));
    let mut taking_turns = plan(
        1,
        vec![
            vec![Step::sync().after(waits).into()],
            vec![Step::sync().signal(0).into(), turn(1, TURNS - 1)],
            vec![turn(0, TURNS)],
        ],
    );
    taking_turns.counters = 2;
    assert!(verify(taking_turns).is_ok());
}
