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
    #[arg(short = 'a', long, hide = true, num_args = 0..=1)]
    average: Option<Option<String>>,
    #[arg(short = 'p', long = "parallel_init", hide = true, num_args = 0..=1)]
    parallel_init: Option<Option<String>>,
    #[arg(short = 'G', long, hide = true, num_args = 0..=1)]
    cudagraph: Option<Option<String>>,
}

impl Elsewhere {
    /// Refuses the first of them that was given.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        const RANKS: &str = "ranks are given by -n; each is a process (or a thread with --threads)";
        let options = [
            (&self.ngpus, "-g", RANKS),
            (&self.nthreads, "-t", RANKS),
            (
                &self.blocking,
                "-z",
                "a choice between blocking and other calls is not there yet: all are blocking",
            ),
            (&self.agg_iters, "-m", "calls put together into one are not there yet"),
            (
                &self.average,
                "-a",
                "a choice of the time to show is not there yet: it is that of the slowest rank; --json has all",
            ),
            (&self.parallel_init, "-p", "a choice of how ranks start is not there yet: all start at once"),
            (&self.cudagraph, "-G", "CUDA graphs are not there yet"),
        ];
        match options.into_iter().find(|(given, ..)| given.is_some()) {
            Some((_, option, told)) => Err(Failure::misuse(anyhow!("{option}: {told}"))),
            None => Ok(()),
        }
    }
}
