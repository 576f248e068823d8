//! What ranks say to each other outside of calls.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use weftlink_membership::regroup;

use super::error::{Ask, BootstrapError, Refusal};
use super::host::Host;

/// Room for what rank 0 tells of each of 4,096 ranks.
pub(super) const FRAME_BYTES_MAX: usize = 4 << 20;

/// Anything that travels over a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The first of whoever comes: what it comes for.
    Introduction(Introduction),
    /// From rank 0: you are in; wait for the rest.
    Accepted { pid: u32 },
    /// You are not.
    Refused(Refusal),
    /// To a rank that came because its parent left: this one is not in that group any more, and after how many calls it left.
    NotInGroup { calls: Option<u32> },
    /// These have not come yet.
    Waiting { number: u32, ranks: Vec<u32> },
    /// From rank 0, when all have come: where your place is.
    Slot(Box<Slot>),
    /// From a parent, once: who is who.
    Members(Vec<Member>),
    /// To a parent: what all below want and say.
    Up { number: u32, ask: Ask, said: Vec<(u32, Vec<u8>)> },
    /// From a parent: what all say.
    Down { number: u32, said: Vec<(u32, Vec<u8>)> },
    /// Between a leader and its followers that regroup.
    Regroup(regroup::Message),
    /// To a neighbour that leaves: this rank has heard of it, and has passed it on.
    DepartureHeard,
    /// Comes with a descriptor for the other end.
    Descriptor { turn: u32 },
    /// What everybody should know. Told on to everybody who did not know it.
    Event(Event),
}

/// What somebody comes for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Introduction {
    /// To become part of a group.
    Join(Hello),
    /// To be the parent's child in a group that both know.
    Link { group: u64, from: u32 },
    /// To be linked to it in a group that both are in, because whoever was between them has left.
    Orphan { group: u64, from: u32 },
    /// To carry messages of a group's plans.
    Wire { group: u64, from: u32, stream: u32 },
    /// To give this rank a descriptor, and take one.
    Descriptor { group: u64, from: u32, turn: u32 },
    /// To regroup. `lineage` is the number of the first group.
    Regroup { lineage: u64, hello: regroup::Hello },
    /// To see whether anybody is there.
    Probe,
}

/// Who comes to join, and what it takes for granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) contact: Contact,
    /// What must be the same for all, by name: settings, the order of bytes, versions.
    pub(super) terms: Vec<(String, String)>,
}

/// How a process is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contact {
    pub(super) pid: u32,
    pub(super) host: Host,
    /// The name of its socket, for those on the same host.
    pub(super) name: Vec<u8>,
    /// For those on other hosts; the likeliest first.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Contact {
    /// The error that this process, which is a rank of a group, has died.
    pub(super) fn died(&self, rank: u32) -> BootstrapError {
        BootstrapError::Died { rank: rank as usize, host: self.host.to_string(), pid: self.pid }
    }
}

/// A rank's place in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) group: u64,
    /// Whom to go to; nothing if that is rank 0 and this very channel will do.
    pub(super) parent: Option<(u32, Contact)>,
    /// Who will come.
    pub(super) children: Vec<u32>,
}

/// One rank of a group, as all know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) contact: Contact,
    /// Hosts are numbered in the order of their first ranks.
    pub(super) host: u32,
}

/// What a rank makes known to all.
pub type Event = weftlink_membership::Event<BootstrapError>;

impl Message {
    pub(super) fn unexpected(&self, rank: usize) -> BootstrapError {
        BootstrapError::Protocol { rank, what: format!("it said {self:?}") }
    }
}
