//! Plans with known mistakes fail in the expected way.

use weftlink_plan::Algorithm;
use weftlink_plan::plan::{Buffer, Input, Node, Output, Place, Plan, Remote, Step, Wait};
use weftlink_plan::{Affine, Aliasing};

use super::*;
use crate::plans::{credit, push, split};

const SEEDS: u64 = 10;

fn nodes(plan: &mut Plan, rank: usize) -> &mut Vec<Node> {
    &mut plan.programs[rank].lanes[0].nodes
}

fn step(plan: &mut Plan, rank: usize, index: usize) -> &mut Step {
    match &mut nodes(plan, rank)[index] {
        Node::Step(step) => step,
        Node::Loop(_) => panic!("a loop where the test expects a step"),
    }
}

fn wrong(plan: &Plan) -> Wrong {
    match find_failure(plan, SEEDS).map(|failure| failure.outcome) {
        Some(Outcome::Wrong(wrong)) => wrong,
        other => panic!("no wrong result: {other:?}"),
    }
}

#[test]
fn correct_plans_pass() {
    let plans = [
        Algorithm::Ring.plan(1, 1),
        Algorithm::Ring.plan(2, 1),
        Algorithm::Ring.plan(5, 2),
        Algorithm::ExchangeLl.plan(1, 1),
        Algorithm::Exchange.plan(3, 1),
        Algorithm::OneShot.plan(3, 1),
        Algorithm::TwoShot.plan(3, 1),
        Algorithm::Pull.plan(3, 1),
        Algorithm::Staged.plan(3, 2),
        push(2),
        split(2),
        credit(),
    ];
    for plan in plans {
        let failure = find_failure(&plan, 3);
        assert!(failure.is_none(), "{} on {} ranks: {}", plan.name, plan.ranks, failure.unwrap());
    }
}

#[test]
fn two_shot_without_its_last_sync_returns_too_early() {
    let mut plan = Algorithm::TwoShot.plan(2, 1);
    nodes(&mut plan, 1).pop();
    assert!(matches!(wrong(&plan), Wrong::Sum { rank: 1, .. }));
}

#[test]
fn one_shot_in_place_reads_overwritten_input() {
    let mut plan = Algorithm::OneShot.plan(2, 1);
    plan.aliasing.push(Aliasing::InPlace);
    assert!(matches!(wrong(&plan), Wrong::Sum { .. }));
}

#[test]
fn one_shot_without_entry_wait_reads_stale_input() {
    let mut plan = Algorithm::OneShot.plan(2, 1);
    step(&mut plan, 0, 0).waits.clear();
    assert!(matches!(wrong(&plan), Wrong::Sum { .. }));
}

#[test]
fn ring_with_steps_swapped_adds_the_wrong_chunks() {
    let mut plan = Algorithm::Ring.plan(3, 1);
    nodes(&mut plan, 1).swap(1, 2);
    assert!(find_failure(&plan, SEEDS).is_some());
}

#[test]
fn ring_with_one_slot_deadlocks() {
    let mut plan = Algorithm::Ring.plan(2, 1);
    plan.channels[0].depth = 1;
    let Some(Outcome::Deadlock(deadlock)) = find_failure(&plan, SEEDS).map(|failure| failure.outcome) else {
        panic!("it does not deadlock")
    };
    assert_eq!(deadlock.stuck.len(), 2);
}

#[test]
fn exchange_in_another_order_changes_bits() {
    let mut plan = Algorithm::Exchange.plan(3, 1);
    step(&mut plan, 2, 1).inputs.swap(0, 2);
    assert!(matches!(wrong(&plan), Wrong::Bits { .. }));
    // The sum of two numbers does not depend on their order.
    let mut plan = Algorithm::Exchange.plan(2, 1);
    step(&mut plan, 1, 1).inputs.swap(0, 1);
    assert_eq!(find_failure(&plan, SEEDS), None);
}

#[test]
fn scratch_without_credit_is_overwritten() {
    let mut plan = push(2);
    for rank in 0..2 {
        nodes(&mut plan, rank).pop();
    }
    assert!(matches!(wrong(&plan), Wrong::Sum { .. }));

    let mut plan = credit();
    plan.channels[0].depth = 2;
    assert!(matches!(wrong(&plan), Wrong::Sum { .. }));
}

#[test]
fn lanes_without_synchronisation_overwrite_in_place() {
    let mut plan = split(3);
    let lane = &mut plan.programs[0].lanes[1].nodes;
    let Node::Step(combine) = &mut lane[0] else { panic!("a step") };
    combine.waits.clear();
    let failure = find_failure(&plan, SEEDS).unwrap();
    assert_eq!(failure.shape.aliasing, Aliasing::InPlace);
}

