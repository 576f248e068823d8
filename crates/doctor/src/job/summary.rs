//! Tables of a job's communication: by collective and size, by rank, and the bandwidth of each size beside its prediction.

use std::collections::BTreeMap;

use serde::Serialize;
use weftlink_fabric::Fabric;
use weftlink_plan::Kind;
use weftlink_sim::predict::{self, Options, predict};

use super::matching::Matching;
use super::{Call, Job, Rank, Source, median};

/// Upper bounds of the classes of sizes, in bytes.
const SIZES: [u64; 6] = [1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 100 << 20];
/// Rows of the table of bandwidths, those that take most time.
const RATES_MAX: usize = 24;

/// The tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The sources in words.
    pub subject: String,
    /// By collective, the one that takes most time first.
    pub collectives: Vec<CollectiveSummary>,
    /// By rank.
    pub ranks: Vec<RankSummary>,
    /// By collective, size and ranks, those that take most time first.
    pub rates: Vec<SizeRate>,
    /// Calls that were found on several ranks, and those that were not.
    pub matched: [u64; 2],
    /// Remarks on what was read.
    pub notes: Vec<String>,
}

/// The calls of one collective, of all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveSummary {
    /// Its name; `unknown` for kernels whose name does not say what they run.
    pub collective: &'static str,
    /// All calls.
    pub all: SizeClass,
    /// Calls by size, without empty classes.
    pub sizes: Vec<SizeClass>,
    /// Calls of unknown size.
    pub unsized_calls: u64,
}

/// The calls of a class of sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SizeClass {
    /// Sizes are below this many bytes; None for the class without a limit.
    pub below_bytes: Option<u64>,
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time in microseconds, where known; it includes waiting for other ranks.
    pub time_us: Option<f64>,
}

impl SizeClass {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(call.bytes.unwrap_or(0));
        if let Some(ns) = call.duration_ns {
            *self.time_us.get_or_insert(0.0) += ns as f64 / 1e3;
        }
    }
}

/// What one rank did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankSummary {
    /// Its name.
    pub name: String,
    /// Its host, where known.
    pub host: Option<String>,
    /// Its calls.
    pub calls: u64,
    /// From the start of the first kernel to the end of the last, in microseconds.
    pub window_us: Option<f64>,
    /// The time in which it communicated.
    pub communication_us: Option<f64>,
    /// The part of it in which nothing else ran; unknown if the source does not show other work.
    pub exposed_us: Option<f64>,
    /// The time in which something else ran.
    pub other_us: Option<f64>,
    /// Its steps, and the median of their times.
    pub steps: u64,
    /// The median time of its steps.
    pub step_us: Option<f64>,
    /// How long it waited for other ranks, over the matched calls.
    pub waited_us: f64,
    /// Matched calls in which it came last and the others waited noticeably.
    pub came_last: u64,
    /// Matched calls whose waits are known.
    pub compared: u64,
}

/// The bandwidth of calls of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeRate {
    /// The collective.
    pub collective: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// The ranks of the group.
    pub ranks: u32,
    /// Calls.
    pub calls: u64,
    /// The median time in microseconds.
    pub time_us: f64,
    /// Whether the time includes waiting for other ranks, because the same call was not found on several ranks.
    pub includes_waiting: bool,
    /// Bus bandwidth, as in nccl-tests.
    pub busbw_gb_per_s: f64,
    /// The prediction, if the fabric is known and has as many GPUs as the group has ranks.
    pub predicted_us: Option<f64>,
    /// The bounds between which nine of ten machines are expected.
    pub predicted_most_us: Option<(f64, f64)>,
    /// The bus bandwidth of the prediction.
    pub predicted_busbw_gb_per_s: Option<f64>,
}

impl Summary {
    /// The tables of a job.
    pub fn of(job: &Job, matching: &Matching, fabric: Option<&Fabric>) -> Self {
        let mut rates = rates(job, matching);
        if let Some(fabric) = fabric.filter(|_| !job.sources.contains(&Source::Recorder)) {
            predict_rates(&mut rates, fabric);
        }
        Self {
            subject: job.subject(),
            collectives: collectives(job),
            ranks: ranks(job, matching),
            rates,
            matched: [matching.calls.len() as u64, matching.unmatched],
            notes: job.notes.clone(),
        }
    }

    /// The time of all calls, in microseconds, where known.
    pub fn time_us(&self) -> Option<f64> {
        let times: Vec<f64> = self.collectives.iter().filter_map(|one| one.all.time_us).collect();
        (!times.is_empty()).then(|| times.iter().sum())
    }
}

fn collectives(job: &Job) -> Vec<CollectiveSummary> {
    let mut by_name: BTreeMap<&str, CollectiveSummary> = BTreeMap::new();
    for call in job.calls() {
        let one = by_name.entry(call.name()).or_insert_with(|| CollectiveSummary {
            collective: call.name(),
            all: SizeClass::default(),
            sizes: (0..=SIZES.len())
                .map(|at| SizeClass { below_bytes: SIZES.get(at).copied(), ..SizeClass::default() })
                .collect(),
            unsized_calls: 0,
        });
        one.all.add(call);
        match call.bytes {
            Some(bytes) => one.sizes[SIZES.partition_point(|bound| *bound <= bytes)].add(call),
            None => one.unsized_calls += 1,
        }
    }
    let mut all: Vec<CollectiveSummary> = by_name.into_values().collect();
    all.iter_mut().for_each(|one| one.sizes.retain(|class| class.calls > 0));
    let weight = |one: &CollectiveSummary| (one.all.time_us.unwrap_or(0.0), one.all.calls);
    all.sort_by(|one, other| weight(other).partial_cmp(&weight(one)).unwrap_or(std::cmp::Ordering::Equal));
    all
}

