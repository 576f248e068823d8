//! What one rank makes known to all ranks of its group.

use serde::{Deserialize, Serialize};

/// An event that every rank of a group hears once. `F` is the error of a rank that gave the group up.
#[expect(missing_docs, reason = "the variants say what their fields are")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event<F> {
    /// A rank's process has ended.
    Died { rank: u32 },
    /// The connection from rank `by` to a rank failed, though the rank may live; `what` describes the failure.
    Lost { rank: u32, by: u32, what: String },
    /// A rank left in good order after this number of calls.
    Left { rank: u32, calls: u32 },
    /// A rank continued in another group, which came out of this one by regrouping. Ranks that are not in that group are excluded.
    Continued { rank: u32, group: u64 },
    /// A rank aborted the group.
    Failed { rank: u32, reason: u32, culprit: u32, error: F },
    /// The header of a call that a rank has waited in for long, as it lies in memory.
    Calls { rank: u32, number: u32, signature: u32, words: [u64; 7] },
    /// The ranks that a rank waits for, or waited for when it failed; none if it waits for nobody. `neighbours` are the ranks
    /// that it is connected to. Every rank that hears this answers with its own, so it is a question too.
    Waits { rank: u32, turn: u32, whom: Vec<u32>, neighbours: Vec<u32> },
}

impl<F> Event<F> {
    /// Whether this event ends the group.
    pub fn is_failure(&self) -> bool {
        matches!(self, Event::Died { .. } | Event::Lost { .. } | Event::Failed { .. })
    }

    /// Whether a rank that connects later must hear it.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Event::Calls { .. } | Event::Waits { .. })
    }
}
