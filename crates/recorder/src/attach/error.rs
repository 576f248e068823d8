//! Errors of attaching to a job.

use std::io;

/// Attaching to a job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No such job on this host. Look on the host where it runs, or check its name: `weft run --name` sets it, and `WEFT_DEBUG=INFO`
    /// logs the number of each communicator.
    #[error(
        "there is no job {job} on this host: it is neither a process with a communicator, nor the name of a job (WEFT_JOB), \
         nor the number of a communicator{}", others(*.unseen)
    )]
    NotFound {
        /// The requested job.
        job: String,
        /// Processes that this user may not read.
        unseen: usize,
    },
    /// The process exists, but is part of no job.
    #[error(
        "process {pid} is not part of a job: neither it nor its children have a communicator or were started by `weft run`"
    )]
    NoRank {
        /// The process.
        pid: u32,
    },
    /// The kernel denies access to the process.
    #[error("no permission to read process {pid}: {denied}")]
    NotPermitted {
        /// The process.
        pid: u32,
        /// Why, and what to do.
        denied: AccessDenied,
    },
    /// The processes cannot be listed.
    #[error("cannot list processes: {0}. Is /proc mounted?")]
    NoProcesses(#[source] io::Error),
}

fn others(unseen: usize) -> String {
    match unseen {
        0 => String::new(),
        1 => ". One process of another user could not be read: run this as its user, or as root".to_owned(),
        _ => format!(
            ". {unseen} processes of other users could not be read: run this as their user, or as root"
        ),
    }
}

/// Why the kernel denies access to a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessDenied {
    /// It belongs to another user.
    #[error("it belongs to user {theirs}, and this is user {ours}. Run this as user {theirs}, or as root")]
    User {
        /// Its user.
        theirs: u32,
        /// This user.
        ours: u32,
    },
    /// It belongs to this user, but only a debugger may read its memory.
    #[error(
        "reading its memory needs a debugger's rights{}. Run this as root; or set `sysctl kernel.yama.ptrace_scope=0`; or start \
         the container with --cap-add SYS_PTRACE; or start the job with WEFT_RECORD_DIR=DIR and use `weft why DIR`",
        as_set(*.scope)
    )]
    Debugger {
        /// The value of `kernel.yama.ptrace_scope`, if it exists.
        scope: Option<u32>,
    },
    /// It has more privileges than this user, or is not dumpable.
    #[error(
        "it is protected, because it has privileges of its own or disabled core dumps. Run this as root, or start the \
         container with --cap-add SYS_PTRACE"
    )]
    Protected,
}

fn as_set(scope: Option<u32>) -> String {
    scope.map_or_else(String::new, |scope| format!(" (kernel.yama.ptrace_scope is {scope})"))
}
