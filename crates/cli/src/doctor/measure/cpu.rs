//! Memory and cores: copies within each NUMA node, and messages between cores through shared memory.

use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use weftlink_comm::{Communicator, Error, Options, Reduction};
use weftlink_doctor::{Finding, Outcome, Report, Severity};
use weftlink_probe::{Core, Folder, cores};
use weftlink_sim::Constants;
use weftlink_sim::host::{self, Hosts};
use weftlink_sim::setup::{Library, Operation};

use super::{Measured, Measurements};
use crate::bench::{Pair, allowed_cores};

/// Of a buffer that is copied, for each core: larger than its share of any cache.
const COPY_BYTES: usize = 64 << 20;
const COPIES: usize = 8;
/// The most ranks: pairs grow with the square.
const RANKS_MAX: usize = 16;
/// A message between two cores, and how many of them.
const MESSAGE_BYTES: usize = 8;
const MESSAGES: u32 = 2000;
const TRIES: usize = 3;
/// Of the all-reduce.
const CALL_BYTES: usize = 16 << 20;
const CALLS: usize = 10;
/// How many times longer than the median of its node a pair must take to be a finding.
const LATENCY_TIMES: f64 = 4.0;

pub(super) fn measure(into: &mut Measurements, report: &mut Report) {
    let allowed = match allowed_cores() {
        Ok(allowed) => allowed,
        Err(error) => return unknown(report, "memory and cores", &error.to_string()),
    };
    let all = cores(&Folder::new("/"), &allowed);
    let mut nodes: Vec<usize> = all.iter().map(|core| core.numa).collect();
    nodes.dedup();
    for node in nodes {
        let here: Vec<&Core> = all.iter().filter(|core| core.numa == node).collect();
        into.paths.push(copy_within(node, &here));
    }
    let ranks: Vec<&Core> = all.iter().take(RANKS_MAX).collect();
    if ranks.len() < 2 {
        return unknown(report, "exchanges between cores", "a second core");
    }
    match exchange(&ranks) {
        Ok((latencies, all_reduce)) => {
            report.add("slow-cores", vec![slowest(&latencies)]);
            into.core_latencies_us = latencies.into_iter().map(|(pair, _, us)| (pair, us)).collect();
            into.paths.push(all_reduce);
        }
        Err(error) => unknown(report, "exchanges between cores", &error.to_string()),
    }
}

fn unknown(report: &mut Report, what: &str, needs: &str) {
    report.add("slow-cores", vec![Outcome::Unknown { what: what.to_owned(), needs: needs.to_owned() }]);
}

