//! Groups whose calls take longer than the same calls of other groups: their ranks share a slow link.

use std::collections::BTreeMap;

use weftlink_plan::Kind;
use weftlink_sim::predict;

use super::super::{median, size};
use super::{Case, time};
use crate::finding::{Cost, Finding, Outcome, Severity};

pub(super) const ID: &str = "job-slow-group";

/// Below this, latency decides, and links matter little.
const BYTES_MIN: u64 = 1 << 20;
/// With fewer calls, a median means nothing.
const CALLS_MIN: usize = 5;
/// A group is slow if its calls take this much longer than the median of the groups.
const SLOWER: f64 = 1.3;

/// Calls that should take the same time: collective, bytes and ranks of the group.
type Alike = (&'static str, u64, u32);

pub(super) fn run(case: &Case<'_>) -> Vec<Outcome> {
    let mut groups: BTreeMap<Alike, BTreeMap<&str, (Kind, Vec<u64>)>> = BTreeMap::new();
    for call in &case.matched.calls {
        if let (Some(bytes), Some(group), Some(ns)) = (call.bytes, call.group.as_deref(), call.transfer_ns)
            && bytes >= BYTES_MIN
        {
            let alike = groups.entry((call.kind.name(), bytes, call.ranks)).or_default();
            alike.entry(group).or_insert_with(|| (call.kind, Vec::new())).1.push(ns);
        }
    }
    groups.values_mut().for_each(|alike| alike.retain(|_, (_, times)| times.len() >= CALLS_MIN));
    groups.retain(|_, alike| alike.len() > 1);
    if groups.is_empty() {
        return unknown(case);
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut named: Vec<&str> = Vec::new();
    for (alike, groups) in &groups {
        let medians: BTreeMap<&str, u64> =
            groups.iter().filter_map(|(group, (_, times))| Some((*group, median(times.clone())?))).collect();
        let usual = median(medians.values().copied().collect()).unwrap_or(0);
        let kind = groups.values().next().map(|(kind, _)| *kind);
        for (group, ns) in medians {
            if ns as f64 > usual as f64 * SLOWER && !named.contains(&group) {
                named.push(group);
                outcomes.push(Outcome::Found(finding(case, *alike, kind, group, (ns, usual))));
            }
        }
    }
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine("calls of the same size take the same time in all groups".to_owned()));
    }
    outcomes
}

/// Nothing to compare: unknown if the job has several groups of a size, otherwise the finding does not apply.
fn unknown(case: &Case<'_>) -> Vec<Outcome> {
    let mut groups: Vec<(u32, &str)> = case
        .job
        .calls()
        .filter(|call| call.bytes.is_none_or(|bytes| bytes >= BYTES_MIN))
        .filter_map(|call| Some((call.ranks?, call.group.as_deref()?)))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return vec![Outcome::Unknown {
            what: "whether some groups have slower links than others".to_owned(),
            needs: "traces of all ranks over the same steps, with kernels (ProfilerActivity.CUDA)".to_owned(),
        }];
    }
    Vec::new()
}

fn finding(
    case: &Case<'_>,
    (collective, bytes, ranks): Alike,
    kind: Option<Kind>,
    group: &str,
    (ns, usual): (u64, u64),
) -> Finding {
    let mut members: Vec<&str> = Vec::new();
    for call in case.matched.calls.iter().filter(|call| call.group.as_deref() == Some(group)) {
        for (rank, _) in &call.waits {
            let name = case.job.ranks[*rank].name.as_str();
            if !members.contains(&name) {
                members.push(name);
            }
        }
    }
    let what = format!(
        "{collective} of {} between {} takes {:.1}x as long as in the other groups of {ranks} ranks",
        size(bytes),
        members.join(", "),
        ns as f64 / usual.max(1) as f64
    );
    let factor = kind.and_then(|kind| predict::operation(kind).ok()).map_or(1.0, |one| one.bus_factor(ranks));
    let busbw = |ns: u64| bytes as f64 / ns.max(1) as f64 * factor;
    let (now_gb_per_s, usual_gb_per_s) = (busbw(ns), busbw(usual));
    let sentence = format!(
        "{collective} of {}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bus bandwidth, measured in the trace)",
        size(bytes)
    );
    Finding::new(ID, Severity::Warning, what)
        .shown_by(
            format!("group {group}"),
            format!("median {}, other groups {}", time(ns as f64 / 1e3), time(usual as f64 / 1e3)),
        )
        .costing(Some(Cost { sentence, now_gb_per_s, usual_gb_per_s }))
        .fixed_by("run `weft doctor` and `weft links` on the hosts of these ranks, and `weft doctor --measure` on the path between them")
        .fixed_by("if the group spans switches or hosts and the others do not, place its ranks closer together")
}
