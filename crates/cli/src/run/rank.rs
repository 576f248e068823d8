//! `weft run-rank PARENT CPUS FILES PROGRAM ...`: the last step before a rank's own program, in its own process.
//!
//! It asks the kernel to be killed with its parent, binds itself, and becomes the program. All of that is kept by the
//! program, and none of it needs unsafe code between fork and exec.

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

/// What a shell answers when there is a program, but it cannot be run.
const CANNOT_RUN: u8 = 126;

/// What the hidden command is given.
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
        .map_err(|error| format!("cannot be tied to its parent: {error}"))?;
    // A parent that was gone before the kernel was asked sends no signal any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) != Some(args.parent) {
        return Err("whoever started this rank has ended".into());
    }
    if args.cpus != ANYWHERE {
        let list = cpu_list(&args.cpus).ok_or_else(|| format!("{:?} is no list of cores", args.cpus))?;
        let mut cpus = CpuSet::new();
        list.into_iter().filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
        sched_setaffinity(None, &cpus)
            .map_err(|error| format!("cannot be bound to cores {}: {error}; try --bind none", args.cpus))?;
    }
    limits::lower_files(&args.files)?;
    let [file, name, arguments @ ..] = args.program.as_slice() else {
        return Err("there is no program to run".into());
    };
    let error = Command::new(file).arg0(name).args(arguments).exec();
    let advice = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOEXEC) => {
            "; if it is a script, its first line must name its interpreter, as #!/bin/sh"
        }
        Some(rustix::io::Errno::NOENT) => {
            "; the interpreter that its first line names, or its loader, is not there"
        }
        _ => "",
    };
    Err(format!("cannot run {file}: {error}{advice}"))
}
