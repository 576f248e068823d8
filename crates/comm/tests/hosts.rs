//! The suite's cases on ranks of several hosts: the same oracle, the same steps, over TCP. The hosts are pretended: ranks are
//! threads that share memory only with those of the same host, and have connections of their own to the others. In network
//! namespaces, with processes, the fault harness runs them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::{Together, options};
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
