//! What followers and leader send each other.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::view::View;

/// A connection, as the driver calls it.
pub type Connection = u64;

/// The first message of a follower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The follower.
    pub from: u32,
    /// Ranks that are proved dead, or have left the group for good.
    pub dead: BTreeSet<u32>,
    /// The group that it is in, then those that it may be in.
    pub views: Vec<View>,
    /// Leaders that were silent at the deadline.
    pub passed: BTreeSet<u32>,
}

/// What follows on the same connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// From the leader: it leads.
    Gathering {
        /// How long it waits for the others.
        wait: Duration,
    },
    /// From the leader: the new group.
    Propose(View),
    /// From a follower: it heard the proposal.
    Forming {
        /// The group's number.
        group: u64,
    },
    /// From a follower: its connections in the new tree are there.
    Ready {
        /// The group's number.
        group: u64,
    },
    /// From a follower: it could not connect to its parent.
    Failed {
        /// The group's number.
        group: u64,
        /// The parent.
        parent: u32,
        /// Whether the parent is proved dead.
        is_dead: bool,
    },
    /// From the leader: all are ready, and the group stands.
    Commit {
        /// The group's number.
        group: u64,
    },
    /// From the leader: the group of this proposal, if there was one, will not stand.
    Abort {
        /// The group's number.
        group: Option<u64>,
        /// Why, and what to do.
        why: Abort,
    },
}

/// Why a leader aborts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Abort {
    /// Come again.
    Retry,
    /// The ranks that came are too few to continue without the others.
    Minority {
        /// The ranks that came.
        here: Vec<u32>,
        /// Those that are missing and may live.
        others: Vec<u32>,
    },
    /// The others continued without this rank before.
    Excluded,
    /// From a follower of this leader, which is there: come to it.
    LedBy(u32),
    /// From a rank that has left the group for good: it does not regroup.
    Left,
}
