//! The suite's cases on ranks of several hosts: the same oracle, the same steps, over TCP. The hosts are pretended: ranks are
//! threads that share memory only with those of the same host, and have connections of their own to the others. In network
//! namespaces, with processes, the fault harness runs them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::{Outcome, Rank, check, options};
use weftlink_comm::bootstrap::{Bootstrap, Meeting, Network, Place, Token};
use weftlink_comm::{Communicator, Options};
use weftlink_plan::Collective;
use weftlink_testkit::cases::{Case, Memory, cases_of};

/// How many ranks there are, and how many of them on each host.
const GROUPS: [(u32, usize); 4] = [(2, 1), (4, 2), (5, 2), (8, 4)];
/// Which part of the cases: connections do not care about types, and each takes its time.
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
        let tickets = AtomicU64::new(0);
        let outcomes: Vec<_> = cases.iter().map(|_| Mutex::new(BTreeMap::<usize, Outcome>::new())).collect();
        let skipped = Mutex::new(BTreeMap::<&str, usize>::new());
        on_hosts(ranks as usize, per_host, options, |comm| {
            let number = comm.rank();
            let all: Vec<Case> = cases.iter().map(|(_, case)| case.clone()).collect();
            let mut rank = Rank::new(comm, &all).unwrap();
            for ((at, case), of_all) in cases.iter().zip(&outcomes) {
                match rank.run(*at, case, &tickets) {
                    Err(why) => *skipped.lock().unwrap().entry(why).or_default() += 1,
                    Ok(outcome) => {
                        let mut of_all = of_all.lock().unwrap();
                        of_all.insert(number, outcome);
                        if of_all.len() == ranks as usize {
                            let of_all = std::mem::take(&mut *of_all);
                            check(case, &of_all.into_values().collect::<Vec<_>>());
                        }
                    }
                }
            }
        });
        let skipped = skipped.into_inner().unwrap();
        let total: usize = skipped.values().sum::<usize>() / ranks as usize;
        assert!(total < cases.len() * 3 / 4, "{total} of {} cases skipped: {skipped:?}", cases.len());
        println!("{ranks} ranks, {per_host} a host: {} cases, {total} of them skipped", cases.len());
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
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

/// Does the work on so many ranks, each a thread, on hosts that are pretended.
fn on_hosts(size: usize, per_host: usize, options: Options, work: impl Fn(Communicator) + Sync) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = Place::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port };
    let meeting = Meeting::new(place, Token::random().unwrap(), size, Duration::from_secs(60));
    std::thread::scope(|scope| {
        for rank in 0..size {
            let network =
                Network { pretended_host: Some(1 + (rank / per_host) as u64), ..Network::default() };
            let meeting = Meeting { network, ..meeting.clone() };
            let work = &work;
            scope.spawn(move || {
                let met =
                    if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
                work(Communicator::new(met.unwrap(), options).unwrap());
            });
        }
    });
}
