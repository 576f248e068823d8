//! Plans with known mistakes are seen to go wrong, in the way that was to be expected.

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
    match hunt(plan, SEEDS).map(|sighting| sighting.outcome) {
        Some(Outcome::Wrong(wrong)) => wrong,
        other => panic!("not seen to be wrong: {other:?}"),
    }
}

#[test]
fn good_plans_are_good() {
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
        let sighting = hunt(&plan, 3);
        assert!(sighting.is_none(), "{} on {} ranks: {}", plan.name, plan.ranks, sighting.unwrap());
    }
}

#[test]
fn two_shot_without_its_last_sync_returns_too_early() {
    let mut plan = Algorithm::TwoShot.plan(2, 1);
    nodes(&mut plan, 1).pop();
    assert!(matches!(wrong(&plan), Wrong::Sum { rank: 1, .. }));
}

#[test]
fn one_shot_in_place_reads_what_is_overwritten() {
    let mut plan = Algorithm::OneShot.plan(2, 1);
    plan.aliasing.push(Aliasing::InPlace);
    assert!(matches!(wrong(&plan), Wrong::Sum { .. }));
}

#[test]
fn one_shot_without_its_entry_reads_what_is_not_there_yet() {
    let mut plan = Algorithm::OneShot.plan(2, 1);
    step(&mut plan, 0, 0).waits.clear();
    assert!(matches!(wrong(&plan), Wrong::Sum { .. }));
}

#[test]
fn ring_with_steps_swapped_adds_the_wrong_chunks() {
    let mut plan = Algorithm::Ring.plan(3, 1);
    nodes(&mut plan, 1).swap(1, 2);
    assert!(hunt(&plan, SEEDS).is_some());
}

#[test]
fn ring_without_room_deadlocks() {
    let mut plan = Algorithm::Ring.plan(2, 1);
    plan.channels[0].depth = 1;
    let Some(Outcome::Deadlock(deadlock)) = hunt(&plan, SEEDS).map(|sighting| sighting.outcome) else {
        panic!("it does not deadlock")
    };
    assert_eq!(deadlock.stuck.len(), 2);
}

#[test]
fn exchange_in_another_order_gives_other_bits() {
    let mut plan = Algorithm::Exchange.plan(3, 1);
    step(&mut plan, 2, 1).inputs.swap(0, 2);
    assert!(matches!(wrong(&plan), Wrong::Bits { .. }));
    // Two numbers have only one sum.
    let mut plan = Algorithm::Exchange.plan(2, 1);
    step(&mut plan, 1, 1).inputs.swap(0, 1);
    assert_eq!(hunt(&plan, SEEDS), None);
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
fn lanes_that_do_not_meet_overwrite_in_place() {
    let mut plan = split(3);
    let lane = &mut plan.programs[0].lanes[1].nodes;
    let Node::Step(combine) = &mut lane[0] else { panic!("a step") };
    combine.waits.clear();
    let sighting = hunt(&plan, SEEDS).unwrap();
    assert_eq!(sighting.shape.aliasing, Aliasing::InPlace);
}

#[test]
fn an_input_that_is_written_is_seen() {
    let mut plan = Algorithm::TwoShot.plan(2, 1);
    plan.aliasing = vec![Aliasing::OutOfPlace];
    step(&mut plan, 0, 0).outputs.push(Output::Local(Place::input(0)));
    assert!(matches!(wrong(&plan), Wrong::Input { rank: 0, .. } | Wrong::Sum { .. }));
}

#[test]
fn a_write_after_the_return_is_seen() {
    let mut plan = Algorithm::TwoShot.plan(2, 1);
    // Rank 0 writes once more what is already there, when rank 1 may be gone.
    let remote = Remote { rank: 1.into(), buffer: Buffer::Output, chunk: 0.into() };
    let late = Step::copy(Input::Local(Place::output(0))).to(Output::Peer(remote));
    nodes(&mut plan, 0).push(late.into());
    assert!(matches!(wrong(&plan), Wrong::BetweenCalls { rank: 1, .. } | Wrong::Sum { .. }));
}

#[test]
fn a_message_that_nobody_takes_is_seen() {
    let mut plan = Algorithm::ExchangeLl.plan(2, 1);
    nodes(&mut plan, 0).push(Step::copy(Input::Local(Place::output(0))).to(Output::sent(1)).into());
    let shape = Shape { aliasing: Aliasing::OutOfPlace, calls: 1, tiles: 1 };
    let schedule = Schedule { temperament: Temperament::Uniform, seed: 0 };
    let outcome = Chaos::prepare(&plan, shape).unwrap().run(schedule);
    assert_eq!(outcome, Outcome::Wrong(Wrong::Leftover { from: 0, to: 1 }));
}

#[test]
fn what_does_not_exist_is_malformed() {
    let malformed = |change: &dyn Fn(&mut Plan)| {
        let mut plan = Algorithm::TwoShot.plan(2, 1);
        change(&mut plan);
        match hunt(&plan, 1).map(|sighting| sighting.outcome) {
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
fn a_sighting_can_be_repeated() {
    let mut plan = Algorithm::OneShot.plan(3, 1);
    step(&mut plan, 2, 1).waits.clear();
    let sighting = hunt(&plan, SEEDS).unwrap();
    let chaos = Chaos::prepare(&plan, sighting.shape).unwrap();
    assert_eq!(chaos.run(sighting.schedule.unwrap()), sighting.outcome);
}

#[test]
fn formulas_mean_what_the_plan_says() {
    // The unrolling here is independent of the plan's; the two must agree all the same.
    for ranks in 2..6 {
        let plan = Algorithm::Ring.plan(ranks, 2);
        let shape = Shape { aliasing: Aliasing::OutOfPlace, calls: 1, tiles: 1 };
        let chaos = Chaos::prepare(&plan, shape).unwrap();
        let unrolled = chaos.lanes.iter().map(|lane| lane.steps.len());
        let walked = plan.programs.iter().flat_map(|program| &program.lanes).map(|lane| lane.walk().count());
        assert!(unrolled.eq(walked));
    }
}
