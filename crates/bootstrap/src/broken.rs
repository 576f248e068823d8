//! Why a connection between two ranks cannot be used any more.

use rustix::io::Errno;

use super::deadline::Deadline;
use super::error::{BootstrapError, Refusal};

/// Why a connection failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Broken {
    /// The peer closed it.
    Ended,
    /// The deadline has passed.
    Late,
    /// The peer's host refuses the connection: no process listens there.
    Refused,
    /// No address of the peer answers, and why.
    Unreachable(String),
    /// The peer does not belong to this job.
    Stranger(Refusal),
    /// Another rank of this job answered.
    Another,
    /// A frame fails authentication: its sender does not know the secret, or it was changed in transit.
    Forged(String),
    /// Something else.
    Strange(String),
}

impl Broken {
    /// The same as an error about the rank at the other end.
    pub(super) fn of(
        self,
        (rank, pid): (usize, u32),
        by: usize,
        purpose: &str,
        deadline: Deadline,
    ) -> BootstrapError {
        let purpose = purpose.to_owned();
        match self {
            Broken::Ended | Broken::Refused => BootstrapError::Left { rank, pid, purpose },
            Broken::Late => BootstrapError::NoAnswer { rank, pid, purpose, limit: deadline.limit() },
            // Anybody on the way may have changed it, so it says nothing about either end.
            Broken::Stranger(refusal) => changed(rank, pid, by, &refusal.to_string()),
            Broken::Forged(what) => changed(rank, pid, by, &what),
            Broken::Unreachable(what) | Broken::Strange(what) => unusable(rank, pid, by, &what),
            Broken::Another => unusable(rank, pid, by, ANOTHER),
        }
    }
}

/// What became of a rank whose connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerStatus {
    /// Its process has ended.
    Dead,
    /// It lives, or cannot be reached.
    Lost,
}

/// What is said where another rank of this job was found than the one that was looked for.
pub(super) const ANOTHER: &str = "another rank of this job answered";

fn unusable(rank: usize, pid: u32, by: usize, what: &str) -> BootstrapError {
    let what = format!("cannot be used: {what}");
    BootstrapError::Lost { rank, host: String::new(), pid, by, what }
}

fn changed(rank: usize, pid: u32, by: usize, what: &str) -> BootstrapError {
    BootstrapError::Lost { rank, host: String::new(), pid, by, what: does_not_check(what) }
}

/// What is said of a connection that brought something that was changed.
pub(super) fn does_not_check(what: &str) -> String {
    format!("gave bytes that do not check: {what}")
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Broken {
        match error {
            Errno::PIPE | Errno::CONNRESET => Broken::Ended,
            Errno::CONNREFUSED => Broken::Refused,
            other => Broken::Strange(format!("the connection failed: {other}")),
        }
    }
}
