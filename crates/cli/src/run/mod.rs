//! `weft run`: starts the ranks of a job on one or several hosts and supervises them.
//!
//! The arguments (`args`, `hosts`) describe a job. On every host, this one included, a helper (`host`) starts the ranks
//! (`program`, `rank`) and forwards their output (`pump`). Orders and events travel over the helper's standard input and output
//! (`wire`), so that no secret shows in a process list. `launch` drives the `helpers` through one start of the job, `environment`
//! builds the ranks' environment, `gpus` assigns GPUs, `nccl` loads Weft's libnccl.so.2 and `mps` runs the service that lets ranks share one (both by `tool`s of the
//! driver), `signals` forwards Ctrl-C, `output` prints what ranks print, `exit_report` collects the errors
//! of their communicators, `culprit` finds the rank that failed first, `report` prints the result.
//!
//! Three mechanisms keep ranks from outliving their job: the helper kills them when its standard input closes, the kernel kills
//! them when the helper dies, and signals go to the whole process group of a rank.
//! Deliberately absent: a process that a rank starts in a session of its own (a daemon) is not killed.

mod args;
mod culprit;
mod ends;
mod environment;
mod exit_report;
mod gpus;
mod helpers;
mod host;
mod hosts;
mod launch;
mod limits;
mod mps;
mod nccl;
mod output;
mod program;
mod pump;
mod rank;
mod report;
mod secret;
mod signals;
mod tool;
mod wire;

use std::process::ExitCode;
use std::time::Instant;

use weftlink_knobs::unknown;

pub(crate) use args::Args;
pub(crate) use rank::{RANK_COMMAND, RankArgs, rank_main};

use crate::{Failure, screen};
use launch::Cause;
use output::Printer;
use signals::Signals;

impl Args {
    /// Whether this process is the helper of a host.
    pub(crate) fn is_for_a_host(&self) -> bool {
        self.as_host
    }
}

/// `weft run --as-host`.
pub(crate) fn host_main() -> ExitCode {
    host::main()
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut job = args.job()?;
    if job.dry_run {
        return report::dry_run(&job);
    }
    if job.output_dir.is_some() || job.hosts.len() > 1 {
        job.files_limit = limits::raise_files();
    }
    let given = job.given.iter().map(|(name, _)| name.into());
    for (name, near) in unknown(std::env::vars_os().map(|(name, _)| name).chain(given)) {
        let near = near.map_or_else(String::new, |near| format!(". Did you mean {near}?"));
        screen::complain("weft run", &format!("there is no setting {name}; it has no effect{near}"));
    }
    let mut printer =
        Printer::new(job.size, job.tags, job.json, job.output_dir.as_deref()).map_err(Failure::Misuse)?;
    let signals = Signals::watch().map_err(Failure::Finding)?;
    let began = Instant::now();
    let deadline = job.timeout.map(|timeout| began + timeout);
    let mut restarts = 0;
    let attempt = loop {
        let attempt =
            launch::attempt(&job, restarts, deadline, &signals, &mut printer).map_err(Failure::Finding)?;
        let again = matches!(attempt.cause, Some(Cause::Rank(_) | Cause::Host { .. }))
            && restarts < job.restarts_max
            && signals.ending().is_none()
            && deadline.is_none_or(|deadline| Instant::now() < deadline);
        if !again {
            break attempt;
        }
        restarts += 1;
        if let Some(why) = report::failure(&job, &attempt, None, &printer) {
            let again = format!("starting all ranks again, {restarts} of at most {} times", job.restarts_max);
            screen::complain("weft run", &why);
            screen::complain("weft run", &again);
        }
        printer.forget();
    };
    let why = report::failure(&job, &attempt, signals.ending(), &printer);
    let code = report::exit_code(&attempt);
    if job.nccl.is_some() && !attempt.uses_nccl && attempt.records.iter().any(|record| record.end.is_some()) {
        screen::complain("weft run", nccl::ADVICE);
    }
    if let Some(Cause::Output(error)) = attempt.cause {
        return Err(Failure::Output(error));
    }
    if job.json {
        crate::print_json(&report::document(
            &job,
            &attempt,
            restarts,
            began.elapsed(),
            why.as_deref(),
            code,
        ))?;
    }
    match why {
        Some(why) => {
            screen::complain("weft run", &why);
            Err(Failure::ExitCode(code))
        }
        None => Ok(()),
    }
}
