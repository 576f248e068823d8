//! What goes into the state machine, and what comes out.

use std::collections::BTreeSet;

use super::message::{Connection, Hello, Message};
use super::view::View;
use crate::group::Probe;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// What the old group knows.
    Known {
        /// Ranks that are proved dead.
        dead: BTreeSet<u32>,
        /// Ranks that left the group in good order, before it failed.
        left: BTreeSet<u32>,
        /// Ranks whose connections failed; they may live.
        cut_off: BTreeSet<u32>,
        /// The groups in which ranks of the old group have continued.
        continued: BTreeSet<u64>,
    },
    /// A follower came.
    Arrived(Connection, Hello),
    /// A message on a connection.
    Message(Connection, Message),
    /// A connection ended.
    Closed(Connection),
    /// The result of [`Action::Dial`].
    Dialed(Result<Connection, Unreached>),
    /// The result of [`Action::Link`].
    Linked(u64, Result<(), Unreached>),
    /// A child in the new tree connected.
    Child(u64, u32),
    /// The result of [`Action::Probe`].
    Probed(u32, Probe),
    /// The time that [`Regroup::next_timeout`](super::Regroup::next_timeout) named has come.
    Timeout,
}

/// Why a rank could not be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreached {
    /// Nobody listens where it was: it is dead.
    Refused,
    /// Something listens and does not answer: the rank may be stopped.
    Silent,
    /// No way leads there.
    NoRoute,
    /// The connection ended early, or another process answered.
    Unclear,
}

/// What the driver has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Connect to a rank as its follower, and report [`Input::Dialed`].
    Dial(u32, Hello),
    /// Send a message.
    Send(Connection, Message),
    /// Close a connection, once what was sent is written.
    Close(Connection),
    /// Connect to the parent in the tree of a new group, and report [`Input::Linked`].
    Link {
        /// The new group.
        view: View,
        /// The parent.
        parent: u32,
    },
    /// Close the connections in the tree of a group that will not form, or that this rank gives up.
    Abandon(View),
    /// Find out whether anybody answers at a rank's address, and report [`Input::Probed`].
    Probe(u32),
    /// The same, with a hello for the rank: it may wait for another leader and should come to this rank. If it answers
    /// [`Abort::Left`](super::Abort::Left), also report [`Probe::Refused`](crate::Probe::Refused): it needs no vote.
    Call(u32, Hello),
    /// Regrouping is over.
    Done(Result<View, Error>),
}

/// Why a rank is in no new group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The ranks that came are too few to continue without the others.
    Minority {
        /// The ranks that came.
        here: Vec<u32>,
        /// Those that are missing and may live.
        others: Vec<u32>,
    },
    /// These ranks did not come in time.
    Missing(Vec<u32>),
    /// The others continued without this rank.
    Excluded,
}
