//! Every collective: its plans are proved, and give what the collective promises, at any count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::collective::Promise;
use weftlink_plan::domain::elements::oracle;
use weftlink_plan::plan::Aliasing;
use weftlink_plan::{Algorithm, Collective, Cut, Plan, verify};

/// An algorithm's plan on ranks that know nothing of their wiring.
fn flat(algorithm: Algorithm, collective: Collective, ranks: u32, rings: u32) -> Plan {
    algorithm.flat(&collective, ranks, rings).unwrap()
}

/// A plan of every kind for so many ranks.
fn plans(ranks: u32) -> Vec<Plan> {
    let mut plans = vec![flat(Algorithm::Pairwise, Collective::AllToAll, ranks, 1)];
    for lanes in [1, 2, 3] {
        plans.extend([
            Algorithm::Ring.plan(ranks, lanes),
            flat(Algorithm::Ring, Collective::AllGather, ranks, lanes),
            flat(Algorithm::Ring, Collective::ReduceScatter, ranks, lanes),
        ]);
    }
    for root in [0, ranks / 2, ranks - 1] {
        plans.extend([
            flat(Algorithm::Chain, Collective::Broadcast { root }, ranks, 1),
            flat(Algorithm::Chain, Collective::Reduce { root }, ranks, 1),
        ]);
        plans.extend([
            flat(Algorithm::Linear, Collective::Gather { root }, ranks, 1),
            flat(Algorithm::Linear, Collective::Scatter { root }, ranks, 1),
        ]);
    }
    plans
}

#[test]
fn all_are_proved_for_many_ranks() {
    for ranks in (1..=17).chain([24, 32]) {
        for plan in plans(ranks) {
            let (name, collective) = (plan.name.clone(), plan.collective.clone());
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
            let collective = plan.collective.clone();
            for count in [0usize, 1, 7, 100] {
                let number = |rank: u32, block: u32, at: usize| {
                    1_000_003 * u64::from(rank + 1) + 1009 * u64::from(block) + at as u64
                };
                let input = |rank| {
                    let blocks = collective.gives(rank, ranks);
                    (0..blocks).flat_map(|block| (0..count).map(move |at| number(rank, block, at))).collect()
                };
                let inputs: Vec<Vec<u64>> = (0..ranks).map(input).collect();
                let cut = Cut::new(count, plan.chunks_per_block(), 4, 8);
                for &aliasing in &plan.aliasing {
                    let (outputs, _) = oracle(&plan, cut, aliasing, &inputs, |a, b| a + b);
                    for (rank, output) in (0..).zip(&outputs) {
                        for (position, &value) in output.iter().enumerate() {
                            let (block, at) = ((position / count) as u32, position % count);
                            let promised = match collective.promise(rank, ranks, block).unwrap() {
                                Promise::Copy { rank, block } => number(rank, block, at),
                                Promise::Reduction { block, below } => {
                                    (0..below).map(|from| number(from, block, at)).sum()
                                }
                            };
                            assert_eq!(value, promised, "{} {collective} {aliasing}, rank {rank}", plan.name);
                        }
                        let gets = collective.gets(rank, ranks) > 0 && count > 0;
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
    let mut in_place = flat(Algorithm::Pairwise, Collective::AllToAll, 3, 1);
    in_place.aliasing = vec![Aliasing::InPlace];
    says(in_place, "(in place)");
    // The gather of one root is not that of another, nor is it an all-gather.
    let mut elsewhere = flat(Algorithm::Linear, Collective::Gather { root: 0 }, 3, 1);
    elsewhere.collective = flat(Algorithm::Linear, Collective::Gather { root: 1 }, 3, 1).collective;
    says(elsewhere, "in a gather to rank 1, rank 0 gets nothing back");
    let mut everywhere = flat(Algorithm::Linear, Collective::Gather { root: 0 }, 3, 1);
    everywhere.collective = flat(Algorithm::Ring, Collective::AllGather, 3, 1).collective;
    says(everywhere, "output chunk 0 of rank 1 ends as whatever was there");
    let mut no_root = flat(Algorithm::Chain, Collective::Reduce { root: 0 }, 3, 1);
    no_root.collective = flat(Algorithm::Chain, Collective::Reduce { root: 8 }, 9, 1).collective;
    says(no_root, "no such root");
    // A broadcast's other ranks have no input to read.
    let mut own = flat(Algorithm::Chain, Collective::Broadcast { root: 0 }, 2, 1);
    own.programs[1] = own.programs[0].clone();
    says(own, "in a broadcast from rank 0, rank 1 passes nothing in");
}
