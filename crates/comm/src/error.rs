//! What can go wrong in a call, and what to do about it.

use std::time::Duration;

use weftlink_knobs::KnobError;
use weftlink_plan::Refusal;

use weftlink_bootstrap::{Blame, BlameKind, BootstrapError, Failure};

/// Why a communicator or a call failed. After [`Error::Misuse`], [`Error::Refused`] and [`Error::QueueFull`] the communicator
/// is as before: fix the call and continue. After the others it cannot be used again: [shrink](crate::Communicator::shrink) it or
/// make a new one. [`Error::blamed`] lists the ranks to look at.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments of the call are wrong. Fix the call; nothing has been sent.
    #[error("{0}")]
    Misuse(String),
    /// The system refused a thread or a descriptor that Weft needs. Raise the limit (`ulimit -u`, `ulimit -n`), or use fewer
    /// ranks on this host.
    #[error(
        "rank {rank} cannot {what}: {error}. Raise the limit on threads or open files, or use fewer ranks per host"
    )]
    System {
        /// This rank.
        rank: u32,
        /// What it could not do.
        what: &'static str,
        /// The system's error.
        error: String,
    },
    /// The verifier refused the plan. Fix the plan.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ranks could not meet or share memory.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Ranks make different calls. Fix the program: all ranks make the same calls in the same order.
    #[error(
        "call #{call} does not match: rank {rank} calls {mine}, rank {} calls {theirs}{}",
        other.rank,
        if mine == theirs { ", with different counts or partners" } else { "" }
    )]
    Mismatch {
        /// The number of the call, from 1; allocating a window and loading a plan count as calls.
        call: u32,
        /// This rank.
        rank: u32,
        /// The call of this rank.
        mine: String,
        /// A rank that makes another call, with its host and process.
        other: Blame,
        /// The call of that rank.
        theirs: String,
    },
    /// A rank did not do its part in time. It is stopped, stuck, dead or slow: look there.
    #[error("call #{call} timed out after {:.1} s: rank {rank} was waiting for {what} ({step})", waited.as_secs_f64())]
    Deadline {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// What it waited for.
        what: String,
        /// The step of the plan.
        step: String,
        /// How long it waited.
        waited: Duration,
        /// The ranks that the whole chain of waits depends on, if they are known.
        blamed: Vec<Blame>,
    },
    /// A rank left the communicator before the call was over: its program returned, failed or panicked. Look there.
    #[error("call #{call} failed on rank {rank}: rank {} left the communicator before the call was over", left.rank)]
    Left {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// The rank that left, with its host and process.
        left: Blame,
    },
    /// A rank's process ended. Look there; the others can shrink to the survivors.
    #[error(
        "{died} died during call #{call}, {what}; rank {rank} had waited {:.1} s. To continue without it, call shrink()",
        waited.as_secs_f64()
    )]
    Died {
        /// The number of the call.
        call: u32,
        /// The call.
        what: String,
        /// This rank.
        rank: u32,
        /// The rank that died, with its host and process.
        died: Blame,
        /// How long this rank had waited when it learned of the death.
        waited: Duration,
    },
    /// The kernel does not let this rank read a peer's memory. With `errno` `ESRCH` the peer is gone: look there. Otherwise it may
    /// live: look at what restricts this process (seccomp, ptrace scope, another user).
    #[error("call #{call}: rank {rank} cannot read the memory of rank {}: {error}", peer.rank)]
    Unreadable {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// The rank whose memory it is, with its host and process.
        peer: Blame,
        /// The system's error: its number, and in words.
        errno: i32,
        /// See `errno`.
        error: String,
    },
    /// A connection to a rank on another host was closed, or data was corrupted on the way. Look at that rank, and at the
    /// network between the two.
    #[error("call #{call}: the connection of rank {rank} to {peer} is broken: {what}")]
    Broken {
        /// The number of the call.
        call: u32,
        /// The rank at one end: this one, or the one that reported it.
        rank: u32,
        /// The rank at the other end, with its host and process.
        peer: String,
        /// What happened to the connection.
        what: String,
        /// The ranks at the ends of the connection, without the rank that has this error.
        blamed: Vec<Blame>,
    },
    /// The plan that the caller chose cannot carry the call. Let the communicator choose, or load another plan.
    #[error("call #{call}: rank {rank} cannot run it: {what}")]
    Unfit {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// Why not.
        what: String,
    },
    /// Another rank aborted the call first. Look at its error.
    #[error("call #{call} aborted by rank {by}{}", aborted_because(reason, cause))]
    Aborted {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// The rank that aborted first.
        by: u32,
        /// Why, in a few words.
        reason: &'static str,
        /// That rank's error, if it is known here.
        cause: String,
        /// The ranks that it blamed, or else itself.
        blamed: Vec<Blame>,
    },
    /// A rank ended the communicator on purpose: it cancelled a call, or its program aborted it. Look there for the reason.
    #[error("call #{call} cancelled: rank {} {what} (this ends the communicator on all ranks)", by.rank)]
    Cancelled {
        /// The number of the call that this rank was in, or would have made next.
        call: u32,
        /// This rank.
        rank: u32,
        /// The rank that ended it, with its host and process.
        by: Blame,
        /// What it did.
        what: String,
    },
    /// The caller's operation or buffer panicked in a call that a worker made. Fix it.
    #[error("rank {rank} panicked in call #{call}: {what}")]
    Panicked {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// The panic's message.
        what: String,
    },
    /// The queue is full. Wait for some of its operations; the communicator is as before.
    #[error("{limit} operations are pending already; wait for some of them before starting more")]
    QueueFull {
        /// How many may be pending.
        limit: usize,
    },
    /// An earlier call failed.
    #[error("this communicator failed before: {why}; make a new one")]
    Failed {
        /// The earlier error.
        why: String,
        /// The ranks that it blamed.
        blamed: Vec<Blame>,
    },
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        Failure { why: error.to_string(), blamed: error.blamed(), aborted_by: error.aborted_by() }
    }
}

