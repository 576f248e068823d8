//! Calls that take longer than the simulator predicts for the fabric.

use super::super::{SizeRate, size};
use super::{Case, time};
use crate::finding::{Cost, Finding, Outcome, Severity};

pub(super) const ID: &str = "job-below-prediction";

/// Below this, latency decides, which depends on the host more than on the wiring.
const BYTES_MIN: u64 = 1 << 20;
/// With fewer calls, a median means nothing.
const CALLS_MIN: u64 = 5;
/// Without an interval, a call is slow if it takes this many times the prediction.
const SLOWER: f64 = 2.0;

pub(super) fn run(case: &Case<'_>) -> Vec<Outcome> {
    let is_comparable = |rate: &&SizeRate| rate.bytes >= BYTES_MIN && rate.calls >= CALLS_MIN;
    let predicted: Vec<(&SizeRate, f64)> = case
        .summary
        .rates
        .iter()
        .filter(is_comparable)
        .filter_map(|rate| Some((rate, rate.predicted_us?)))
        .collect();
    if predicted.is_empty() {
        // Nothing was asked for without a fabric.
        return Vec::new();
    }
    let clean: Vec<_> = predicted.iter().filter(|(rate, _)| !rate.includes_waiting).collect();
    if clean.is_empty() {
        return vec![Outcome::Unknown {
            what: "whether the bandwidth is what the machine should reach: times include waiting for other ranks".to_owned(),
            needs: "traces of all ranks over the same steps, named together".to_owned(),
        }];
    }
    let mut outcomes = Vec::new();
    for (rate, predicted_us) in clean {
        let bound = rate.predicted_most_us.map_or(predicted_us * SLOWER, |(_, most)| most);
        let name = format!("{} of {} on {} ranks", rate.collective, size(rate.bytes), rate.ranks);
        let words = format!("takes {}, predicted {}", time(rate.time_us), time(*predicted_us));
        if rate.time_us <= bound {
            outcomes.push(Outcome::Fine(format!("{name} {words}")));
        } else {
            outcomes.push(Outcome::Found(finding(rate, &name, &words, bound)));
        }
    }
    outcomes
}

fn finding(rate: &SizeRate, name: &str, words: &str, bound: f64) -> Finding {
    let now_gb_per_s = rate.busbw_gb_per_s;
    let cost = rate.predicted_busbw_gb_per_s.map(|usual_gb_per_s| Cost {
        sentence: format!(
            "{name}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bus bandwidth, traced against predicted)"
        ),
        now_gb_per_s,
        usual_gb_per_s,
    });
    let interval = match rate.predicted_most_us {
        Some((least, most)) => {
            format!("nine of ten machines like this take {} to {}", time(least), time(most))
        }
        None => format!("more than {} is slow", time(bound)),
    };
    Finding::new(ID, Severity::Warning, format!("{name} is slower than this machine should be: it {words}"))
        .shown_by(format!("{} calls", rate.calls), format!("median {}; {interval}", time(rate.time_us)))
        .costing(cost)
        .fixed_by("run `weft doctor` on the hosts of the job, and `weft doctor --log` on a log of the job with NCCL_DEBUG=INFO")
        .fixed_by("if computation runs at the same time, it shares memory and multiprocessors with the collective: compare with \
            `weft doctor --measure`")
}
