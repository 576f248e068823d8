//! Every case of the suite on ranks that are threads, and a part of them on processes: results equal the oracle's bit by bit, inputs and
//! the memory around outputs are unchanged, and the steps are the plan's.
//!
//! The files in `testdata/cases/` and `weftlink_testkit::cases` define the combinations. Most have more ranks than cores, on
//! purpose. Processes run every fifth case: only the mapping of shared memory differs.
//!
//! Deliberately absent: ranks that are threads of several processes. A job has one kind or the other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use support::{Rank, Together, UNREADABLE, options, oracle};
use weftlink_comm::Communicator;
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_plan::Collective;
use weftlink_testkit::cases::{Case, Memory, cases_of};
use weftlink_testkit::processes::{may_read_memory, this_program};

macro_rules! threads_pass {
    ($($test:ident: $collective:literal;)*) => {
        $(
            #[test]
            fn $test() {
                threads_pass_all_cases($collective);
            }
        )*

        #[test]
        fn all_collectives_are_tested() {
            assert_eq!([$($collective),*], Collective::NAMES);
        }
    };
}

threads_pass! {
    all_reduce: "all-reduce";
    reduce: "reduce";
    broadcast: "broadcast";
    all_gather: "all-gather";
    reduce_scatter: "reduce-scatter";
    all_to_all: "all-to-all";
    gather: "gather";
    scatter: "scatter";
    scan: "scan";
    exclusive_scan: "exclusive-scan";
    send_receive: "send-receive";
    neighbours: "neighbours";
    barrier: "barrier";
}

/// Cases with the same number of ranks that the same communicator can run, each with a number.
fn by_group(collective: &str) -> BTreeMap<(u32, bool), Vec<(usize, Case)>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, case) in cases_of(collective).into_iter().enumerate() {
        let key = (case.ranks, case.memory == Memory::Readable);
        groups.entry(key).or_default().push((number, case));
    }
    groups
}

fn threads_pass_all_cases(collective: &str) {
    for ((ranks, _), cases) in by_group(collective) {
        let memory = cases[0].1.memory;
        let together = Together::new(cases);
        let ends = Communicator::threads(ranks as usize, options(memory)).unwrap();
        std::thread::scope(|scope| {
            ends.into_iter().for_each(|comm| drop(scope.spawn(|| together.run(comm))));
        });
        for (why, count) in together.skipped() {
            // Threads may read their own process's memory, so only a kernel that refuses the system call excuses it. A rank alone has
            // no peer to read.
            let is_excused = ranks == 1 || !may_read_memory();
            assert!(why != UNREADABLE || is_excused, "{collective}, {ranks} ranks: {why}");
            println!("{collective}, {ranks} ranks: {} cases skipped, because {why}", count / ranks as usize);
        }
    }
}

/// How many ranks are processes, and which of the cases they run.
const PROCESSES: [u32; 2] = [2, 5];
const PROCESSES_EVERY: usize = 5;

#[test]
fn processes_pass_a_part_of_the_cases() {
    const RANK: &str = "WEFT_TEST_RANK";
    let meeting = |ranks: u32| {
        let name = format!("weft-test-{}-{ranks}", std::env::var("WEFT_TEST_PARENT").unwrap());
        let token = Token::new("cases").unwrap();
        Rendezvous::new(RendezvousAddress::Abstract(name), token, ranks as usize, Duration::from_secs(60))
    };
    if let Ok(rank) = std::env::var(RANK) {
        let (rank, ranks) = rank.split_once('/').unwrap();
        let (rank, ranks): (usize, u32) = (rank.parse().unwrap(), ranks.parse().unwrap());
        let all = Collective::NAMES.into_iter().flat_map(cases_of).enumerate();
        let cases: Vec<_> = all
            .filter(|(number, case)| case.ranks == ranks && number.is_multiple_of(PROCESSES_EVERY))
            .collect();
        for memory in [Memory::Ordinary, Memory::Readable] {
            let is_readable = |case: &Case| case.memory == Memory::Readable;
            let mine: Vec<_> =
                cases.iter().filter(|(_, case)| is_readable(case) == (memory == Memory::Readable)).collect();
            let bootstrap = if rank == 0 {
                Bootstrap::listen(&meeting(ranks))
            } else {
                Bootstrap::join(&meeting(ranks), rank)
            };
            let comm = Communicator::new(bootstrap.unwrap(), options(memory)).unwrap();
            let all: Vec<Case> = mine.iter().map(|(_, case)| case.clone()).collect();
            let mut end = Rank::new(comm, &all).unwrap();
            let mut held = 0;
            for (number, case) in mine {
                let Ok(outcome) = end.run(*number, case, &AtomicU64::new(0)) else { continue };
                held += 1;
                let (outputs, _) = oracle(case, &outcome);
                assert!(outcome.output == outputs[rank], "{case}: rank {rank} holds other bits");
            }
            let is_refused = memory == Memory::Readable && !end.comm.reads_peers();
            if is_refused {
                println!("skipped: {UNREADABLE}");
            }
            assert!(held > 0 || is_refused, "all cases in {memory:?} memory were skipped");
        }
        return;
    }
    for ranks in PROCESSES {
        let start = |rank: u32| {
            let mut command = this_program();
            command.args(["--exact", "processes_pass_a_part_of_the_cases", "--nocapture"]);
            command
                .env(RANK, format!("{rank}/{ranks}"))
                .env("WEFT_TEST_PARENT", std::process::id().to_string());
            command.spawn().unwrap()
        };
        let children: Vec<_> = (0..ranks).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success(), "{ranks} ranks");
        }
    }
}
