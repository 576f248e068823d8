//! Why a job could not be attached to.

use std::io;

/// Why a job could not be attached to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such job here. Look on the host where it runs, or for how it is called: `weft run` prints its name with
    /// `--name`, and `WEFT_DEBUG=INFO` tells its number.
    #[error(
        "there is no job {job} on this host: it is neither a process with a communicator, nor the name of a job (WEFT_JOB), \
         nor the number of a communicator{}", others(*.unseen)
    )]
    NotFound {
        /// What was asked for.
        job: String,
        /// Processes that could not be looked at.
        unseen: usize,
    },
    /// A process that is there, and part of no job.
    #[error(
        "process {pid} is no rank of a job: neither it nor what it started has a communicator or was started by `weft run`"
    )]
    NoRank {
        /// Which.
        pid: u32,
    },
    /// The kernel refuses to show it.
    #[error("the kernel does not let this user look into process {pid}: {denied}")]
    NotPermitted {
        /// The process.
        pid: u32,
        /// Why not, and what to do.
        denied: Denied,
    },
    /// There is no list of processes.
    #[error("cannot list processes: {0}. Is /proc mounted?")]
    NoProcesses(#[source] io::Error),
}

fn others(unseen: usize) -> String {
    match unseen {
        0 => String::new(),
        1 => ". One process of another user could not be looked at: ask as its user, or as root".to_owned(),
        _ => format!(
            ". {unseen} processes of other users could not be looked at: ask as their user, or as root"
        ),
    }
}

/// Why the kernel refuses to show a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// It is somebody else's.
    #[error("it belongs to user {theirs}, and this is user {ours}. Ask as user {theirs}, or as root")]
    User {
        /// Whose it is.
        theirs: u32,
        /// Who asks.
        ours: u32,
    },
    /// It is the same user's, but only a debugger may read its memory.
    #[error(
        "reading its memory needs a debugger's rights{}. Ask as root; or `sysctl kernel.yama.ptrace_scope=0`; in a \
         container, start that with --cap-add SYS_PTRACE; or start the job with WEFT_RECORD_DIR=DIR and use `weft why DIR`",
        as_set(*.scope)
    )]
    Debugger {
        /// What `kernel.yama.ptrace_scope` is, where there is such a thing.
        scope: Option<u32>,
    },
    /// It has more privileges than this user, or has hidden itself.
    #[error(
        "it is protected, as programs are that have privileges of their own or turned off core dumps. Ask as root; in a \
         container, start that with --cap-add SYS_PTRACE"
    )]
    Protected,
}

fn as_set(scope: Option<u32>) -> String {
    scope.map_or_else(String::new, |scope| format!(" (kernel.yama.ptrace_scope is {scope})"))
}
