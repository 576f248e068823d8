//! Options of nccl-tests that `weft bench` does not have. Each gets an explanation instead of "unknown option". The help does not
//! show them.

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
    /// Refuses the first that was given.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        const RANKS: &str = "-n sets the number of ranks; each is a process (or a thread with --threads)";
        const GPUS: &str = "applies to GPUs only";
        let options = [
            (&self.ngpus, "-g", RANKS),
            (&self.nthreads, "-t", RANKS),
            (&self.blocking, "-z", "calls on a CPU always block; the option applies to GPUs only"),
            (&self.agg_iters, "-m", "aggregation of calls applies to GPUs only"),
            (&self.run_cycles, "-N", "there are no cycles; run the command again"),
            (&self.parallel_init, "-p", "ranks always start in parallel; the option applies to GPUs only"),
            (&self.stream_null, "-y", GPUS),
            (&self.report_cputime, "-C", "times are CPU times already; the option applies to GPUs only"),
            (&self.report_timestamps, "-S", "rows have no timestamps; -J FILE records when the run began"),
            (&self.cta_policy, "-x", GPUS),
            (&self.device_implementation, "-D", GPUS),
            (&self.device_cta_count, "-V", GPUS),
            (&self.memory_report, "-M", GPUS),
            (&self.unalign, "-u", "buffers are always aligned, to a page or (small ones) to 128 bytes"),
            (&self.per_iteration, "-I", "use --stats to time calls one by one"),
        ];
        match options.into_iter().find(|(given, ..)| given.is_some()) {
            Some((_, option, why)) => Err(Failure::misuse(anyhow!("{option}: {why}"))),
            None => Ok(()),
        }
    }
}
