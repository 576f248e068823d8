//! Options of nccl-tests that `weft bench` does not have. People type them out of habit, so each is answered by a
//! sentence instead of being unknown. They are not shown in the help.

use anyhow::anyhow;

use crate::Failure;

#[derive(clap::Args)]
pub(super) struct Elsewhere {
    #[arg(short = 'g', long, hide = true, num_args = 0..=1)]
    ngpus: Option<Option<String>>,
    #[arg(short = 't', long, hide = true, num_args = 0..=1)]
    nthreads: Option<Option<String>>,
    #[arg(short = 'z', long, hide = true, num_args = 0..=1)]
    blocking: Option<Option<String>>,
    #[arg(short = 'm', long = "agg_iters", hide = true, num_args = 0..=1)]
    agg_iters: Option<Option<String>>,
    #[arg(short = 'N', long = "run_cycles", hide = true, num_args = 0..=1)]
    run_cycles: Option<Option<String>>,
    #[arg(short = 'p', long = "parallel_init", hide = true, num_args = 0..=1)]
    parallel_init: Option<Option<String>>,
    #[arg(short = 'G', long, hide = true, num_args = 0..=1)]
    cudagraph: Option<Option<String>>,
    #[arg(short = 'y', long = "stream_null", hide = true, num_args = 0..=1)]
    stream_null: Option<Option<String>>,
    #[arg(short = 'C', long = "report_cputime", hide = true, num_args = 0..=1)]
    report_cputime: Option<Option<String>>,
    #[arg(short = 'S', long = "report_timestamps", hide = true, num_args = 0..=1)]
    report_timestamps: Option<Option<String>>,
    #[arg(short = 'x', long = "cta_policy", hide = true, num_args = 0..=1)]
    cta_policy: Option<Option<String>>,
    #[arg(short = 'D', long = "device_implementation", hide = true, num_args = 0..=1)]
    device_implementation: Option<Option<String>>,
    #[arg(short = 'V', long = "device_cta_count", hide = true, num_args = 0..=1)]
    device_cta_count: Option<Option<String>>,
    #[arg(short = 'M', long = "memory_report", hide = true, num_args = 0..=1)]
    memory_report: Option<Option<String>>,
    #[arg(short = 'u', long, hide = true, num_args = 0..=1)]
    unalign: Option<Option<String>>,
    #[arg(short = 'I', long = "per_iteration", hide = true, num_args = 0..=1)]
    per_iteration: Option<Option<String>>,
}

impl Elsewhere {
    /// Refuses the first of them that was given.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        const RANKS: &str = "ranks are given by -n; each is a process (or a thread with --threads)";
        const GPUS: &str = "means something on GPUs only";
        let options = [
            (&self.ngpus, "-g", RANKS),
            (&self.nthreads, "-t", RANKS),
            (&self.blocking, "-z", "all calls are blocking on a CPU; a choice means something on GPUs only"),
            (&self.agg_iters, "-m", "calls put together into one mean something on GPUs only"),
            (&self.run_cycles, "-N", "a run is repeated by running it again"),
            (&self.parallel_init, "-p", "ranks always start at once; a choice means something on GPUs only"),
            (&self.cudagraph, "-G", "CUDA graphs mean something on GPUs only"),
            (&self.stream_null, "-y", GPUS),
            (
                &self.report_cputime,
                "-C",
                "the time of a call is the CPU's; a choice means something on GPUs only",
            ),
            (&self.report_timestamps, "-S", "rows have no time of day; -J FILE says when the run began"),
            (&self.cta_policy, "-x", GPUS),
            (&self.device_implementation, "-D", GPUS),
            (&self.device_cta_count, "-V", GPUS),
            (&self.memory_report, "-M", GPUS),
            (
                &self.unalign,
                "-u",
                "buffers always begin at a page, or at a pair of cache lines if they are small",
            ),
            (&self.per_iteration, "-I", "calls are timed one by one with --stats"),
        ];
        match options.into_iter().find(|(given, ..)| given.is_some()) {
            Some((_, option, told)) => Err(Failure::misuse(anyhow!("{option}: {told}"))),
            None => Ok(()),
        }
    }
}
