//! Random fault injection. A draw is one fault, derived from a seed: its kind (a rank is killed or stopped, links are cut, bits flip,
//! calls or counts differ, unknown clients connect, versions differ, the network splits), the rank it hits, the time, and the transport.
//! Every rank is a process that checks every value it receives. In every draw no rank hangs, no value is wrong, the errors name the
//! right rank, and no process, socket or file is left.
//!
//! `WEFT_DRAWS=1000 WEFT_SEED=1` runs seeds 1 to 1000. To repeat a failed draw, run its seed alone. Timeouts detect hangs; nothing else
//! here depends on speed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod addresses;
mod calls;
mod counts;
mod document;
mod draw;
mod early;
mod foreign;
mod handler;
mod job;
mod judge;
mod lane;
mod partition;
mod proxy;
mod quotas;
mod rank;
mod raw;
mod resume;
mod roles;
mod scenario;
mod single_copy;
mod skew;
mod sockets;
mod strangers;
mod table;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scenario::{Report, run};

/// Draws, unless `WEFT_DRAWS` is set.
const DRAWS: u64 = 50;
/// The first seed, unless `WEFT_SEED` is set.
const SEED: u64 = 1;
/// Concurrent draws, unless `WEFT_DRAWS_AT_ONCE` is set. Draws mostly wait.
const AT_ONCE: u64 = 3;

/// Not a test: the entry point of rank processes.
#[test]
fn rank_process() {
    if let Some(role) = rank::role() {
        rank::run(role);
    }
}

#[test]
fn draws() {
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse::<u64>().unwrap());
    let (draws, first) = (number("WEFT_DRAWS", DRAWS), number("WEFT_SEED", SEED));
    let at_once = number("WEFT_DRAWS_AT_ONCE", AT_ONCE);
    // Each connection of a flood needs a descriptor.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let (next, reports) = (AtomicU64::new(0), Mutex::new(Vec::<Report>::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(draws) {
            scope.spawn(|| {
                while let number = next.fetch_add(1, Ordering::Relaxed)
                    && number < draws
                {
                    let report = run(first.wrapping_add(number));
                    if std::env::var_os("WEFT_DRAWS_SHOWN").is_some() {
                        println!("{:.1} s, {}: {}", report.wall_seconds, report.draw, report.error);
                    }
                    if let Some(why) = &report.skipped {
                        println!("skipped: {}: {why}", report.draw);
                    }
                    if let Some(failure) = &report.failure {
                        let seed = report.draw.seed;
                        println!("FAILED: {failure}");
                        println!(
                            "  to repeat: WEFT_DRAWS=1 WEFT_SEED={seed} cargo nextest run -p weftlink-comm --test draws \
                             draws --no-capture\n"
                        );
                    }
                    reports.lock().unwrap().push(report);
                }
            });
        }
    });
    let reports = reports.into_inner().unwrap();
    println!("{}", table::table(&reports));
    let failed: Vec<u64> =
        reports.iter().filter(|report| report.failure.is_some()).map(|report| report.draw.seed).collect();
    assert!(failed.is_empty(), "{} of {draws} draws failed; their seeds: {failed:?}", failed.len());
}