/// All cores of a node copy at once. Bytes read and bytes written count.
fn copy_within(node: usize, cores: &[&Core]) -> Measured {
    let copy = |core: &Core| {
        bind(core);
        let source: Vec<u8> = (0..COPY_BYTES).map(|at| (at % 251) as u8).collect();
        let mut target = vec![0_u8; COPY_BYTES];
        let begun = Instant::now();
        for _ in 0..COPIES {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        }
        (begun.elapsed().as_secs_f64(), source == target)
    };
    let done: Vec<(f64, bool)> = thread::scope(|scope| {
        let threads: Vec<_> = cores.iter().map(|core| scope.spawn(|| copy(core))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let bytes = 2.0 * (COPY_BYTES * COPIES) as f64;
    Measured {
        path: format!("memory of NUMA node {node}, {}", crate::counted(cores.len(), "core")),
        gb_per_s: done.iter().map(|(seconds, _)| bytes / seconds.max(1e-9) / 1e9).sum(),
        expected_gb_per_s: None,
        basis: "bytes read and written",
        is_right: done.iter().all(|(_, is_right)| *is_right),
    }
}

/// A pair of cores, whether they share a NUMA node, and microseconds.
type Latency = (String, bool, f64);

/// Messages between all pairs of cores, and an all-reduce of all.
fn exchange(cores: &[&Core]) -> Result<(Vec<Latency>, Measured), Error> {
    let comms = Communicator::threads(cores.len(), Options::default())?;
    let ranks: Vec<Result<_, Error>> = thread::scope(|scope| {
        let rank = |mut comm: Communicator| {
            bind(cores[comm.rank()]);
            let latencies = pairs(&mut comm, cores)?;
            Ok((latencies, all_reduce(&mut comm)?))
        };
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut latencies = Vec::new();
    let (mut seconds, mut is_right) = (0.0_f64, true);
    for rank in ranks {
        let (own, (own_seconds, own_right)) = rank?;
        latencies.extend(own);
        (seconds, is_right) = (seconds.max(own_seconds), is_right && own_right);
    }
    let count = cores.len() as u32;
    let hosts = Hosts::one(Library::Weft, count, count);
    let expected = host::execute(&Constants::shipped(), &hosts, Operation::AllReduce, CALL_BYTES as u64);
    let gb_per_s = |seconds: f64| CALL_BYTES as f64 / seconds / 1e9 * Operation::AllReduce.bus_factor(count);
    let predicted = expected.ok().map(|call| format!("{:.1} GB/s", gb_per_s(call.time.us() / 1e6)));
    let all_reduce = Measured {
        path: match predicted {
            Some(predicted) => format!("all-reduce of {count} cores, 16 MiB (predicted: {predicted})"),
            None => format!("all-reduce of {count} cores, 16 MiB"),
        },
        gb_per_s: gb_per_s(seconds),
        expected_gb_per_s: None,
        basis: "bus bandwidth, through shared memory",
        is_right,
    };
    Ok((latencies, all_reduce))
}

/// The best of some tries for each pair whose first core is this rank's.
fn pairs(comm: &mut Communicator, cores: &[&Core]) -> Result<Vec<Latency>, Error> {
    let mut found = Vec::new();
    for (from, to) in (0..cores.len()).flat_map(|from| (from + 1..cores.len()).map(move |to| (from, to))) {
        let mut pair = Pair::new(comm, from, to, MESSAGE_BYTES);
        let mut seconds = f64::INFINITY;
        for _ in 0..TRIES {
            seconds = seconds.min(pair.latency_s(MESSAGE_BYTES, MESSAGES)?);
        }
        if comm.rank() == from {
            let (one, other) = (cores[from], cores[to]);
            let name = format!("cpu {} and cpu {}", one.cpus[0], other.cpus[0]);
            found.push((name, one.numa == other.numa, seconds * 1e6));
        }
    }
    Ok(found)
}

/// Seconds of a call, and whether the sums are right.
fn all_reduce(comm: &mut Communicator) -> Result<(f64, bool), Error> {
    let (rank, ranks) = (comm.rank() as u32, comm.size() as u32);
    let mut data: Vec<u32> = (0..CALL_BYTES as u32 / 4).map(|at| at.wrapping_mul(7) + rank).collect();
    comm.all_reduce(&mut data, Reduction::Sum)?;
    let others: u32 = (0..ranks).sum();
    let expected = |at: u32| at.wrapping_mul(7).wrapping_mul(ranks).wrapping_add(others);
    let is_right = (0..).zip(&data).all(|(at, sum)| *sum == expected(at));
    comm.barrier()?;
    let begun = Instant::now();
    for _ in 0..CALLS {
        comm.all_reduce(&mut data, Reduction::Maximum)?;
    }
    Ok((begun.elapsed().as_secs_f64() / CALLS as f64, is_right))
}

/// Whether a pair takes far longer than others of its kind.
fn slowest(latencies: &[Latency]) -> Outcome {
    for is_near in [true, false] {
        let mut kind: Vec<&Latency> = latencies.iter().filter(|(_, near, _)| *near == is_near).collect();
        kind.sort_by(|one, other| one.2.total_cmp(&other.2));
        let Some((pair, _, us)) = kind.last() else { continue };
        let median = kind[kind.len() / 2].2;
        if *us > LATENCY_TIMES * median {
            let what = format!(
                "{pair} exchange 8 bytes in {us:.1} us, where the median of such pairs is {median:.1} us"
            );
            let finding = Finding::new("slow-cores", Severity::Warning, what)
                .shown_by("measured", format!("the best of {TRIES} times {MESSAGES} messages"))
                .fixed_by("look for other programs on these cores, and measure again: top -1")
                .fixed_by("leave these cores to the system: weft run --bind core uses the others if there are enough");
            return Outcome::Found(finding);
        }
    }
    Outcome::Fine(format!(
        "{} of cores exchange messages about equally fast",
        crate::counted(latencies.len(), "pair")
    ))
}

/// Binds this thread to a core; without permission the kernel places it.
fn bind(core: &Core) {
    let mut cpus = CpuSet::new();
    core.cpus.iter().for_each(|cpu| cpus.set(*cpu));
    let _ = sched_setaffinity(None, &cpus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_pair_is_a_finding() {
        let pair = |name: &str, near, us| (name.to_owned(), near, us);
        let usual =
            vec![pair("a", true, 0.2), pair("b", true, 0.25), pair("c", true, 0.3), pair("d", false, 2.0)];
        assert!(matches!(slowest(&usual), Outcome::Fine(_)));
        let mut slow = usual;
        slow.push(pair("e", true, 1.4));
        assert!(matches!(slowest(&slow), Outcome::Found(finding) if finding.what.starts_with("e exchange")));
        assert!(matches!(slowest(&[]), Outcome::Fine(_)));
    }
}
