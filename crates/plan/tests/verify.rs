//! The built-in plans are proved, faults are reported at the right place, and files are read back as written.

use weftlink_plan::plan::{Aliasing, Input, Node, Op};
use weftlink_plan::{Affine, Algorithm, Cut, Fault, Plan, Refusal, domain::elements::oracle, verify};

/// The algorithms for all-reduce.
const ALL_REDUCE: [Algorithm; 7] = [
    Algorithm::ExchangeLl,
    Algorithm::Exchange,
    Algorithm::OneShot,
    Algorithm::TwoShot,
    Algorithm::Pull,
    Algorithm::Staged,
    Algorithm::Ring,
];

fn refused(plan: Plan) -> Refusal {
    verify(plan).expect_err("this plan is wrong")
}

#[test]
fn built_in_plans_are_proved_for_many_ranks() {
    for ranks in (1..=17).chain([24, 32, 64, 72]) {
        for algorithm in ALL_REDUCE {
            let lanes = if ranks > 17 { vec![1] } else { vec![1, 2, 3] };
            for lanes in lanes {
                verify(algorithm.plan(ranks, lanes))
                    .unwrap_or_else(|refusal| panic!("{ranks} ranks: {refusal}"));
            }
        }
    }
}

#[test]
fn the_oracle_adds_and_all_ranks_hold_the_same_bits() {
    for ranks in [1, 2, 3, 5, 8] {
        for algorithm in ALL_REDUCE {
            let plan = verify(algorithm.plan(ranks, 2)).unwrap();
            for count in [0usize, 1, 15, 16, 17, 1000] {
                let inputs: Vec<Vec<f64>> = (0..ranks)
                    .map(|rank| (0..count).map(|i| 1.0 / (1.0 + i as f64 + f64::from(rank) * 0.37)).collect())
                    .collect();
                let cut = Cut::new(count, plan.chunks.input, 16, 64);
                for &aliasing in &plan.aliasing {
                    let (outputs, _) = oracle(&plan, cut, aliasing, &inputs, |a, b| a + b);
                    for at in 0..count {
                        let exact: f64 = inputs.iter().map(|input| input[at]).sum();
                        assert!((outputs[0][at] - exact).abs() < 1e-12, "{algorithm} {ranks} {count} {at}");
                    }
                    assert!(outputs.iter().all(|output| output == &outputs[0]));
                }
            }
        }
    }
}

#[test]
fn plans_survive_json() {
    for algorithm in ALL_REDUCE {
        let plan = algorithm.plan(5, 2);
        let read = Plan::from_json(&plan.to_json()).unwrap();
        assert_eq!(read, plan);
        assert_eq!(verify(read).unwrap().hash(), verify(plan).unwrap().hash());
    }
    let other = Algorithm::Ring.plan(2, 1).to_json().replace("plan/1", "plan/9");
    let message = Plan::from_json(&other).unwrap_err().to_string();
    assert!(message.contains("plan/9") && message.contains("plan/1"), "{message}");
}

#[test]
fn one_shot_in_place_is_a_race_with_the_readers() {
    let mut plan = Algorithm::OneShot.plan(2, 1);
    plan.aliasing = vec![Aliasing::InPlace];
    let Refusal { spot: Some(spot), fault, .. } = refused(plan) else { panic!("a step is to blame") };
    assert!(matches!(*fault, Fault::Race { aliasing: Aliasing::InPlace, .. }), "{fault}");
    assert_eq!(spot.step, 0);
}

#[test]
fn leaving_early_races_with_the_caller() {
    let mut plan = Algorithm::TwoShot.plan(3, 1);
    plan.programs[1].lanes[0].nodes.pop();
    let message = refused(plan).to_string();
    assert!(message.contains("the caller on rank 1, outside the call"), "{message}");
}

#[test]
fn a_receive_without_a_send_is_malformed() {
    let mut plan = Algorithm::Exchange.plan(2, 1);
    plan.programs[0].lanes[0].nodes.remove(0);
    let message = refused(plan).to_string();
    let says = "rank 1, lane 0, step 1: in a tile, rank 0 sends 0 messages to rank 1 on channel 0, and rank 1 receives 1";
    assert!(message.contains(says), "{message}");
}

#[test]
fn two_ranks_that_both_receive_first_deadlock() {
    let mut plan = Algorithm::Exchange.plan(2, 1);
    plan.programs.iter_mut().for_each(|program| program.lanes[0].nodes.reverse());
    let message = refused(plan).to_string();
    assert!(message.contains("rank 1, lane 0, step 0 waits for a message from rank 0"), "{message}");
}

#[test]
fn a_chunk_counted_twice_is_wrong() {
    let mut plan = Algorithm::Exchange.plan(2, 1);
    let Node::Step(step) = &mut plan.programs[0].lanes[0].nodes[1] else { panic!("a step") };
    let own = step.inputs[0].clone();
    step.inputs.push(own);
    let message = refused(plan).to_string();
    assert!(message.contains("r0[0] + r0[0] + r1[0]"), "{message}");
}

#[test]
fn orders_that_change_bits_are_refused() {
    let reordered = |order: [usize; 3]| {
        let mut plan = Algorithm::Exchange.plan(3, 1);
        let Node::Step(step) = &mut plan.programs[0].lanes[0].nodes[1] else { panic!("a step") };
        step.inputs = order.map(|at| step.inputs[at].clone()).to_vec();
        plan
    };
    assert!(matches!(*refused(reordered([0, 2, 1])).fault, Fault::Order { .. }));
    assert!(verify(reordered([1, 0, 2])).is_ok(), "a + b is b + a");
}

#[test]
fn malformed_plans_are_refused_with_the_reason() {
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = Algorithm::Ring.plan(3, 1);
        change(&mut plan);
        refused(plan).to_string()
    };
    let says = |message: String, what: &str| assert!(message.contains(what), "{message} does not say {what}");
    says(with(&|plan| plan.programs[1].lanes[0].channel = 7), "channel 7");
    says(with(&|plan| plan.channels[0].depth = 0), "depth 0");
    says(with(&|plan| plan.aliasing.clear()), "in_place");
    says(with(&|plan| drop(plan.programs.pop())), "2 programs");
    says(with(&|plan| plan.ranks = 0), "no ranks");
    says(with(&|plan| plan.chunks.input = 2), "the same number of chunks");
    let input = |plan: &mut Plan, input: Input| {
        let Node::Step(step) = &mut plan.programs[0].lanes[0].nodes[0] else { panic!("a step") };
        step.inputs[0] = input;
    };
    says(with(&|plan| input(plan, Input::received(0))), "its own rank");
    says(with(&|plan| input(plan, Input::received(9))), "its peer is rank 9");
    let far = weftlink_plan::plan::Place::input(Affine::from(3));
    says(
        with(&|plan| input(plan, Input::Local(far.clone()))),
        "it uses input chunk 3 of rank 0, which has 3",
    );
    let op = |plan: &mut Plan| {
        let Node::Step(step) = &mut plan.programs[0].lanes[0].nodes[0] else { panic!("a step") };
        step.op = Op::Reduce;
    };
    says(with(&op), "at least 2 inputs");
}
