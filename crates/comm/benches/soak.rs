//! Ranks that run for minutes under load, some of them stopped for half a second at random: no rank may be declared dead, memory
//! and descriptors must not grow, and every result is checked.
//!
//! `cargo bench -p weftlink-comm --bench soak -- --minutes 10 [--ranks 6] [--per-host 3] [--seed 1]`; `make soak` runs it.
//! Ranks are processes of this program on simulated hosts, so that both shared memory and TCP are used; beside them one busy
//! thread per core runs. It prints a line every half minute and a verdict.

#![allow(clippy::unwrap_used, reason = "it fails by panicking")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Options, Reduction};
use weftlink_testkit::ports::reserved;
use weftlink_testkit::processes::this_program;

const ROLE: &str = "WEFT_SOAK_ROLE";
/// How long a rank is stopped.
const STOP: Duration = Duration::from_millis(500);
/// Stall warnings and timeouts, neither of which may happen.
const WARN_AFTER: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(60);

fn main() {
    match env::var(ROLE) {
        Ok(role) => rank(&role),
        Err(_) if env::args().any(|word| word == "--minutes") => watch(),
        Err(_) => println!("skipped: pass --minutes N to run it"),
    }
}

fn option(name: &str, default: u64) -> u64 {
    let mut words = env::args().skip_while(|word| word != name);
    words.nth(1).map_or(default, |value| value.parse().expect("a number"))
}

/// One rank: checked calls of all lengths, communicators split and dropped, until rank 0 ends the run. Reports every second.
fn rank(role: &str) {
    let mut words = role.split(' ').map(|word| word.parse::<usize>().unwrap());
    let mut next = || words.next().unwrap();
    let (rank, size, per_host, port, seconds) = (next(), next(), next(), next(), next());
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port as u16..=port as u16 };
    let network = Network { pretended_host: Some(1 + (rank / per_host) as u64), ..Network::default() };
    let meeting =
        Rendezvous { network, ..Rendezvous::new(place, Token::new("soak").unwrap(), size, DEADLINE) };
    let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
    let options = Options { deadline: DEADLINE, warn_after: WARN_AFTER, ..Options::default() };
    let mut comm = Communicator::new(met.unwrap(), options).unwrap();
    let (began, mut reported, mut call) = (Instant::now(), Instant::now(), 0_usize);
    loop {
        call += 1;
        let mut sum = vec![(rank + call) as u64; [1, 100, 5_000, 300_000][call % 4] + call % 7];
        comm.all_reduce(&mut sum[..], Reduction::Sum).unwrap();
        let expected: u64 = (0..size).map(|rank| (rank + call) as u64).sum();
        assert!(sum.iter().all(|value| *value == expected), "rank {rank}: call {call} is wrong");
        if call.is_multiple_of(500) {
            let mut part = comm.split(Some((rank % 2) as u32), 0).unwrap().unwrap();
            part.barrier().unwrap();
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            let (kib, descriptors) = usage();
            println!("{call} {kib} {descriptors}");
        }
        // Rank 0 decides when to stop, so that all end after the same call.
        let mut over = [u8::from(rank == 0 && began.elapsed().as_secs() >= seconds as u64)];
        comm.broadcast(&mut over[..], 0).unwrap();
        if over[0] == 1 {
            return;
        }
    }
}

/// Memory in KiB, and open descriptors.
fn usage() -> (u64, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (kib, fs::read_dir("/proc/self/fd").unwrap().count())
}

/// Starts the ranks, stops one now and then, and checks their reports.
fn watch() {
    let (minutes, size, per_host) = (option("--minutes", 10), option("--ranks", 6), option("--per-host", 3));
    let mut random = option("--seed", 1);
    let port = reserved();
    let start = |rank: u64| -> Child {
        let role = format!("{rank} {size} {per_host} {port} {}", minutes * 60);
        this_program().env(ROLE, role).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let began = Instant::now();
    let mut ranks: Vec<Child> = (0..size).map(start).collect();
    let over = AtomicBool::new(false);
    let pids: Vec<u32> = ranks.iter().map(Child::id).collect();
    let outputs: Vec<_> = ranks.iter_mut().map(|rank| (rank.stdout.take(), rank.stderr.take())).collect();
    let reports = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let burn = || {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        (0..cores).for_each(|_| drop(scope.spawn(burn)));
        let readers: Vec<_> = (0..)
            .zip(outputs)
            .map(|(rank, (stdout, stderr))| {
                let errors = scope.spawn(move || {
                    BufReader::new(stderr.unwrap()).lines().map_while(Result::ok).collect::<Vec<_>>()
                });
                let reports = scope.spawn(move || {
                    let mut reports: Vec<[u64; 3]> = Vec::new();
                    for line in BufReader::new(stdout.unwrap()).lines().map_while(Result::ok) {
                        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
                        reports.push([numbers[0], numbers[1], numbers[2]]);
                        if rank == 0 && reports.len().is_multiple_of(30) {
                            let [calls, memory, descriptors] = [numbers[0], numbers[1], numbers[2]];
                            let seconds = began.elapsed().as_secs();
                            println!("{seconds} s: {calls} calls, {memory} KiB, {descriptors} descriptors");
                        }
                    }
                    reports
                });
                (reports, errors)
            })
            .collect();
        let mut stops = 0;
        // Stopped ranks are resumed before the check whether they have ended.
        while ranks.iter_mut().all(|rank| rank.try_wait().unwrap().is_none()) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let victim = pids[(random >> 33) as usize % pids.len()];
            let pid = Pid::from_raw(victim as i32).unwrap();
            let _ = kill_process(pid, Signal::STOP);
            std::thread::sleep(STOP);
            let _ = kill_process(pid, Signal::CONT);
            stops += 1;
            std::thread::sleep(Duration::from_millis(random >> 40 & 0x3ff));
        }
        let ends: Vec<_> = ranks.iter_mut().map(|rank| rank.wait().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        println!("ranks were stopped {stops} times for {} ms", STOP.as_millis());
        let reports: Vec<_> = readers
            .into_iter()
            .map(|(reports, errors)| (reports.join().unwrap(), errors.join().unwrap()))
            .collect();
        reports.into_iter().zip(ends).collect::<Vec<_>>()
    });
    let mut fine = true;
    for (rank, ((reports, said), end)) in reports.into_iter().enumerate() {
        // A quarter of the time is for warming up.
        let late = &reports[reports.len() / 4..];
        let [calls, last_kib, last_descriptors] = late.last().copied().unwrap_or_default();
        let (first_kib, first_descriptors) = late.first().map_or((0, 0), |first| (first[1], first[2]));
        let most = late.iter().map(|report| report[2]).max().unwrap_or(0);
        let is_flat = last_kib <= first_kib + first_kib / 20 + 1024
            && most <= first_descriptors + 24
            && last_descriptors <= first_descriptors + 24;
        println!(
            "rank {rank}: {calls} calls, {end}, memory {first_kib} to {last_kib} KiB, {first_descriptors} to {last_descriptors} descriptors (at most {most}), {} lines said",
            said.len()
        );
        said.iter().take(5).for_each(|line| println!("  {line}"));
        fine &= end.success() && said.is_empty() && is_flat && calls > 0;
    }
    println!(
        "{}",
        if fine { "fine: no false alarm, nothing grew, every result was right" } else { "NOT fine" }
    );
    assert!(fine);
}
