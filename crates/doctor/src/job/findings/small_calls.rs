//! Many small messages: each costs its latency, whatever its size.
//!
//! The advice on `bucket_cap_mb` is arithmetic on the trace. A small all-reduce takes `L` (the median of those below 100 KiB), and large
//! ones move `B` bytes a second (the best of those above 1 MiB). A bucket should be so large that `L` is at most a twentieth of its time:
//! `20 L B` bytes, rounded up to 25, 50, 100 or 200 MiB. 25 is PyTorch's default.

use weftlink_plan::Kind;

use super::super::{Call, CollectiveSummary, counted, median, size, total};
use super::{Case, percent, time};
use crate::finding::{Cost, Finding, Outcome, Severity};

pub(super) const ID: &str = "job-small-calls";

/// A call is small below this.
const SMALL: u64 = 100 << 10;
/// The bandwidth of calls is measured from this size on.
const LARGE: u64 = 1 << 20;
/// The finding needs this share of small calls,
const CALLS_SHARE: f64 = 0.5;
/// and this share of the time of communication in them, where times are known.
const TIME_SHARE: f64 = 0.1;
/// The values of `bucket_cap_mb` that the advice chooses from, in MiB.
const BUCKETS: [u64; 4] = [25, 50, 100, 200];
/// The latency is at most this part of the time of a bucket.
const LATENCY_PART: f64 = 20.0;

pub(super) fn run(case: &Case<'_>) -> Vec<Outcome> {
    if case.job.calls().next().is_none() {
        return vec![Outcome::Unknown {
            what: "the job's communication: no calls were found".to_owned(),
            needs: "a trace of steps that communicate, with ProfilerActivity.CUDA".to_owned(),
        }];
    }
    let sized: Vec<&Call> =
        case.job.calls().filter(|call| call.bytes.is_some() && call.kind != Some(Kind::Barrier)).collect();
    if sized.is_empty() {
        return vec![Outcome::Unknown {
            what: "the sizes of messages".to_owned(),
            needs: "a trace of torch.profiler of a program that uses torch.distributed (PyTorch since 2024); Nsight Systems and \
                    nn.DataParallel do not record sizes".to_owned(),
        }];
    }
    let small: Vec<&Call> = sized.iter().copied().filter(|call| is_small(call)).collect();
    let calls_share = small.len() as f64 / sized.len() as f64;
    let sum_us = |calls: &[&Call]| total(calls.iter().filter_map(|call| call.duration_ns)) as f64 / 1e3;
    let is_timed = sized.iter().any(|call| call.duration_ns.is_some());
    let time_share = (is_timed && sum_us(&sized) > 0.0).then(|| sum_us(&small) / sum_us(&sized));
    let takes = time_share
        .map_or_else(String::new, |share| format!(" and take {} of the communication time", percent(share)));
    let what = format!("{} of the calls are below {}{takes}", percent(calls_share), size(SMALL));
    if calls_share < CALLS_SHARE || time_share.is_some_and(|share| share < TIME_SHARE) {
        return vec![Outcome::Fine(what)];
    }
    let severity = if time_share.is_some() { Severity::Warning } else { Severity::Note };
    let mut finding = Finding::new(ID, severity, what);
    for one in &case.summary.collectives {
        if let Some(text) = evidence(one) {
            finding = finding.shown_by(one.collective, text);
        }
    }
    vec![Outcome::Found(advise(case, finding, &small))]
}

fn is_small(call: &Call) -> bool {
    call.bytes.is_some_and(|bytes| bytes < SMALL)
}

fn evidence(one: &CollectiveSummary) -> Option<String> {
    let small: Vec<_> =
        one.sizes.iter().filter(|class| class.below_bytes.is_some_and(|below| below <= SMALL)).collect();
    let calls: u64 = small.iter().map(|class| class.calls).sum();
    if calls == 0 || one.collective == Kind::Barrier.name() {
        return None;
    }
    let us: f64 = small.iter().filter_map(|class| class.time_us).sum();
    let of = one.all.time_us.map_or_else(String::new, |all| format!("; {} of {}", time(us), time(all)));
    let bytes: u64 = total(small.iter().map(|class| class.bytes));
    Some(format!(
        "{calls} of {} below {}, {} in all{of}",
        counted(one.all.calls, "call"),
        size(SMALL),
        size(bytes)
    ))
}

/// Adds cost and fixes, by the collectives that are small.
fn advise(case: &Case<'_>, mut finding: Finding, small: &[&Call]) -> Finding {
    let has = |kinds: &[Kind]| small.iter().any(|call| call.kind.is_some_and(|kind| kinds.contains(&kind)));
    if has(&[Kind::AllReduce]) {
        finding = all_reduces(case, finding);
    }
    if has(&[Kind::AllGather, Kind::ReduceScatter]) {
        finding = finding.fixed_by(
            "with FSDP, shard larger units: call fully_shard on whole transformer blocks (auto_wrap_policy in FSDP1), not on single \
                layers",
        );
    }
    if has(&[Kind::Broadcast]) {
        finding = finding.fixed_by(
            "if buffers need no synchronisation in each step, DistributedDataParallel(model, broadcast_buffers=False)",
        );
    }
    if has(&[Kind::AllToAll, Kind::SendReceive]) {
        finding = finding.fixed_by(
            "send fewer, larger messages (larger microbatches), or capture the step in a CUDA graph, which saves the launch of each call",
        );
    }
    if finding.fixes.is_empty() {
        finding = finding.fixed_by("copy small tensors into one buffer and make one call for it");
    }
    finding
}

