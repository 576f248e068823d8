//! `weft bench --tune`: the fastest algorithm for each size, as a table that communicators read.
//!
//! For each collective, kind of memory and size, all algorithms that apply are measured in turn, for several rounds; the best
//! time of each counts. Messages with the payload beside the flags (`linear:ll`) are measured up to a few kilobytes. With growing
//! size, another algorithm takes over only if it is clearly faster, so that noise makes no breakpoints. Results are not checked
//! here: plans are proved, and other runs check.

use std::fmt::Write;

use weftlink_comm::DataType;
use weftlink_comm::Reduction;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Aliasing, Collective, Layout, Verified, verify};

use super::args::misuse;
use super::job::{Case, Job};
use super::names::{Op, Type, What};
use super::results::Row;
use crate::Failure;
use crate::units::size;

/// The number of rounds, and the duration of each loop of calls.
const ROUNDS: usize = 3;
const LOOP_SECONDS: f64 = 0.01;
const WARMUP: u32 = 2;
/// Bytes of a block: the smallest, the largest, and the factor between them.
const BYTES: (u64, u64) = (8, 8 << 20);
const FACTOR: u64 = 4;
/// In larger blocks a flag per cache line costs too much.
const PACKET_BYTES_MAX: usize = 4096;
/// How much faster another algorithm must be to take over.
const CLEARLY: f64 = 0.97;

/// The collectives with several algorithms.
const COLLECTIVES: [What; 10] = [
    What::AllReduce,
    What::Reduce,
    What::Broadcast,
    What::AllGather,
    What::ReduceScatter,
    What::AllToAll,
    What::Gather,
    What::Scatter,
    What::Scan,
    What::ExclusiveScan,
];

/// Makes the rows of a job: each collective, memory, size, round and algorithm, in this order.
pub(super) fn rows(
    job: &mut Job,
    asked: &[What],
    from: Option<Bytes>,
    to: Option<Bytes>,
) -> Result<(), Failure> {
    if job.ranks < 2 {
        return misuse("--tune needs at least two ranks".to_owned());
    }
    if let Some(what) = asked.iter().find(|what| !COLLECTIVES.contains(what)) {
        let name = what.name();
        return misuse(format!("{name} has only one algorithm, so there is nothing to tune"));
    }
    job.check = false;
    job.in_place = false;
    job.warmup = WARMUP;
    job.loop_seconds = LOOP_SECONDS;
    let (from, to) = (from.map_or(BYTES.0, |bytes| bytes.0), to.map_or(BYTES.1, |bytes| bytes.0));
    let sizes = std::iter::successors(Some(from.max(4)), |bytes| bytes.checked_mul(FACTOR));
    let counts: Vec<usize> = sizes.take_while(|bytes| *bytes <= to).map(|bytes| bytes as usize / 4).collect();
    if counts.is_empty() {
        return misuse(format!(
            "the smallest size (-b {}) is larger than the largest (-e {})",
            size(from),
            size(to)
        ));
    }
    for what in if asked.is_empty() { &COLLECTIVES[..] } else { asked } {
        let Some(collective) = what.collective(job.ranks as u32, 0) else { continue };
        let plans = plans(&collective, job.ranks as u32);
        for symmetric in [false, true] {
            let cases: Vec<(usize, bool)> = plans
                .iter()
                .filter(|plan| symmetric || !plan.writes_to_peers())
                .map(|plan| (add_case(job, plan.clone(), symmetric), is_packets(plan)))
                .collect();
            for &count in &counts {
                let fitting = cases.iter().filter(|(_, packets)| !packets || count * 4 <= PACKET_BYTES_MAX);
                let round: Vec<_> = fitting.map(|&(case, _)| (case, count)).collect();
                (0..ROUNDS).for_each(|_| job.rows.extend(&round));
            }
        }
    }
    Ok(())
}

/// All plans for a collective that work in place and out of place, with packets too where there are messages.
fn plans(collective: &Collective, ranks: u32) -> Vec<Verified> {
    let layout = Layout::flat(ranks, 1);
    let mut plans: Vec<Verified> = Vec::new();
    for algorithm in Algorithm::ALL {
        let of = |protocol: Option<Protocol>| {
            let recipe = algorithm.recipe(collective, &layout).ok()?;
            let recipe = match protocol {
                Some(protocol) => recipe.with_protocol(protocol),
                None => recipe,
            };
            verify(recipe.plan().without_switches()).ok()
        };
        let both = |plan: &Verified| Aliasing::BOTH.iter().all(|way| plan.aliasing.contains(way));
        for plan in [of(None), of(Some(Protocol::Ll))].into_iter().flatten().filter(both) {
            // Without switches some algorithms have the same plan, and packets change nothing without messages.
            let same = |known: &Verified| known.programs == plan.programs && known.channels == plan.channels;
            if !plans.iter().any(same) {
                plans.push(plan);
            }
        }
    }
    plans
}

