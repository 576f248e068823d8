//! A correct plan of one collective is refused for another.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::plan::Aliasing;
use weftlink_plan::{Algorithm, Collective, Plan, verify};

/// An algorithm's plan on unknown wiring.
fn flat(algorithm: Algorithm, collective: Collective, ranks: u32, rings: u32) -> Plan {
    algorithm.flat(&collective, ranks, rings).unwrap()
}

#[test]
fn plans_that_break_a_promise_are_refused() {
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
    says(everywhere, "output chunk 0 of rank 1 ends as unwritten memory");
    let mut no_root = flat(Algorithm::Chain, Collective::Reduce { root: 0 }, 3, 1);
    no_root.collective = flat(Algorithm::Chain, Collective::Reduce { root: 8 }, 9, 1).collective;
    says(no_root, "a reduce to rank 8 is impossible on 3 ranks");
    // A broadcast's other ranks have no input to read.
    let mut own = flat(Algorithm::Chain, Collective::Broadcast { root: 0 }, 2, 1);
    own.programs[1] = own.programs[0].clone();
    says(own, "in a broadcast from rank 0, rank 1 passes nothing in");
}
