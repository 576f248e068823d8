//! Rank classes: large plans are proved by a few ranks, a wrong symmetry is refused, and faults of all ranks are found.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::plan::{Node, Output, Place, RankDigit, Step};
use weftlink_plan::{Algorithm, Collective, Layout, Plan, verify};

#[test]
fn a_thousand_ranks_in_seconds() {
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        verify(Algorithm::Ring.flat(&collective, 1024, 1).unwrap()).unwrap();
    }
    let islands = Layout::grid(128, 8, 1);
    verify(Algorithm::Ring.recipe(&Collective::AllReduce, &islands).unwrap().plan()).unwrap();
    verify(Algorithm::Pairwise.flat(&Collective::AllToAll, 1024, 1).unwrap()).unwrap();
}

#[test]
fn plans_in_rounds_are_symmetric() {
    for (algorithm, collective) in [
        (Algorithm::HalvingDoubling, Collective::AllReduce),
        (Algorithm::HalvingDoubling, Collective::AllGather),
        (Algorithm::HalvingDoubling, Collective::ReduceScatter),
        (Algorithm::RecursiveDoubling, Collective::AllGather),
        (Algorithm::Bruck, Collective::AllGather),
        (Algorithm::Bruck, Collective::AllToAll),
        (Algorithm::Pat, Collective::AllGather),
        (Algorithm::Pat, Collective::ReduceScatter),
        (Algorithm::Dissemination, Collective::Barrier),
        (Algorithm::Linear, Collective::Neighbours { torus: [8, 8, 4] }),
    ] {
        let plan = algorithm.flat(&collective, 256, 1).unwrap();
        verify(plan).unwrap_or_else(|refusal| panic!("{algorithm} {collective}: {refusal}"));
    }
}

/// A plan that is too large to be proved rank by rank, so that the verifier uses its classes.
fn large() -> Plan {
    Algorithm::Ring.flat(&Collective::AllReduce, 256, 1).unwrap()
}

fn refused(plan: Plan) -> String {
    verify(plan).unwrap_err().to_string()
}

#[test]
fn a_rank_that_is_different_breaks_the_symmetry() {
    let mut plan = large();
    let Node::Step(step) = &mut plan.programs[77].lanes[0].nodes[0] else { panic!("a step") };
    *step = Step::copy(weftlink_plan::plan::Input::Local(Place::input(78))).to(Output::sent(78));
    assert!(refused(plan).contains("rank 77, lane 0, step 0: it differs from the step of rank"));
    let mut plan = large();
    plan.symmetry.as_mut().unwrap().ranks = vec![RankDigit { size: 255, turns: true }];
    assert!(refused(plan).contains("do not multiply to its ranks"));
    let mut plan = large();
    plan.symmetry.as_mut().unwrap().output[0].with = None;
    assert!(refused(plan).contains("does not have the symmetry"));
}

#[test]
fn faults_of_all_ranks_are_found() {
    // Each rank omits its own part in the first iteration of the loop.
    let mut plan = large();
    for program in &mut plan.programs {
        let Node::Loop(repeated) = &mut program.lanes[0].nodes[1] else { panic!("a loop") };
        repeated.times -= 1;
    }
    assert!(verify(plan).is_err());
    // Each rank omits the last copy.
    let mut plan = large();
    for program in &mut plan.programs {
        let last = program.lanes[0].nodes.pop().unwrap();
        let Node::Step(mut last) = last else { panic!("a step") };
        last.outputs = vec![Output::Local(Place::output(0))];
        program.lanes[0].nodes.push(last.into());
    }
    assert!(verify(plan).is_err());
}
