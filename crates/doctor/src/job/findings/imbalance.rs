//! Ranks that wait for each other: the time in collectives before the last rank comes.

use super::super::{counted, median, total};
use super::{Case, percent, time};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const ID: &str = "job-imbalance";

/// With fewer calls, shares mean nothing.
const CALLS_MIN: usize = 5;
/// The ranks wait at least this share of the time of their calls; of the whole time, if the time of calls is unknown.
const SHARE_MIN: f64 = 0.2;
/// One rank is named if it causes at least this share of the waiting.
const ONE_RANK: f64 = 0.5;
/// A rank whose other work takes this much longer than the median is slow itself.
const SLOWER: f64 = 1.05;

pub(super) fn run(case: &Case<'_>) -> Vec<Outcome> {
    if case.summary.ranks.iter().all(|rank| rank.calls == 0) {
        return Vec::new();
    }
    let known: Vec<_> = case
        .matched
        .calls
        .iter()
        .filter_map(|call| Some((call.last()?, call.mean_wait_ns()?, call.mean_ns)))
        .collect();
    if known.len() < CALLS_MIN {
        let unmatched = match case.summary.matched[1] {
            0 => String::new(),
            calls => format!(" ({} found on one rank only, or in another order)", counted(calls, "call")),
        };
        return vec![Outcome::Unknown {
            what: format!("which rank the others wait for{unmatched}"),
            needs: "traces of all ranks over the same steps, named together".to_owned(),
        }];
    }
    let waited: u64 = total(known.iter().map(|(_, wait, _)| *wait));
    let timed: Option<Vec<u64>> = known.iter().map(|(_, _, mean)| *mean).collect();
    let (total, of_what) = match timed {
        Some(times) => (total(times) as f64, "the time of their collectives"),
        None => (whole_ns(case), "the time between the first and the last call"),
    };
    let share = if total > 0.0 { waited as f64 / total } else { 0.0 };
    let mut caused = vec![0_u64; case.job.ranks.len()];
    known.iter().for_each(|(last, wait, _)| caused[*last] = caused[*last].saturating_add(*wait));
    let Some((slowest, most)) = caused.iter().enumerate().max_by_key(|(at, ns)| (**ns, usize::MAX - at))
    else {
        return Vec::new();
    };
    if share < SHARE_MIN {
        return vec![Outcome::Fine(format!("ranks wait for each other for {} of {of_what}", percent(share)))];
    }
    let is_one = *most as f64 >= waited as f64 * ONE_RANK;
    vec![Outcome::Found(finding(case, share, of_what, is_one.then_some(slowest), &caused))]
}

/// The time that the calls span, for sources without durations.
fn whole_ns(case: &Case<'_>) -> f64 {
    let spans = case
        .job
        .ranks
        .iter()
        .filter_map(|rank| Some(rank.calls.last()?.start_ns.abs_diff(rank.calls.first()?.start_ns)));
    spans.max().unwrap_or(0) as f64
}

fn finding(case: &Case<'_>, share: f64, of_what: &str, slowest: Option<usize>, caused: &[u64]) -> Finding {
    let ranks = &case.summary.ranks;
    let what = match slowest {
        Some(at) => {
            let on = ranks[at].host.as_ref().map_or_else(String::new, |host| format!(" (host {host})"));
            format!(
                "the ranks wait {} of {of_what}, mostly for {}{on}, which comes last in {} of {} calls",
                percent(share),
                ranks[at].name,
                ranks[at].came_last,
                ranks[at].compared
            )
        }
        None => format!(
            "the ranks wait {} of {of_what} for each other, and no single rank is the cause",
            percent(share)
        ),
    };
    let mut finding = Finding::new(ID, Severity::Warning, what);
    let mut order: Vec<usize> = (0..ranks.len()).filter(|at| ranks[*at].compared > 0).collect();
    order.sort_by_key(|at| std::cmp::Reverse(caused[*at]));
    let others: Vec<u64> = ranks.iter().filter_map(|rank| rank.other_us).map(|us| us as u64).collect();
    let usual_us = median(others).unwrap_or(0) as f64;
    for at in order.into_iter().take(3) {
        let rank = &ranks[at];
        let work = rank.other_us.map_or_else(String::new, |us| {
            format!("; its other work takes {}, the median is {}", time(us), time(usual_us))
        });
        let text = format!(
            "last in {} of {} calls, the others wait {} for it, it waits {}{work}",
            rank.came_last,
            rank.compared,
            time(caused[at] as f64 / 1e3),
            time(rank.waited_us)
        );
        finding = finding.shown_by(rank.name.clone(), text);
    }
    let slow_work = slowest.and_then(|at| ranks[at].other_us).map(|us| us > usual_us * SLOWER);
    match (slowest.is_some(), slow_work) {
        (true, Some(true)) => finding
            .fixed_by("its own kernels are slow: run `weft doctor` on its host, and `nvidia-smi -q -d PERFORMANCE,CLOCK` during a step")
            .fixed_by("if the hardware is fine, it has more work than the others: balance batches, sequence lengths and experts"),
        (true, Some(false)) => finding
            .fixed_by("its device is idle before the calls, so its host is late: run `weft doctor` on it (CPU affinity, NUMA)")
            .fixed_by("look for what only this rank does: logging, checkpoints, reading data (DataLoader num_workers, pin_memory)"),
        _ => finding.fixed_by(
            "balance the work of the ranks (batches, sequence lengths, experts), and look at the time between their calls with a trace \
             of torch.profiler",
        ),
    }
}
