//! Which ranks a failure blames, as data.
//!
//! Every error of a communicator lists the ranks to look at (`Error::blamed`). A rank that aborts sends
//! its list with the abort message, so that the other ranks blame the root cause and not the rank that noticed it. The same
//! list goes into the flight recorder's record, and to `weft run`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rank that is the reason for a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Blame {
    /// The rank, as its communicator numbers it.
    pub rank: u32,
    /// What it did, or what happened to it.
    pub kind: BlameKind,
    /// Its host, where ranks are on several hosts and it is known.
    #[serde(default)]
    pub host: Option<String>,
    /// Its process, where it is known.
    #[serde(default)]
    pub pid: Option<u32>,
}

/// Why a rank is blamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BlameKind {
    /// Its process ended.
    Died,
    /// It did not do its part before the deadline: it is stopped, stuck or slow, or it never joined.
    Late,
    /// It made another call than the rank that blames it.
    Differs,
    /// It left the communicator before the call was over.
    Left,
    /// It cannot be reached: a connection to it ended or carried wrong bytes, or its memory cannot be read.
    Unreachable,
    /// It failed by itself: it panicked, had no memory, was refused, or could not make the call.
    Failed,
    /// Its program ended the communicator on purpose.
    Aborted,
}

impl BlameKind {
    /// As it is written in records: `died`, `late`, `differs`, `left`, `unreachable`, `failed`, `aborted`.
    pub fn name(self) -> &'static str {
        match self {
            BlameKind::Died => "died",
            BlameKind::Late => "late",
            BlameKind::Differs => "differs",
            BlameKind::Left => "left",
            BlameKind::Unreachable => "unreachable",
            BlameKind::Failed => "failed",
            BlameKind::Aborted => "aborted",
        }
    }
}

impl Blame {
    /// A rank of which no more is known.
    pub fn new(rank: u32, kind: BlameKind) -> Blame {
        Blame { rank, kind, host: None, pid: None }
    }

    /// A rank of a bootstrap. An empty host and process 0 are unknown.
    pub fn of(rank: usize, kind: BlameKind, host: &str, pid: u32) -> Blame {
        let host = Some(host).filter(|host| !host.is_empty()).map(str::to_owned);
        Blame { rank: rank as u32, kind, host, pid: Some(pid).filter(|pid| *pid != 0) }
    }

    /// The same for several ranks of which no more is known.
    pub fn all(ranks: &[usize], kind: BlameKind) -> Vec<Blame> {
        ranks.iter().map(|rank| Blame::of(*rank, kind, "", 0)).collect()
    }
}

/// `rank 2 (host b, pid 4711)`, as far as it is known.
impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.pid) {
            (_, None) => write!(f, "rank {}", self.rank),
            (None, Some(pid)) => write!(f, "rank {} (pid {pid})", self.rank),
            (Some(host), Some(pid)) => write!(f, "rank {} (host {host}, pid {pid})", self.rank),
        }
    }
}

/// Why a communicator cannot be used any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The text of the error.
    pub why: String,
    /// The ranks to look at.
    pub blamed: Vec<Blame>,
    /// The rank whose failure this one passes on.
    pub aborted_by: Option<u32>,
}

impl Failure {
    /// What no rank is to blame for.
    pub fn plain(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), ..Failure::default() }
    }

    /// What a rank did itself.
    pub fn own(rank: u32, why: String) -> Failure {
        Failure { why, blamed: vec![Blame::new(rank, BlameKind::Failed)], aborted_by: None }
    }
}
