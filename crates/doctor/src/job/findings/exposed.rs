//! Communication that nothing else hides: the time in which only communication kernels run on a device.

use super::super::RankSummary;
use super::{Case, percent, time};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const ID: &str = "job-exposed";

/// Less is the usual rest: the last bucket of a step has nothing left to hide it.
const SHARE_MIN: f64 = 0.1;

/// Times of one rank, in microseconds.
struct Exposed<'a> {
    rank: &'a RankSummary,
    exposed: f64,
    window: f64,
    communication: f64,
}

impl Exposed<'_> {
    fn share(&self) -> f64 {
        self.exposed / self.window
    }
}

pub(super) fn run(case: &Case<'_>) -> Vec<Outcome> {
    let ranks = &case.summary.ranks;
    if ranks.iter().all(|rank| rank.calls == 0) {
        return Vec::new();
    }
    let of = |rank: &'_ RankSummary| {
        Some((rank.exposed_us?, rank.window_us.filter(|us| *us > 0.0)?, rank.communication_us?))
    };
    let mut all: Vec<Exposed<'_>> = ranks
        .iter()
        .filter_map(|rank| {
            of(rank).map(|(exposed, window, communication)| Exposed { rank, exposed, window, communication })
        })
        .collect();
    all.sort_by(|one, other| one.share().total_cmp(&other.share()));
    let Some(middle) = all.get(all.len().saturating_sub(1) / 2) else {
        return vec![Outcome::Unknown {
            what: "how much of the communication is hidden behind computation".to_owned(),
            needs: "a trace with all kernels: torch.profiler with ProfilerActivity.CUDA, or nsys profile --trace=cuda".to_owned(),
        }];
    };
    let hidden = 1.0 - middle.exposed / middle.communication;
    let words = format!(
        "for {} of the time, only communication runs on {}; {} of its communication is hidden behind other work",
        percent(middle.share()),
        middle.rank.name,
        percent(hidden)
    );
    if middle.share() < SHARE_MIN {
        return vec![Outcome::Fine(words)];
    }
    let mut finding = Finding::new(ID, Severity::Warning, words);
    for one in all.iter().rev().take(4) {
        let waited = match one.rank.waited_us {
            0.0 => String::new(),
            us => format!("; {} of its communication is waiting for other ranks", time(us)),
        };
        let text = format!(
            "exposed {} of {} in {}{waited}",
            time(one.exposed),
            time(one.communication),
            time(one.window)
        );
        finding = finding.shown_by(one.rank.name.clone(), text);
    }
    vec![Outcome::Found(
        finding
            .fixed_by(
                "reduce gradients during the backward pass: DistributedDataParallel does, torch.distributed.all_reduce after \
                 loss.backward() does not; with FSDP, set backward_prefetch=BackwardPrefetch.BACKWARD_PRE and forward_prefetch=True",
            )
            .fixed_by("communicate less often: accumulate gradients over several batches in `with model.no_sync():`")
            .fixed_by("send fewer bytes: reduce gradients in bfloat16 (ddp_comm_hooks.default_hooks.bf16_compress_hook)"),
    )]
}
