//! `weft run-rank PARENT CPUS FILES PROGRAM ...`: the process that becomes a rank's program.
//!
//! It asks the kernel to kill it with its parent, binds itself to cores and executes the program, which keeps both. None of
//! this needs unsafe code between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use weftlink_probe::cpu_list;

use super::limits;

/// The hidden command.
pub(crate) const RANK_COMMAND: &str = "run-rank";
/// In place of a list of hardware threads: not bound.
pub(super) const ANYWHERE: &str = "anywhere";

/// The exit code of a shell for a program that exists but cannot be executed.
const CANNOT_RUN: u8 = 126;

/// The arguments of the hidden command.
#[derive(clap::Args)]
pub(crate) struct RankArgs {
    parent: u32,
    cpus: String,
    files: String,
    /// The program's file, then its name and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, num_args = 2..)]
    program: Vec<String>,
}

/// Becomes the program; returns only if that fails.
pub(crate) fn rank_main(args: &RankArgs) -> ExitCode {
    let error = match become_rank(args) {
        Err(error) => error,
        Ok(never) => match never {},
    };
    eprintln!("weft run: {error}");
    ExitCode::from(CANNOT_RUN)
}

fn become_rank(args: &RankArgs) -> Result<std::convert::Infallible, String> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot ask the kernel for a signal at the death of the parent: {error}"))?;
    // The parent may have died before this request.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(args.parent) {
        return Err("the parent process has exited".into());
    }
    if args.cpus != ANYWHERE {
        let list = cpu_list(&args.cpus).ok_or_else(|| format!("{:?} is not a list of cores", args.cpus))?;
        let mut cpus = CpuSet::new();
        list.into_iter().filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
        sched_setaffinity(None, &cpus)
            .map_err(|error| format!("cannot bind to cores {}: {error}; try --bind none", args.cpus))?;
    }
    limits::lower_files(&args.files)?;
    let [file, name, arguments @ ..] = args.program.as_slice() else {
        return Err("there is no program to run".into());
    };
    let error = Command::new(file).arg0(name).args(arguments).exec();
    let advice = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOEXEC) => {
            "; the first line of a script must name its interpreter, such as #!/bin/sh"
        }
        Some(rustix::io::Errno::NOENT) => {
            "; its interpreter (named in the first line) or its loader is missing"
        }
        _ => "",
    };
    Err(format!("cannot run {file}: {error}{advice}"))
}