/// Latency and bandwidth of the all-reduces, and what buckets would change.
fn all_reduces(case: &Case<'_>, finding: Finding) -> Finding {
    let all: Vec<&Call> = case.job.calls().filter(|call| call.kind == Some(Kind::AllReduce)).collect();
    let small: Vec<&Call> = all.iter().copied().filter(|call| is_small(call)).collect();
    let bytes: u64 = total(small.iter().filter_map(|call| call.bytes));
    // Calls of different steps or ranks do not share a bucket.
    let steps: u64 = case.summary.ranks.iter().map(|rank| rank.steps.max(1)).sum();
    // Without waiting for other ranks where the calls were found on several.
    let matched = case.matched.calls.iter().filter(|call| call.kind == Kind::AllReduce);
    let clean: Vec<(u64, u64)> = matched.filter_map(|call| Some((call.bytes?, call.transfer_ns?))).collect();
    let times: Vec<(u64, u64)> = match clean.is_empty() {
        true => all.iter().filter_map(|call| Some((call.bytes?, call.duration_ns?))).collect(),
        false => clean,
    };
    let latency = median(times.iter().filter(|(bytes, _)| *bytes < SMALL).map(|(_, ns)| *ns).collect());
    let per_ns = times
        .iter()
        .filter(|(bytes, ns)| *bytes >= LARGE && *ns > 0)
        .map(|(bytes, ns)| *bytes as f64 / *ns as f64);
    let Some((latency, per_ns)) = latency.zip(per_ns.reduce(f64::max)) else {
        return finding.fixed_by(format!(
            "let DistributedDataParallel gather gradients into buckets of bucket_cap_mb=25 (the default) instead of reducing each; \
             {} in {} then fit into {}",
            size(bytes),
            counted(small.len() as u64, "call"),
            counted(buckets(bytes, BUCKETS[0] << 20, steps), "call")
        ));
    };
    let wanted = LATENCY_PART * latency as f64 * per_ns;
    let bucket =
        BUCKETS.into_iter().find(|mib| (mib << 20) as f64 >= wanted).unwrap_or(BUCKETS[BUCKETS.len() - 1]);
    let (in_bucket, latency_us) = ((bucket << 20) as f64 / per_ns / 1e3, latency as f64 / 1e3);
    let verb = if bucket == BUCKETS[0] { "leave bucket_cap_mb at" } else { "raise bucket_cap_mb to" };
    finding.costing(cost(&all, &small, latency_us, per_ns, buckets(bytes, bucket << 20, steps))).fixed_by(format!(
        "{verb} {bucket} (DistributedDataParallel(model, bucket_cap_mb={bucket})), and reduce gradients through it alone: a call \
            takes {} however small, and at {per_ns:.1} GB/s a bucket takes {}, of which that is {}",
        time(latency_us),
        time(in_bucket),
        percent(latency_us / in_bucket)
    ))
}

/// The buckets that bytes of several steps take.
fn buckets(bytes: u64, bucket: u64, steps: u64) -> u64 {
    let steps = steps.max(1);
    (bytes / steps).div_ceil(bucket).max(1).saturating_mul(steps)
}

/// The bandwidth of all all-reduces, as they are and with the small ones in buckets.
fn cost(all: &[&Call], small: &[&Call], latency_us: f64, per_ns: f64, buckets: u64) -> Option<Cost> {
    let bytes_of = |calls: &[&Call]| total(calls.iter().filter_map(|call| call.bytes));
    let us_of = |calls: &[&Call]| total(calls.iter().filter_map(|call| call.duration_ns)) as f64 / 1e3;
    let (now_us, small_us) = (us_of(all), us_of(small));
    let bucketed_us = bytes_of(small) as f64 / per_ns / 1e3 + buckets as f64 * latency_us;
    let then_us = now_us - small_us + bucketed_us.min(small_us);
    let gb_per_s = |us: f64| bytes_of(all) as f64 / us / 1e3;
    if now_us <= 0.0 || then_us <= 0.0 {
        return None;
    }
    let (now_gb_per_s, usual_gb_per_s) = (gb_per_s(now_us), gb_per_s(then_us));
    let sentence = format!(
        "all-reduces of the trace: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bytes over time; estimate for {} in {} \
            instead of {})",
        size(bytes_of(small)),
        counted(buckets, "bucket"),
        counted(small.len() as u64, "call")
    );
    Some(Cost { sentence, now_gb_per_s, usual_gb_per_s })
}