impl Error {
    /// The error of calls after a failure.
    pub(crate) fn again(failure: &Failure) -> Error {
        Error::Failed { why: failure.why.clone(), blamed: failure.blamed.clone() }
    }

    /// The ranks that caused this error, the first cause first: where to look. Each has its process and, where ranks are on several
    /// hosts, its host; only a rank that failed by itself ([`Error::System`], [`Error::Unfit`], [`Error::Panicked`]) is named by its
    /// number alone. The rank that has the error is among them if it is the cause itself. Empty if no rank is known to be, and for misuse.
    pub fn blamed(&self) -> Vec<Blame> {
        match self {
            Error::Misuse(_) | Error::Refused(_) | Error::QueueFull { .. } => Vec::new(),
            Error::Bootstrap(error) => error.blamed(),
            Error::Mismatch { other: blame, .. }
            | Error::Left { left: blame, .. }
            | Error::Died { died: blame, .. }
            | Error::Unreadable { peer: blame, .. }
            | Error::Cancelled { by: blame, .. } => vec![blame.clone()],
            Error::System { rank, .. } | Error::Unfit { rank, .. } | Error::Panicked { rank, .. } => {
                vec![Blame::new(*rank, BlameKind::Failed)]
            }
            Error::Deadline { blamed, .. }
            | Error::Broken { blamed, .. }
            | Error::Aborted { blamed, .. }
            | Error::Failed { blamed, .. } => blamed.clone(),
        }
    }

    /// The rank whose failure this error reports, if it is another rank's.
    pub fn aborted_by(&self) -> Option<u32> {
        match self {
            Error::Aborted { by, .. } => Some(*by),
            Error::Bootstrap(BootstrapError::GaveUp { rank, .. }) => Some(*rank as u32),
            _ => None,
        }
    }

    /// A call on something that no longer exists.
    pub(crate) fn gone(why: &str) -> Error {
        Error::Failed { why: why.to_owned(), blamed: Vec::new() }
    }
}

fn aborted_because(reason: &str, cause: &str) -> String {
    if cause.is_empty() { format!(": {reason}") } else { format!(" ({reason}): {cause}") }
}

/// An invalid setting is a misuse.
impl From<KnobError> for Error {
    fn from(error: KnobError) -> Self {
        Error::Misuse(error.to_string())
    }
}
