//! The suite's cases on ranks of several hosts: the same oracle, the same steps, over TCP. The hosts are simulated: ranks are
//! threads that share memory only with those of the same host, and have connections to the others. The fault harness runs them in
//! network namespaces, as processes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use support::{Together, on_hosts, options};
use weftlink_comm::{Blame, BlameKind, Options, Reduction};
use weftlink_plan::Collective;
use weftlink_testkit::cases::{Case, Memory, cases_of};

/// The number of ranks, and how many are on each host.
const GROUPS: [(u32, usize); 4] = [(2, 1), (4, 2), (5, 2), (8, 4)];
/// The cases to run: connections do not depend on types, and each case takes long.
const EVERY: usize = 13;

#[test]
fn cases_pass_on_several_hosts() {
    for (ranks, per_host) in GROUPS {
        let options = Options { encrypt: ranks == 4, streams: 1 + ranks % 3, ..options(Memory::Ordinary) };
        let all = Collective::NAMES.into_iter().flat_map(cases_of).enumerate();
        let cases: Vec<(usize, Case)> = all
            .filter(|(number, case)| case.ranks == ranks && number.is_multiple_of(EVERY))
            .filter(|(_, case)| case.memory != Memory::Readable && case.collective != Collective::Barrier)
            .collect();
        let count = cases.len();
        let together = Together::new(cases);
        on_hosts(ranks as usize, per_host, options, |comm| together.run(comm));
        let skipped = together.skipped();
        let total: usize = skipped.values().sum::<usize>() / ranks as usize;
        assert!(total < count * 3 / 4, "{total} of {} cases skipped: {skipped:?}", count);
        println!("{ranks} ranks, {per_host} a host: {} cases, {total} of them skipped", count);
    }
}

#[test]
fn a_barrier_returns_after_all_ranks_have_entered() {
    let come = AtomicU64::new(0);
    on_hosts(5, 2, options(Memory::Ordinary), |mut comm| {
        for round in 1..=20 {
            come.fetch_add(1, Ordering::SeqCst);
            comm.barrier().unwrap();
            assert!(come.load(Ordering::SeqCst) >= 5 * round);
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn a_mismatch_in_the_first_call_is_reported() {
    on_hosts(4, 1, options(Memory::Ordinary), |mut comm| {
        let count = if comm.rank() == 2 { 11 } else { 10 };
        let error = comm.all_reduce(&mut vec![1.0; count], Reduction::Sum).unwrap_err();
        assert!(error.to_string().starts_with("call #1 does not match: rank "), "{error}");
        if comm.rank() != 2 {
            let blamed = error.blamed();
            let [Blame { rank: 2, kind: BlameKind::Differs, host: Some(_), pid, .. }] = &blamed[..] else {
                panic!("{error}: {blamed:?}");
            };
            assert_eq!(*pid, Some(std::process::id()));
        }
    });
}