fn is_packets(plan: &Verified) -> bool {
    plan.channels.iter().any(|channel| channel.protocol == Protocol::Ll)
}

fn add_case(job: &mut Job, plan: Verified, symmetric: bool) -> usize {
    let collective = plan.collective.clone();
    let op = collective.reduces().then_some(Op(Reduction::Sum));
    let plan = Some(job.add_plan(plan));
    job.cases.push(Case { collective, data_type: Type(DataType::F32), op, symmetric, rotating: false, plan });
    job.cases.len() - 1
}

/// What was measured, as a table.
pub(super) fn table(job: &Job, rows: &[Row], reads_peers: bool) -> String {
    let mut text = format!(
        "# Measured by `weft bench --tune`, version {}, on {} ranks: the fastest algorithm for blocks of up to so many bytes.\n\
         # WEFT_TUNING=FILE makes communicators use it.\n",
        env!("CARGO_PKG_VERSION"),
        job.ranks
    );
    let mut groups: Vec<(&Collective, bool)> = Vec::new();
    for row in rows {
        let group = (&job.cases[row.case].collective, job.cases[row.case].symmetric);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (collective, symmetric) in groups {
        let of_group = rows.iter().filter(|row| {
            let case = &job.cases[row.case];
            (&case.collective, case.symmetric) == (collective, symmetric)
        });
        let memory = match (symmetric, reads_peers) {
            (true, _) => "symmetric",
            (false, true) => "readable",
            (false, false) => "ordinary",
        };
        for (up_to_bytes, name) in breakpoints(&times(job, of_group)) {
            let _ = write!(
                text,
                "\n[[choice]]\ncollective = \"{}\"\nranks = {}\nmemory = \"{memory}\"\n",
                collective.name(),
                job.ranks
            );
            if let Some(bytes) = up_to_bytes {
                let _ = writeln!(text, "up_to_bytes = {bytes}");
            }
            let _ = writeln!(text, "algorithm = \"{name}\"");
        }
    }
    text
}

/// The best time of each algorithm, by the bytes of a block.
type Times = Vec<(usize, Vec<(String, f64)>)>;

fn times<'r>(job: &Job, rows: impl Iterator<Item = &'r Row>) -> Times {
    let mut times: Times = Vec::new();
    for row in rows {
        let Some(time) = row.out_of_place.as_ref().map(|measured| measured.time_us) else { continue };
        let case = &job.cases[row.case];
        let bytes = row.count * case.data_type.bytes();
        let packets = case.plan.is_some_and(|plan| {
            job.plans[plan].channels.iter().any(|channel| channel.protocol == Protocol::Ll)
        });
        let is_named_so = row.plan == Algorithm::ExchangeLl.name();
        let name = if packets && !is_named_so { format!("{}:ll", row.plan) } else { row.plan.clone() };
        if times.last().is_none_or(|(last, _)| *last != bytes) {
            times.push((bytes, Vec::new()));
        }
        let Some((_, entries)) = times.last_mut() else { continue };
        match entries.iter_mut().find(|(known, _)| *known == name) {
            Some((_, best)) => *best = best.min(time),
            None => entries.push((name, time)),
        }
    }
    times
}

/// The algorithm up to each number of bytes; the last has no limit. A breakpoint is the geometric mean of two sizes.
fn breakpoints(times: &Times) -> Vec<(Option<usize>, String)> {
    let mut found: Vec<(Option<usize>, String)> = Vec::new();
    let mut before = 0;
    for (bytes, entries) in times {
        let Some((best, time)) = entries.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let current = found.last().and_then(|(_, name)| entries.iter().find(|(known, _)| known == name));
        let stays = current.is_some_and(|(_, kept)| *time >= CLEARLY * kept);
        if !stays {
            if let Some((up_to, _)) = found.last_mut() {
                *up_to = Some((before as f64 * *bytes as f64).sqrt() as usize);
            }
            found.push((None, best.clone()));
        }
        before = *bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_takes_over_only_where_it_is_clearly_faster() {
        let at = |bytes, ring, tree| (bytes, vec![("ring".to_owned(), ring), ("tree".to_owned(), tree)]);
        let times = vec![at(64, 2.0, 1.0), at(256, 2.0, 2.02), at(1024, 3.0, 4.0), at(4096, 8.0, 7.9)];
        assert_eq!(breakpoints(&times), [(Some(512), "tree".to_owned()), (None, "ring".to_owned())]);
    }

    #[test]
    fn plans_without_a_time_are_replaced() {
        let times = vec![(4096, vec![("ring:ll".to_owned(), 1.0)]), (16_384, vec![("ring".to_owned(), 9.0)])];
        assert_eq!(breakpoints(&times), [(Some(8192), "ring:ll".to_owned()), (None, "ring".to_owned())]);
    }
}