fn ranks(job: &Job, matching: &Matching) -> Vec<RankSummary> {
    let mut all: Vec<RankSummary> = job.ranks.iter().map(rank).collect();
    for call in &matching.calls {
        let Some(last) = call.last() else { continue };
        all[last].came_last += u64::from(call.is_waited_in());
        for (rank, wait) in &call.waits {
            all[*rank].compared += 1;
            all[*rank].waited_us += wait.unwrap_or(0) as f64 / 1e3;
        }
    }
    all
}

fn rank(rank: &Rank) -> RankSummary {
    let mut communication = super::Spans::default();
    for call in &rank.calls {
        communication.add(call.start_ns, call.duration_ns.unwrap_or(0));
    }
    communication.merge();
    let us = |ns: u64| ns as f64 / 1e3;
    let is_timed = !communication.is_empty();
    let sees_other = !rank.other_work.is_empty();
    let exposed_ns = communication.total_ns() - communication.shared_ns(&rank.other_work);
    let extents = [communication.extent(), rank.other_work.extent()];
    let start = extents.iter().flatten().map(|extent| extent.0).min();
    let end = extents.iter().flatten().map(|extent| extent.1).max();
    RankSummary {
        name: rank.name.clone(),
        host: rank.host.clone(),
        calls: rank.calls.len() as u64,
        window_us: start.zip(end).map(|(start, end)| us(end.abs_diff(start))),
        communication_us: is_timed.then(|| us(communication.total_ns())),
        exposed_us: (is_timed && sees_other).then(|| us(exposed_ns)),
        other_us: sees_other.then(|| us(rank.other_work.total_ns())),
        steps: rank.steps_ns.len() as u64,
        step_us: median(rank.steps_ns.clone()).map(us),
        waited_us: 0.0,
        came_last: 0,
        compared: 0,
    }
}

/// Calls that should take the same time: collective, bytes, ranks, and whether their times include waiting.
type Alike = (&'static str, u64, u32, bool);

/// The bandwidths of all sizes: of matched calls without the waiting, of other calls with it.
fn rates(job: &Job, matching: &Matching) -> Vec<SizeRate> {
    let mut times: BTreeMap<Alike, (Kind, Vec<u64>)> = BTreeMap::new();
    let mut add = |alike: Alike, kind: Kind, ns: u64| {
        times.entry(alike).or_insert_with(|| (kind, Vec::new())).1.push(ns);
    };
    let mut is_matched = std::collections::BTreeSet::new();
    for call in &matching.calls {
        if let (Some(bytes), Some(ns)) = (call.bytes, call.transfer_ns) {
            is_matched.insert((call.kind.name(), bytes, call.ranks));
            add((call.kind.name(), bytes, call.ranks, false), call.kind, ns);
        }
    }
    for call in job.calls() {
        if let (Some(kind), Some(bytes), Some(ranks), Some(ns)) =
            (call.kind, call.bytes, call.ranks, call.duration_ns)
            && !is_matched.contains(&(kind.name(), bytes, ranks))
        {
            add((kind.name(), bytes, ranks, true), kind, ns);
        }
    }
    let mut rates: Vec<SizeRate> =
        times.into_iter().filter_map(|(alike, (kind, times))| rate(alike, kind, times)).collect();
    let weight = |rate: &SizeRate| rate.time_us * rate.calls as f64;
    rates.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
    rates.truncate(RATES_MAX);
    rates
}

fn rate(
    (collective, bytes, ranks, includes_waiting): Alike,
    kind: Kind,
    times: Vec<u64>,
) -> Option<SizeRate> {
    let operation = predict::operation(kind).ok()?;
    let calls = times.len() as u64;
    let time_us = median(times).filter(|ns| *ns > 0)? as f64 / 1e3;
    if bytes == 0 || ranks == 0 || kind == Kind::Barrier {
        return None;
    }
    Some(SizeRate {
        collective,
        bytes,
        ranks,
        calls,
        time_us,
        includes_waiting,
        busbw_gb_per_s: bytes as f64 / time_us / 1e3 * operation.bus_factor(ranks),
        predicted_us: None,
        predicted_most_us: None,
        predicted_busbw_gb_per_s: None,
    })
}

/// Predicts the calls of groups that have the fabric's GPUs.
fn predict_rates(rates: &mut [SizeRate], fabric: &Fabric) {
    for rate in rates.iter_mut().filter(|rate| rate.ranks as usize == fabric.gpus().len()) {
        let Ok(kind) = rate.collective.parse::<Kind>() else { continue };
        let Ok(predicted) = predict(kind, fabric, &[rate.bytes], &Options::default()) else { continue };
        let row = &predicted.rows[0];
        rate.predicted_us = Some(row.time_us());
        rate.predicted_most_us = row.intervals.map(|intervals| intervals.most_us);
        rate.predicted_busbw_gb_per_s = Some(row.busbw_gb_per_s);
    }
}
