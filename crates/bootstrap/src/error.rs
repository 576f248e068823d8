//! What can go wrong while ranks form a group, and in it.
//!
//! The rank that finds an error sends it to the others, so that all report the same. So causes are kept as text, and every
//! type here can be sent.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::blame::{Blame, BlameKind};

/// What one rank requested from its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The rank.
    pub rank: usize,
    /// The purpose, as it appears in errors.
    pub purpose: String,
    /// The number of bytes.
    pub bytes: usize,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} requested {} bytes for {:?}", self.rank, self.bytes, self.purpose)
    }
}

/// Ranks did not form a group, or a group failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Fix the call.
    #[error("bootstrap: {what}")]
    BadCall {
        /// What is wrong with it.
        what: String,
    },
    /// The operating system refused a thread or a descriptor: raise the limit that it names.
    #[error("bootstrap: {what}")]
    System {
        /// What it refused, and why.
        what: String,
    },
    /// The address of the rendezvous cannot be used: choose another.
    #[error("cannot use {place} for the rendezvous: {reason}")]
    RendezvousAddress {
        /// Where.
        place: String,
        /// Why not.
        reason: String,
    },
    /// Rank 0 was not there in time: start it, or look at the name of the place.
    #[error(
        "timed out after {} waiting for rank 0 to listen at {place}: {last}. Check that it runs, with the same WEFT_RENDEZVOUS",
        seconds(limit)
    )]
    NobodyListens {
        /// Where.
        place: String,
        /// What the last try showed.
        last: String,
        /// How long was waited.
        limit: Duration,
    },
    /// Ranks were not there in time: see whether they run, and what they print.
    #[error("timed out after {} waiting for {} ({purpose})", seconds(limit), list(ranks))]
    Missing {
        /// Which.
        ranks: Vec<usize>,
        /// What was waited for.
        purpose: String,
        /// How long was waited.
        limit: Duration,
    },
    /// A rank said nothing in time. Rank 0 has not asked yet, or waits for others with a later deadline.
    #[error(
        "timed out after {} waiting for an answer of rank {rank} (pid {pid}): {purpose}{}",
        seconds(limit),
        if *rank == 0 { ". Rank 0 answers once it has heard from all ranks" } else { "" }
    )]
    NoAnswer {
        /// Who.
        rank: usize,
        /// Its process.
        pid: u32,
        /// What was waited for.
        purpose: String,
        /// How long was waited.
        limit: Duration,
    },
    /// Rank 0 does not want this one.
    #[error("rank {rank} was refused at {place}: {reason}")]
    Refused {
        /// Who.
        rank: usize,
        /// Where.
        place: String,
        /// Why.
        reason: Refusal,
    },
    /// Two ranks made different calls: fix the program.
    #[error("ranks must make the same calls in the same order, but {one}, while {other}")]
    Mismatch {
        /// One side.
        one: Request,
        /// The other.
        other: Request,
    },
    /// A rank has ended, or dropped its bootstrap.
    #[error("rank {rank} (pid {pid}) left while others waited for it ({purpose})")]
    Left {
        /// Who.
        rank: usize,
        /// Its process.
        pid: u32,
        /// What the others were doing.
        purpose: String,
    },
    /// A rank's process has ended, or its host has: look there.
    #[error("{} died", person(*rank, host, *pid))]
    Died {
        /// Who.
        rank: usize,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
    },
    /// The connection between two ranks ended, or what it brought was changed on its way; both may live. Look at the network
    /// between them.
    #[error("the connection of rank {by} to {} {what}", person(*rank, host, *pid))]
    Lost {
        /// The rank at the other end.
        rank: usize,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
        /// The rank that noticed.
        by: usize,
        /// What it noticed.
        what: String,
    },
    /// Ranks waited for each other, and in the end for these, who are stopped or do something else: look there.
    #[error("timed out after {:.1} s waiting for {} ({purpose})", waited.as_secs_f64(), names(blamed))]
    Late {
        /// Which.
        blamed: Vec<Blame>,
        /// What was waited for.
        purpose: String,
        /// How long this rank had waited.
        waited: Duration,
    },
    /// Ranks that shrink cannot reach others that may be alive, and are too few to go on without them: restart the job.
    #[error(
        "cannot shrink to {}: {} cannot be reached and may still be running. Only a side with more than half of the {size} ranks, or with \
         half of them and rank 0, goes on. Check the network between the hosts, then restart the job",
        list(here),
        list(others)
    )]
    Minority {
        /// Who would go on.
        here: Vec<usize>,
        /// Who cannot be reached.
        others: Vec<usize>,
        /// How many ranks the group had.
        size: usize,
    },
    /// The other ranks regrouped without this one: it regrouped too late, or could not be reached. Restart the job to include it.
    #[error(
        "the other ranks continued without rank {rank}: it called shrink() too late, or they could not reach it. Restart the job to \
         include it"
    )]
    Excluded {
        /// The rank that has this error.
        rank: usize,
    },
    /// A rank aborted the group: look at its own error.
    #[error("aborted by rank {rank}: {cause}")]
    GaveUp {
        /// Who.
        rank: usize,
        /// Why.
        cause: String,
        /// The ranks that it blames for that; empty if it is the reason itself.
        blamed: Vec<Blame>,
    },
    /// A rank could not allocate or map the memory.
    #[error("rank {rank}: {reason}")]
    Memory {
        /// Who.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// A rank said something that it must not say: a bug.
    #[error("rank {rank} violated the bootstrap protocol: {what}. This is a bug in Weft")]
    Protocol {
        /// Who.
        rank: usize,
        /// What.
        what: String,
    },
    /// An earlier call failed: meet again.
    #[error("this bootstrap failed before and cannot be used again: {cause}")]
    Poisoned {
        /// The first error.
        cause: String,
        /// The ranks that it blamed.
        blamed: Vec<Blame>,
    },
}

