//! The job that the arguments describe: its ranks and cores, and options that contradict each other.

use std::path::Path;

use weftlink_comm::bootstrap::Environment;
use weftlink_fabric::bytes::Bytes;
use weftlink_knobs::Knobs;

use super::{Args, Bind, LOOP_SECONDS, RANKS_MAX, misuse};
use crate::bench::job::Job;
use crate::bench::names::What;
use crate::bench::{pairs, slots, spawn, tune};
use crate::{Failure, counted};

const WARMUP_ITERS: u32 = 5;
const TOUR_RANKS_MAX: usize = 8;

impl Args {
    /// The job. The launcher determines the number of ranks.
    pub(in crate::bench) fn job(&self, launched: Option<&Environment>) -> Result<Job, Failure> {
        self.elsewhere.refuse()?;
        if self.cudagraph.is_some() {
            return misuse("-G: CUDA graphs apply to GPUs only".to_owned());
        }
        // The ranks read the settings, too; a wrong one must fail before anything is printed.
        let knobs = Knobs::from_environment().map_err(Failure::misuse)?;
        self.fits_launcher(launched)?;
        for (option, is_given) in
            [("--output", self.output.is_some()), ("--collectives", !self.collectives.is_empty())]
        {
            if is_given && !self.tune {
                return misuse(format!("{option} requires --tune"));
            }
        }
        let plan = self.plan.as_ref().map(|file| crate::plan::read(file)).transpose()?;
        let cores = spawn::allowed_cores().map_err(Failure::Finding)?;
        let given = self.ranks.or(launched.map(|environment| environment.size as u32));
        let ranks = match (&plan, given) {
            (Some(plan), Some(ranks)) if plan.ranks != ranks => {
                let (name, for_ranks) = (&plan.name, counted(plan.ranks, "rank"));
                let given = if self.ranks.is_some() { "-n " } else { "" };
                return misuse(format!("plan {name:?} is for {for_ranks}, not for {given}{ranks}"));
            }
            (Some(plan), None) => plan.ranks as usize,
            (_, Some(ranks)) => ranks as usize,
            (_, None) if self.is_tour() => cores.len().clamp(2, TOUR_RANKS_MAX),
            (_, None) => 2,
        };
        if let Some(path) = &knobs.tuning {
            check_tuning_file(path, ranks)?;
        }
        let enough = ranks <= cores.len();
        let own = if enough && launched.is_none() { Bind::Core } else { Bind::None };
        let bind = self.bind.unwrap_or(own) == Bind::Core;
        if bind && !enough {
            let have = cores.len();
            return misuse(format!(
                "--bind core needs a core for each of {ranks} ranks; this host has {have}"
            ));
        }
        let mut job = Job {
            cores: bind.then(|| cores[..ranks].to_vec()),
            spin: enough,
            ..self.job_without_rows(ranks)
        };
        match self.collective {
            Some(What::P2p) => self.pairs(&mut job)?,
            _ if self.tune => {
                self.refuse(
                    &["-b", "-e", "--iters"],
                    "--tune, which takes -n, -b, -e, --iters and --collectives",
                )?;
                tune::rows(&mut job, &self.collectives, self.smallest(), self.largest())?;
            }
            _ => self.rows(&mut job, plan)?,
        }
        let here = launched.and_then(|environment| environment.local_size).unwrap_or(job.ranks);
        enough_memory(&job, here)?;
        Ok(job)
    }

    /// A job that measures nothing yet.
    pub(super) fn job_without_rows(&self, ranks: usize) -> Job {
        Job {
            ranks,
            on_gpu: false,
            cases: Vec::new(),
            rows: Vec::new(),
            plans: Vec::new(),
            plan_hashes: Vec::new(),
            orders: Vec::new(),
            pairs: None,
            warmup: self.warmup_iters.unwrap_or(WARMUP_ITERS),
            iterations: self.iters,
            loop_seconds: LOOP_SECONDS,
            check: self.check.unwrap_or(true),
            stats: self.stats,
            in_place: true,
            trace: self.trace.is_some(),
            cache_bytes: slots::cache_bytes(),
            deadline: self.deadline,
            cores: None,
            spin: false,
            deterministic: self.deterministic,
        }
    }

    /// Refuses options that contradict the launcher.
    fn fits_launcher(&self, launched: Option<&Environment>) -> Result<(), Failure> {
        let Some(environment) = launched else { return Ok(()) };
        let (rank, size) = (environment.rank, environment.size);
        let told = format!("{} started this process as rank {rank} of {size}", environment.launcher.name());
        let instead = "or add --launcher none to start other ranks";
        match self.ranks {
            Some(ranks) if ranks as usize != size => {
                misuse(format!("-n {ranks}, but {told}; omit -n, {instead}"))
            }
            _ if size > RANKS_MAX as usize => {
                misuse(format!("{told}; weft bench takes up to {RANKS_MAX} ranks"))
            }
            _ if self.threads => misuse(format!("--threads, but {told}; omit it, {instead}")),
            _ if self.bind == Some(Bind::Core) => misuse(format!(
                "--bind core, but {told}, and the launcher places the ranks; omit it, {instead}"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses options that do not apply: all that change what is measured, except those in `but`.
    pub(super) fn refuse(&self, but: &[&str], to: &str) -> Result<(), Failure> {
        let given = [
            ("-b", self.smallest().is_some()),
            ("-e", self.largest().is_some()),
            ("-f", self.stepfactor.is_some()),
            ("-i", self.stepbytes.is_some()),
            ("-R", self.local_register.is_some()),
            ("--cache", self.cache.is_some()),
            ("-w", self.warmup_iters.is_some()),
            ("--iters", self.iters.is_some()),
            ("--stats", self.stats.is_some()),
            ("-c", self.check.is_some()),
            ("-o", self.op.is_some()),
            ("-d", self.datatype.is_some()),
            ("-r", self.root.is_some()),
            ("-a", self.average.is_some()),
            ("--algorithm", self.algorithm.is_some()),
            ("--plan", self.plan.is_some()),
            ("--deterministic", self.deterministic),
            ("--min-bandwidth", self.min_bandwidth.is_some()),
            ("--json", self.json),
            ("-J", self.json_file.is_some()),
            ("--csv", self.csv.is_some()),
            ("--plot", self.plot.is_some()),
            ("--trace", self.trace.is_some()),
        ];
        match given.into_iter().find(|(option, is_given)| *is_given && !but.contains(option)) {
            Some((option, _)) => misuse(format!("{option} does not apply to {to}")),
            None => Ok(()),
        }
    }
}

/// Refuses a job whose buffers do not fit into the free memory of this host, which runs `here` ranks.
fn enough_memory(job: &Job, here: usize) -> Result<(), Failure> {
    let of_all = slots::bytes_needed(job).saturating_add(pairs::bytes_needed(job));
    let needed = of_all / job.ranks as u64 * here.min(job.ranks) as u64;
    match weftlink_shm::available::memory_bytes() {
        Some(left) if needed > left => misuse(format!(
            "the buffers of {} need {}, and {} are free; choose smaller sizes",
            counted(here, "rank"),
            Bytes(needed),
            Bytes(left)
        )),
        _ => Ok(()),
    }
}

/// Refuses a file of `WEFT_TUNING` that the ranks would refuse.
fn check_tuning_file(path: &Path, ranks: usize) -> Result<(), Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Misuse(anyhow::anyhow!("cannot read WEFT_TUNING={name}: {error}")))?;
    weftlink_comm::check_tuning(&text, ranks)
        .map_err(|error| Failure::Misuse(anyhow::anyhow!("WEFT_TUNING={name}: {error}")))
}
