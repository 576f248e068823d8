//! Faults, drawn by the hundred: from one number follow what goes wrong (a rank is killed or stopped, links are cut, bits
//! change, calls or counts differ, strangers come, versions differ, the network splits), to whom, when, and over what the ranks send. Every rank is a
//! process that checks every value it gets. Whatever is drawn, nobody hangs, no value is wrong, the right rank is named,
//! and nothing is left.
//!
//! `WEFT_DRAWS=1000 WEFT_SEED=1` draws a thousand, from seed 1 on; a draw that failed is repeated by its own seed. No test here
//! depends on how fast anything is, but for waits that must come to an end.

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

/// How many are drawn unless the environment says otherwise.
const DRAWS: u64 = 50;
/// The seed of the first of them.
const SEED: u64 = 1;
/// How many run at the same time: they mostly wait.
const AT_ONCE: u64 = 3;

/// Not a test: what the processes of draws run.
#[test]
fn rank_of_a_draw() {
    if let Some(role) = rank::role() {
        rank::play(role);
    }
}

#[test]
fn draws() {
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse::<u64>().unwrap());
    let (draws, first) = (number("WEFT_DRAWS", DRAWS), number("WEFT_SEED", SEED));
    let at_once = number("WEFT_DRAWS_AT_ONCE", AT_ONCE);
    // Floods of connections take a descriptor each.
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
                            "  again: WEFT_DRAWS=1 WEFT_SEED={seed} cargo nextest run -p weftlink-comm --test draws \
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
