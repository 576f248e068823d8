//! What can go wrong in a call, and what to do about it.

use std::time::Duration;

use weftlink_knobs::KnobError;
use weftlink_plan::Refusal;

use weftlink_bootstrap::{Blame, BlameKind, BootstrapError, Failure};

/// Why a communicator or a call failed. [`Error::Misuse`] and [`Error::Refused`] leave the communicator as it was: mend
/// the call and go on. After the others it cannot be used again: leave it and make a new one. [`Error::blamed`] lists the
/// ranks to look at.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call cannot be made like this. Mend it; nothing has been sent.
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
        /// What the system says.
        error: String,
    },
    /// The plan is not right. Mend the plan.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ranks could not meet or share memory.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Ranks make different calls. Mend the program: all ranks make the same calls in the same order.
    #[error(
        "call #{call} differs: rank {rank} calls {mine}, rank {other} {theirs}{}",
        if mine == theirs { ", with other blocks or partners" } else { "" }
    )]
    Mismatch {
        /// The number of the call, from 1; windows and loaded plans count.
        call: u32,
        /// This rank.
        rank: u32,
        /// What it calls.
        mine: String,
        /// A rank that calls something else.
        other: u32,
        /// What that is.
        theirs: String,
    },
    /// A rank did not do its part in time. It is stopped, stuck, dead or slow: look there.
    #[error("call #{call}: rank {rank} waited {:.1} s for {what} ({step})", waited.as_secs_f64())]
    Deadline {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// What it waited for.
        what: String,
        /// The step of the plan.
        step: String,
        /// How long.
        waited: Duration,
        /// The ranks that it waited for in the end, as far as they are known.
        blamed: Vec<Blame>,
    },
    /// A rank left the communicator before the call was over: it returned, failed or panicked. Look there.
    #[error("call #{call}: rank {left} left before it was over, so rank {rank} cannot finish it")]
    Left {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// The rank that left.
        left: u32,
    },
    /// A rank's process ended. Look there; the others can shrink to the survivors.
    #[error("{name} died; rank {rank} had waited {:.1} s in call #{call}, {what}", waited.as_secs_f64())]
    Died {
        /// The number of the call.
        call: u32,
        /// What it was.
        what: String,
        /// This rank.
        rank: u32,
        /// The rank that died.
        died: u32,
        /// The same with its host and process.
        name: String,
        /// How long this rank had waited when it heard.
        waited: Duration,
    },
    /// The kernel does not let this rank read a peer's memory any more. The peer is gone: look there.
    #[error("call #{call}: rank {rank} cannot read the memory of rank {peer}: {error}")]
    Unreadable {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// Whose memory.
        peer: u32,
        /// What the system says.
        error: String,
    },
    /// A connection to a rank on another host is of no more use: it ended, or what it brought was changed on its way. Look at
    /// the rank, and at the network between the two.
    #[error("call #{call}: the connection of rank {rank} to {peer} is broken: {what}")]
    Broken {
        /// The number of the call.
        call: u32,
        /// The rank at one end: this one, or the one that noticed and told.
        rank: u32,
        /// The rank at the other end, with its host and process.
        peer: String,
        /// What is wrong.
        what: String,
        /// The ranks at the ends of the connection, but for the rank that has this error.
        blamed: Vec<Blame>,
    },
    /// The plan of the caller's choice cannot carry the call. Let the library choose, or load another.
    #[error("call #{call}: rank {rank} cannot make it: {what}")]
    Unfit {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// Why.
        what: String,
    },
    /// Another rank gave up first, and says why itself.
    #[error("call #{call}: rank {by} gave up ({reason}), so rank {rank} does{}", said(cause))]
    Aborted {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// Who gave up first.
        by: u32,
        /// Why.
        reason: &'static str,
        /// What it said itself, if that is known here.
        cause: String,
        /// The ranks that it blamed, or else itself.
        blamed: Vec<Blame>,
    },
    /// A rank ended the communicator on purpose: it cancelled a call, or its program aborted it. Ask there why.
    #[error(
        "rank {by} {what}, which ends the communicator for all ranks, so rank {rank} cannot make call #{call}"
    )]
    Cancelled {
        /// The number of the call that this rank was in, or would have made next.
        call: u32,
        /// This rank.
        rank: u32,
        /// Who ended it.
        by: u32,
        /// What it did.
        what: String,
    },
    /// An operation or a buffer of the caller's own panicked in a call that a worker made for it. Mend it.
    #[error("rank {rank} panicked in call #{call}: {what}")]
    Panicked {
        /// The number of the call.
        call: u32,
        /// This rank.
        rank: u32,
        /// What it said.
        what: String,
    },
    /// So many calls wait for the worker of a communicator that no more are taken. Wait for some of them; the communicator
    /// stays as it was.
    #[error("{limit} calls are waiting to be made already; wait for some of them before starting more")]
    QueueFull {
        /// How many may wait.
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
    /// The error of calls that are made after a failure.
    pub(crate) fn again(failure: &Failure) -> Error {
        Error::Failed { why: failure.why.clone(), blamed: failure.blamed.clone() }
    }

    /// The ranks that are the reason for this error, the first one first: where to look. The rank that has the error is among
    /// them if it is the reason itself. Empty where no rank is known to be, and for calls that could not be made like this.
    pub fn blamed(&self) -> Vec<Blame> {
        let one = |rank: &u32, kind| vec![Blame::new(*rank, kind)];
        match self {
            Error::Misuse(_) | Error::Refused(_) | Error::QueueFull { .. } => Vec::new(),
            Error::Bootstrap(error) => error.blamed(),
            Error::Mismatch { other, .. } => one(other, BlameKind::Differs),
            Error::Left { left, .. } => one(left, BlameKind::Left),
            Error::Died { died, .. } => one(died, BlameKind::Died),
            Error::Unreadable { peer, .. } => one(peer, BlameKind::Unreachable),
            Error::System { rank, .. } | Error::Unfit { rank, .. } | Error::Panicked { rank, .. } => {
                one(rank, BlameKind::Failed)
            }
            Error::Cancelled { by, .. } => one(by, BlameKind::Aborted),
            Error::Deadline { blamed, .. }
            | Error::Broken { blamed, .. }
            | Error::Aborted { blamed, .. }
            | Error::Failed { blamed, .. } => blamed.clone(),
        }
    }

    /// The rank whose failure this error only passes on, if it does.
    pub fn aborted_by(&self) -> Option<u32> {
        match self {
            Error::Aborted { by, .. } => Some(*by),
            Error::Bootstrap(BootstrapError::GaveUp { rank, .. }) => Some(*rank as u32),
            _ => None,
        }
    }

    /// A call on a communicator, or part of one, that is not there any more.
    pub(crate) fn gone(why: &str) -> Error {
        Error::Failed { why: why.to_owned(), blamed: Vec::new() }
    }
}

fn said(cause: &str) -> String {
    if cause.is_empty() { String::new() } else { format!(". It said: {cause}") }
}

/// A setting that makes no sense is a call that cannot be made like this.
impl From<KnobError> for Error {
    fn from(error: KnobError) -> Self {
        Error::Misuse(error.to_string())
    }
}
