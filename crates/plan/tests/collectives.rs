//! Every collective: its plans are proved, and give what the collective promises, at any count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::algorithms::{
    chain_broadcast, chain_reduce, linear_gather, linear_scatter, pairwise_all_to_all, ring, ring_all_gather,
    ring_reduce_scatter,
};
use weftlink_plan::collective::Promise;
use weftlink_plan::domain::elements::oracle;
use weftlink_plan::plan::Aliasing;
use weftlink_plan::{Cut, Plan, verify};

/// A plan of every kind for so many ranks.
fn plans(ranks: u32) -> Vec<Plan> {
    let mut plans = vec![pairwise_all_to_all(ranks)];
    for lanes in [1, 2, 3] {
        plans.extend([ring(ranks, lanes), ring_all_gather(ranks, lanes), ring_reduce_scatter(ranks, lanes)]);
    }
    for root in [0, ranks / 2, ranks - 1] {
        plans.extend([chain_broadcast(ranks, root), chain_reduce(ranks, root)]);
        plans.extend([linear_gather(ranks, root), linear_scatter(ranks, root)]);
    }
    plans
}

#[test]
fn all_are_proved_for_many_ranks() {
    for ranks in (1..=17).chain([24, 32]) {
        for plan in plans(ranks) {
            let (name, collective) = (plan.name.clone(), plan.collective);
            verify(plan).unwrap_or_else(|refusal| panic!("{name} {collective} of {ranks}: {refusal}"));
        }
    }
}

#[test]
fn all_give_what_they_promise() {
    for ranks in [1, 2, 3, 5, 8] {
        for plan in plans(ranks) {
            assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
            let plan = verify(plan).unwrap();
            let collective = plan.collective;
            let (blocks, _) = collective.blocks(ranks);
            for count in [0usize, 1, 7, 100] {
                let number = |rank: u32, block: u32, at: usize| {
                    1_000_003 * u64::from(rank + 1) + 1009 * u64::from(block) + at as u64
                };
                let input = |rank| {
                    let blocks = if collective.gives(rank) { blocks } else { 0 };
                    (0..blocks).flat_map(|block| (0..count).map(move |at| number(rank, block, at))).collect()
                };
                let inputs: Vec<Vec<u64>> = (0..ranks).map(input).collect();
                let cut = Cut::new(count, plan.chunks_per_block(), 4, 8);
                for &aliasing in &plan.aliasing {
                    let (outputs, _) = oracle(&plan, cut, aliasing, &inputs, |a, b| a + b);
                    for (rank, output) in (0..).zip(&outputs) {
                        for (position, &value) in output.iter().enumerate() {
                            let (block, at) = ((position / count) as u32, position % count);
                            let promised = match collective.promise(rank, block) {
                                Promise::Copy { rank, block } => number(rank, block, at),
                                Promise::Reduction { block } => {
                                    (0..ranks).map(|from| number(from, block, at)).sum()
                                }
                            };
                            assert_eq!(value, promised, "{} {collective} {aliasing}, rank {rank}", plan.name);
                        }
                        let gets = collective.gets(rank) && count > 0;
                        assert_eq!(!output.is_empty(), gets, "{collective}, rank {rank}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_breaks_a_promise_is_refused() {
    let says = |plan: Plan, what: &str| {
        let message = verify(plan).unwrap_err().to_string();
        assert!(message.contains(what), "{message} does not say {what}");
    };
    let mut in_place = pairwise_all_to_all(3);
    in_place.aliasing = vec![Aliasing::InPlace];
    says(in_place, "(in place)");
    // The gather of one root is not that of another, nor is it an all-gather.
    let mut elsewhere = linear_gather(3, 0);
    elsewhere.collective = linear_gather(3, 1).collective;
    says(elsewhere, "in a gather to rank 1, rank 0 gets nothing back");
    let mut everywhere = linear_gather(3, 0);
    everywhere.collective = ring_all_gather(3, 1).collective;
    says(everywhere, "output chunk 0 of rank 1 ends as whatever was there");
    let mut no_root = chain_reduce(3, 0);
    no_root.collective = chain_reduce(9, 8).collective;
    says(no_root, "no such root");
    // A broadcast's other ranks have no input to read.
    let mut own = chain_broadcast(2, 0);
    own.programs[1] = own.programs[0].clone();
    says(own, "in a broadcast from rank 0, rank 1 passes nothing in");
}