#[test]
fn writes_to_inputs_are_detected() {
    let mut plan = Algorithm::TwoShot.plan(2, 1);
    plan.aliasing = vec![Aliasing::OutOfPlace];
    step(&mut plan, 0, 0).outputs.push(Output::Local(Place::input(0)));
    assert!(matches!(wrong(&plan), Wrong::Input { rank: 0, .. } | Wrong::Sum { .. }));
}

#[test]
fn writes_after_the_return_are_detected() {
    let mut plan = Algorithm::TwoShot.plan(2, 1);
    // Rank 0 writes the same values again, after rank 1 may have returned.
    let remote = Remote { rank: 1.into(), buffer: Buffer::Output, chunk: 0.into() };
    let late = Step::copy(Input::Local(Place::output(0))).to(Output::Peer(remote));
    nodes(&mut plan, 0).push(late.into());
    assert!(matches!(wrong(&plan), Wrong::BetweenCalls { rank: 1, .. } | Wrong::Sum { .. }));
}

#[test]
fn leftover_messages_are_detected() {
    let mut plan = Algorithm::ExchangeLl.plan(2, 1);
    nodes(&mut plan, 0).push(Step::copy(Input::Local(Place::output(0))).to(Output::sent(1)).into());
    let shape = Shape { aliasing: Aliasing::OutOfPlace, calls: 1, tiles: 1 };
    let schedule = Schedule { policy: Policy::Uniform, seed: 0 };
    let outcome = Chaos::prepare(&plan, shape).unwrap().run(schedule);
    assert_eq!(outcome, Outcome::Wrong(Wrong::Leftover { from: 0, to: 1 }));
}

#[test]
fn invalid_indices_are_malformed() {
    let malformed = |change: &dyn Fn(&mut Plan)| {
        let mut plan = Algorithm::TwoShot.plan(2, 1);
        change(&mut plan);
        match find_failure(&plan, 1).map(|failure| failure.outcome) {
            Some(Outcome::Malformed(malformed)) => malformed,
            other => panic!("not malformed: {other:?}"),
        }
    };
    let out_of_range =
        |malformed| matches!(malformed, Malformed::OutOfRange { rank: 1, lane: 0, step: 0, .. });
    let negative = Affine { offset: -1, ..0.into() };
    assert!(out_of_range(malformed(&|plan| step(plan, 1, 0).waits.push(Wait::entered(2)))));
    assert!(out_of_range(malformed(&|plan| step(plan, 1, 0).signals.push(1))));
    let outside = Output::Local(Place::output(negative));
    assert!(out_of_range(malformed(&|plan| step(plan, 1, 0).outputs.push(outside.clone()))));
    assert!(out_of_range(malformed(&|plan| step(plan, 1, 0).outputs.push(Output::sent(0)))));
    let itself = Remote { rank: 1.into(), buffer: Buffer::Output, chunk: 0.into() };
    let own = malformed(&|plan| step(plan, 1, 0).outputs.push(Output::Peer(itself.clone())));
    assert_eq!(own, Malformed::OwnPeer { rank: 1, lane: 0, step: 0 });
    let arity = malformed(&|plan| step(plan, 1, 0).inputs.clear());
    assert_eq!(arity, Malformed::Arity { rank: 1, lane: 0, step: 0 });
    assert!(matches!(malformed(&|plan| plan.chunks.input = 3), Malformed::Sizes(_)));
}

#[test]
fn failures_are_reproducible() {
    let mut plan = Algorithm::OneShot.plan(3, 1);
    step(&mut plan, 2, 1).waits.clear();
    let failure = find_failure(&plan, SEEDS).unwrap();
    let chaos = Chaos::prepare(&plan, failure.shape).unwrap();
    assert_eq!(chaos.run(failure.schedule.unwrap()), failure.outcome);
}

#[test]
fn unrolling_agrees_with_the_plans_walk() {
    // The two implementations are independent.
    for ranks in 2..6 {
        let plan = Algorithm::Ring.plan(ranks, 2);
        let shape = Shape { aliasing: Aliasing::OutOfPlace, calls: 1, tiles: 1 };
        let chaos = Chaos::prepare(&plan, shape).unwrap();
        let unrolled = chaos.lanes.iter().map(|lane| lane.steps.len());
        let walked = plan.programs.iter().flat_map(|program| &program.lanes).map(|lane| lane.walk().count());
        assert!(unrolled.eq(walked));
    }
}
