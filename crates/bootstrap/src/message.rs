//! Messages between ranks outside of calls.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use weftlink_membership::Gone;
use weftlink_membership::regroup;
use weftlink_membership::rendezvous::{self, Hello, Slot};

use super::error::{BootstrapError, Refusal, Request};
use super::host::Host;

/// Enough for the members of a group of 4,096 ranks.
pub(super) const FRAME_BYTES_MAX: usize = 4 << 20;

/// Anything that travels over a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The first message of a rank that connects: what it wants.
    Introduction(Introduction),
    /// From rank 0: admitted; wait for the rest. From a new parent: accepted as its child, which answers with the same.
    Accepted { pid: u32 },
    /// Not admitted.
    Refused(Refusal),
    /// To a rank that came because its parent left: how this one left that group, or nothing if it is not in it yet.
    NotInGroup { gone: Option<Gone> },
    /// These ranks are missing.
    Waiting { number: u32, ranks: Vec<u32> },
    /// From rank 0, when all have joined: the slot of the receiver.
    Slot(Box<Slot<Contact>>),
    /// From a parent, once: the members of the group.
    Members(Vec<Member>),
    /// To a parent: requests and bytes of all ranks below.
    Up { number: u32, ask: Request, said: Vec<(u32, Vec<u8>)> },
    /// From a parent: the bytes of all ranks.
    Down { number: u32, said: Vec<(u32, Vec<u8>)> },
    /// Between a leader and its followers that regroup.
    Regroup(regroup::Message),
    /// To a neighbour that leaves: this rank has heard of it, and has passed it on.
    DepartureHeard,
    /// Comes with a descriptor for the other end.
    Descriptor { turn: u32 },
    /// A message of the program that uses a link between two ranks.
    Parcel(Vec<u8>),
    /// What every rank must know. A rank that did not know it passes it on.
    Event(Event),
}

/// Why a rank connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Introduction {
    /// To join the group.
    Join(Hello<Contact>),
    /// To be the parent's child in a group that both know.
    Link { group: u64, from: u32 },
    /// To be its child in a group that both are in, because the rank between them has left.
    Orphan { group: u64, from: u32 },
    /// To carry messages of a group's plans.
    Wire { group: u64, from: u32, stream: u32 },
    /// To give this rank a descriptor, and take one.
    Descriptor { group: u64, from: u32, turn: u32 },
    /// To regroup. `lineage` is the number of the first group.
    Regroup { lineage: u64, hello: regroup::Hello },
    /// To see whether the process is there.
    Probe,
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

impl rendezvous::Contact for Contact {
    fn is_on_host_of(&self, other: &Contact) -> bool {
        self.host.is_same(&other.host)
    }

    fn is_process_of(&self, other: &Contact) -> bool {
        self.name == other.name
    }

    fn pid(&self) -> u32 {
        self.pid
    }
}

/// One rank of a group, as all know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) contact: Contact,
    /// Hosts are numbered in the order of their first ranks.
    pub(super) host: u32,
}

/// What a rank makes known to all ranks.
pub type Event = weftlink_membership::Event<BootstrapError>;

impl Message {
    pub(super) fn unexpected(&self, rank: usize) -> BootstrapError {
        BootstrapError::Protocol { rank, what: format!("it said {self:?}") }
    }
}