impl BootstrapError {
    /// The ranks that are the reason for this error: where to look. A rank that has the error may be among them.
    pub fn blamed(&self) -> Vec<Blame> {
        use BlameKind::{Died, Differs, Failed, Late, Left, Unreachable};
        match self {
            Self::BadCall { .. } | Self::System { .. } | Self::RendezvousAddress { .. } => Vec::new(),
            Self::NobodyListens { .. } => Blame::all(&[0], Late),
            Self::Missing { ranks, .. } => Blame::all(ranks, Late),
            Self::NoAnswer { rank, pid, .. } => vec![Blame::of(*rank, Late, "", *pid)],
            Self::Mismatch { one, other } => Blame::all(&[other.rank, one.rank], Differs),
            Self::Left { rank, pid, .. } => vec![Blame::of(*rank, Left, "", *pid)],
            Self::Died { rank, host, pid } => vec![Blame::of(*rank, Died, host, *pid)],
            Self::Lost { rank, host, pid, by, .. } => {
                vec![Blame::of(*rank, Unreachable, host, *pid), Blame::of(*by, Unreachable, "", 0)]
            }
            Self::Minority { others, .. } => Blame::all(others, Unreachable),
            Self::Excluded { rank } => Blame::all(&[*rank], Late),
            Self::GaveUp { rank, blamed, .. } if blamed.is_empty() => Blame::all(&[*rank], Failed),
            Self::Late { blamed, .. } | Self::GaveUp { blamed, .. } | Self::Poisoned { blamed, .. } => {
                blamed.clone()
            }
            Self::Refused { rank, .. } | Self::Memory { rank, .. } | Self::Protocol { rank, .. } => {
                Blame::all(&[*rank], Failed)
            }
        }
    }
}

/// Why rank 0 refused a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// Built from different versions of Weft.
    #[error(
        "it speaks version {theirs} of Weft's protocol, and this is version {ours}. Use one version of Weft"
    )]
    Version {
        /// What the other side speaks.
        theirs: u32,
        /// What this one does.
        ours: u32,
    },
    /// Set up differently.
    #[error("{name}: it has {theirs}, rank 0 has {ours}. Give all ranks the same")]
    Terms {
        /// What differs.
        name: String,
        /// The value of the one that came.
        theirs: String,
        /// The value of rank 0.
        ours: String,
    },
    /// Something else answers there.
    #[error("what listens there is not Weft")]
    NotWeft,
    /// Not of this job.
    #[error(
        "the secrets differ. Another job may use the same address, or not all ranks have the same WEFT_SECRET"
    )]
    Token,
    /// Another process is that rank already.
    #[error("rank {rank} is here already, as pid {pid}")]
    Duplicate {
        /// The rank.
        rank: usize,
        /// The process that is.
        pid: u32,
    },
    /// No such rank.
    #[error("rank {rank} cannot join: ranks 1 to {} of {size} may", size - 1)]
    Rank {
        /// The rank.
        rank: usize,
        /// How many ranks there are.
        size: usize,
    },
    /// The two do not agree how many they are.
    #[error("it expects {joiner} ranks, rank 0 expects {listener}")]
    Size {
        /// What the one that came expects.
        joiner: usize,
        /// What rank 0 expects.
        listener: usize,
    },
    /// A process of another user.
    #[error(
        "the process there runs as user {theirs}, and this one as user {ours}. Run all ranks of a host as one user"
    )]
    User {
        /// The user of the process at the other end.
        theirs: u32,
        /// The user of this process.
        ours: u32,
    },
}

/// "rank 3", "ranks 1 and 3", "ranks 1, 2, 3 and 97 more".
pub fn list(ranks: &[usize]) -> String {
    const SHOWN: usize = 8;
    let text = |ranks: &[usize]| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [] => "nobody".to_owned(),
        [rank] => format!("rank {rank}"),
        [most @ .., last] if ranks.len() <= SHOWN => format!("ranks {} and {last}", text(most)),
        _ => format!("ranks {} and {} more", text(&ranks[..SHOWN]), ranks.len() - SHOWN),
    }
}

/// "rank 2 (host b, pid 4711)", as far as it is known.
pub(super) fn person(rank: usize, host: &str, pid: u32) -> String {
    match (host, pid) {
        (_, 0) => format!("rank {rank}"),
        ("", pid) => format!("rank {rank} (pid {pid})"),
        (host, pid) => format!("rank {rank} (host {host}, pid {pid})"),
    }
}

fn names(blamed: &[Blame]) -> String {
    blamed.iter().map(Blame::to_string).collect::<Vec<_>>().join(" and ")
}

fn seconds(limit: &Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_name_missing_ranks_and_the_limit() {
        let missing = |ranks: &[usize], limit| {
            BootstrapError::Missing { ranks: ranks.to_vec(), purpose: "the heap".into(), limit }.to_string()
        };
        let limit = Duration::from_secs(30);
        assert_eq!(missing(&[3], limit), "timed out after 30 s waiting for rank 3 (the heap)");
        assert_eq!(missing(&[1, 3], limit), "timed out after 30 s waiting for ranks 1 and 3 (the heap)");
        let limit = Duration::from_millis(1500);
        assert_eq!(
            missing(&[1, 2, 3], limit),
            "timed out after 1.5 s waiting for ranks 1, 2 and 3 (the heap)"
        );
        let many: Vec<usize> = (1..100).collect();
        assert!(missing(&many, limit).contains("waiting for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more ("));
    }
}
