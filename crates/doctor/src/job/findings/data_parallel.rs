//! `nn.DataParallel` in use: one process copies the model to all GPUs in each step, and one GPU gathers all outputs and gradients.

use super::super::Source;
use super::Case;
use crate::finding::{Finding, Outcome, Severity};

pub(super) const ID: &str = "job-data-parallel";

pub(super) fn run(case: &Case<'_>) -> Vec<Outcome> {
    let Some(counts) = &case.job.data_parallel else {
        // A program that uses Weft's communicators reduces gradients itself.
        if case.job.sources.iter().all(|source| *source == Source::Recorder) {
            return Vec::new();
        }
        return vec![Outcome::Unknown {
            what: "whether the program uses nn.DataParallel".to_owned(),
            needs: "a trace of torch.profiler with functions of the host: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
                .to_owned(),
        }];
    };
    let count = |function: &str| counts.get(function).copied().unwrap_or(0);
    // Broadcast, Scatter and Gather alone may be functions of the program.
    let is_used =
        count("DataParallel.forward") > 0 || count("ReduceAddCoalesced") > 0 && count("Broadcast") > 0;
    if !is_used {
        return vec![Outcome::Fine("the program does not use nn.DataParallel".to_owned())];
    }
    let mut finding = Finding::new(
        ID,
        Severity::Warning,
        "the program uses nn.DataParallel: in each step one process copies the model to all GPUs, and one GPU gathers all outputs and \
         gradients",
    );
    for (function, calls) in counts {
        finding = finding.shown_by(*function, super::super::counted(*calls, "call"));
    }
    let fixed = finding
        .fixed_by("start a process per GPU: torchrun --nproc-per-node=GPUS train.py")
        .fixed_by(
            "in train.py: torch.distributed.init_process_group(\"nccl\"), then model = \
             torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank]), and a DistributedSampler for the data",
        );
    vec![Outcome::Found(fixed)]
}
