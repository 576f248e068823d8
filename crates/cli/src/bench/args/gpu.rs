//! The job of `weft bench --gpu`, and options that it refuses.

use weftlink_comm::bootstrap::Environment;
use weftlink_knobs::Knobs;

use super::{Args, misuse};
use crate::bench::job::Job;
use crate::bench::names::What;
use crate::{Failure, counted};

/// Each rank has a hardware queue of the GPU.
const RANKS_MAX: usize = weftlink_cuda::queues::RANKS_MAX;
const GRAPH_LAUNCHES: u32 = 10;

impl Args {
    /// The number of the GPU.
    pub(in crate::bench) fn device(&self) -> usize {
        self.device.unwrap_or(0)
    }

    /// How often a graph of calls is launched; 0 if calls are launched one by one.
    pub(in crate::bench) fn graph_launches(&self) -> u32 {
        self.cudagraph.unwrap_or(GRAPH_LAUNCHES)
    }

    /// The job on a GPU.
    pub(in crate::bench) fn gpu_job(&self, launched: Option<&Environment>) -> Result<Job, Failure> {
        self.elsewhere.refuse()?;
        let knobs = Knobs::from_environment().map_err(Failure::misuse)?;
        self.refuse_on_gpu()?;
        if let Some(Environment { launcher, rank, size, .. }) = launched {
            return misuse(format!(
                "--gpu runs all ranks in this process, but {} started it as rank {rank} of {size}; start it without, or add --launcher none",
                launcher.name()
            ));
        }
        if knobs.tuning.is_some() {
            return misuse("WEFT_TUNING is for CPU ranks: unset it, or omit --gpu".to_owned());
        }
        let plan = self.plan.as_ref().map(|file| crate::plan::read(file)).transpose()?;
        let ranks = match (&plan, self.ranks) {
            (Some(plan), Some(ranks)) if plan.ranks != ranks => {
                let (name, for_ranks) = (&plan.name, counted(plan.ranks, "rank"));
                return misuse(format!("plan {name:?} is for {for_ranks}, not for -n {ranks}"));
            }
            (Some(plan), _) => plan.ranks as usize,
            (None, given) => given.unwrap_or(2) as usize,
        };
        if ranks > RANKS_MAX {
            return misuse(format!(
                "--gpu takes up to {RANKS_MAX} ranks: each needs a hardware queue of the GPU"
            ));
        }
        let (calls, launches) = (self.iters.unwrap_or(1), self.graph_launches().max(1));
        if calls.checked_mul(launches).is_none() {
            return misuse(format!(
                "--iters {calls} with {launches} launches (-G) is more than {} timed calls; lower one of them",
                u32::MAX
            ));
        }
        let mut job = Job { on_gpu: true, ..self.job_without_rows(ranks) };
        self.rows(&mut job, plan)?;
        Ok(job)
    }

    /// Refuses options for CPU ranks.
    fn refuse_on_gpu(&self) -> Result<(), Failure> {
        let given = [
            (
                "-R",
                self.local_register.is_some(),
                "ranks of one process access each other's device memory anyway",
            ),
            ("--cache", self.cache.is_some(), "calls use the same buffers again"),
            ("--stats", self.stats.is_some(), "calls of a graph are not timed one by one"),
            ("-a", self.average.is_some(), "the GPU's clock times all ranks together"),
            ("--deterministic", self.deterministic, "plans are not chosen by the order of their reductions"),
            ("--trace", self.trace.is_some(), "kernels record no steps"),
            ("--tune", self.tune, "tuning tables are for CPU ranks"),
            ("--collectives", !self.collectives.is_empty(), "it requires --tune, which is for CPU ranks"),
            ("--output", self.output.is_some(), "it requires --tune, which is for CPU ranks"),
            ("--threads", self.threads, "ranks on a GPU are threads already"),
            (
                "--bind",
                self.bind.is_some(),
                "ranks are threads of this process, and the GPU runs their calls",
            ),
            ("p2p", self.collective == Some(What::P2p), "pairs are measured between CPU ranks; use sendrecv"),
        ];
        if let Some((option, _, why)) = given.into_iter().find(|(_, is_given, _)| *is_given) {
            return misuse(format!("{option} does not apply to --gpu: {why}"));
        }
        if self.collective.is_none() && self.plan.is_none() {
            return misuse("--gpu needs a collective: weft bench all-reduce --gpu".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::gpu_job;

    #[test]
    fn options_of_cpu_ranks_are_refused() {
        for (line, says) in [
            ("--gpu", "needs a collective: weft bench all-reduce --gpu"),
            ("all-reduce --gpu -R 2", "-R does not apply to --gpu"),
            ("all-reduce --gpu --cache both", "--cache does not apply to --gpu"),
            ("all-reduce --gpu --stats", "not timed one by one"),
            ("all-reduce --gpu -a 1", "-a does not apply to --gpu"),
            ("all-reduce --gpu --deterministic", "--deterministic does not apply"),
            ("all-reduce --gpu --trace x", "kernels record no steps"),
            ("--gpu --tune", "tuning tables are for CPU ranks"),
            ("all-reduce --gpu --threads", "threads already"),
            ("all-reduce --gpu --bind none", "--bind does not apply"),
            ("p2p --gpu", "use sendrecv"),
            ("all-reduce --gpu -n 33", "up to 32 ranks"),
            ("all-reduce --gpu --iters 500000000", "more than 4294967295 timed calls"),
            ("all-reduce --gpu -o mulsum -d complex128", "mulsum of complex128 is not supported on GPUs"),
            ("all-reduce --gpu --algorithm nvls", "a switch"),
            ("all-reduce --gpu -g 1", "-g: -n sets the number of ranks"),
        ] {
            let said = gpu_job(line).unwrap_err();
            assert!(said.contains(says), "{line}: {said}");
        }
    }

    #[test]
    fn rows_are_those_of_cpu_ranks() {
        let job = gpu_job("all-reduce --gpu -n 4 --sizes 8..1GiB").unwrap();
        assert_eq!((job.ranks, job.on_gpu, job.rows.len()), (4, true, 10));
        assert_eq!((job.warmup, job.iterations), (5, None));
        let job = gpu_job("all-reduce --gpu --size 64 -o all -d all --iters 3 -w 1 -c 0").unwrap();
        assert!(job.cases.iter().any(|case| case.op.is_some_and(|op| op.name() == "mulsum")));
        assert_eq!((job.warmup, job.iterations, job.check), (1, Some(3), false));
        assert!(job.cases.len() > 50);
        assert_eq!(gpu_job("all-reduce --gpu --iters 4294967295 -G 0").unwrap().iterations, Some(u32::MAX));
        // It writes into the buffers of other ranks, which device memory allows.
        assert_eq!(gpu_job("all-reduce --gpu --algorithm two-shot").unwrap().plans.len(), 1);
        assert_eq!(gpu_job("barrier --gpu").unwrap().rows, [(0, 0)]);
    }
}
