//! What goes into the state machine, and what comes out.

use serde::{Deserialize, Serialize};

use crate::event::Event;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<F> {
    /// This rank makes something known.
    Raise(Event<F>),
    /// A neighbour passed an event on.
    Heard {
        /// The neighbour.
        from: u32,
        /// The event.
        event: Event<F>,
    },
    /// This rank leaves in good order after this number of calls. [`Action::Departed`] follows.
    Leave {
        /// The number of calls.
        calls: u32,
    },
    /// A neighbour has heard that this rank leaves, and has passed it on.
    Confirmed(u32),
    /// A connection to a rank of the group is there that was not before: a [`Action::Reparent`] that succeeded, or a rank that
    /// came because its parent left.
    Connected(u32),
    /// A connection to a neighbour failed.
    Disconnected {
        /// The neighbour.
        rank: u32,
        /// Whether the driver watches its process and will report [`Input::Exited`].
        is_watched: bool,
    },
    /// Bytes from a neighbour were not what it sent.
    Corrupt {
        /// The neighbour.
        rank: u32,
        /// What was wrong.
        what: String,
    },
    /// A process of the group has ended, which the kernel reported.
    Exited(u32),
    /// A [`Action::CheckExit`] has a result.
    ExitChecked {
        /// The rank.
        rank: u32,
        /// Whether its process exits or has ended.
        is_exiting: bool,
    },
    /// A [`Action::Probe`] has a result.
    Probed(u32, Probe),
    /// A [`Action::Reparent`] failed.
    NotReparented {
        /// The rank that was tried.
        rank: u32,
        /// What its address answered.
        why: Probe,
        /// How it left the group, if it answered that it has. A process that has ended may have died, so that nobody listens where it
        /// was proves nothing. A rank that is not in the group yet is [`Probe::Unclear`].
        gone: Option<Gone>,
    },
    /// The time that [`Group::next_timeout`](super::Group::next_timeout) named has come.
    Timeout,
}

/// How a rank that lives left a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gone {
    /// In good order, after this number of calls.
    Left {
        /// The number of calls.
        calls: u32,
    },
    /// It continued in another group, which came out of this one by regrouping.
    Continued {
        /// The number of that group.
        group: u64,
    },
}

/// What the address of a rank answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// The host answers and nobody listens there: the process has ended.
    Refused,
    /// The rank is there.
    Answered,
    /// Nothing answered in time: the rank may be stopped, or cut off.
    Silent,
    /// Another process answered, or the connection ended early. Worth another try.
    Unclear,
}

/// What the driver has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<F> {
    /// Send an event to a neighbour.
    Send {
        /// The neighbour.
        to: u32,
        /// The event.
        event: Event<F>,
    },
    /// Give an event to the application: it is new.
    Deliver(Event<F>),
    /// Find out whether the process of a rank that the driver watches exits, and report [`Input::ExitChecked`].
    CheckExit(u32),
    /// Find out whether anybody answers at a rank's address, and report [`Input::Probed`].
    Probe(u32),
    /// Connect to a rank as its child, and report [`Input::Connected`] or [`Input::NotReparented`].
    Reparent(u32),
    /// Close the connection to a rank, once what was sent is written.
    Close(u32),
    /// Tell a neighbour that leaves that this rank has heard of it: report [`Input::Confirmed`] there.
    Confirm(u32),
    /// This rank may end: it leaves, and the ranks that stay know, or nobody is left that could, or [`DEPARTURE`] has passed.
    ///
    /// [`DEPARTURE`]: crate::durations::DEPARTURE
    Departed {
        /// Whether all ranks that stay will hear of it.
        is_confirmed: bool,
    },
}
