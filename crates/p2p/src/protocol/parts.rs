//! The parts of a protocol: its configuration, its peers, and the copies that it asks for.

use std::time::Instant;

use weftlink_plan::DataType;

use super::transmit::Outbox;
use crate::credit::Credit;
use crate::op::{Outcome, PendingOp};

/// The limits of a protocol, the same at all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// This rank.
    pub rank: usize,
    /// The longest message that is sent eagerly.
    pub eager_bytes_max: usize,
    /// The longest message of a rank to itself that is buffered.
    pub self_bytes_max: usize,
    /// How far a sender may be ahead of what its receiver has taken.
    pub window_bytes: u32,
}

/// How frames reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It is this rank itself.
    Own,
    /// Through shared memory: whatever the peer sent before it left is there.
    Ring {
        /// The most payload of a frame.
        frame_bytes_max: usize,
        /// Offers of this length and more are pulled out of the peer's memory.
        pull_bytes_min: Option<usize>,
    },
    /// Over a connection, on which frames may arrive later than the notice that the peer has left.
    Connection {
        /// The most payload of a frame.
        frame_bytes_max: usize,
    },
}

/// What is known of another rank.
pub(super) struct Peer<T> {
    pub(super) route: Route,
    pub(super) outbox: Outbox<T>,
    pub(super) credit: Credit,
    /// When this rank learned that the peer has left.
    pub(super) left: Option<Instant>,
    /// When this rank learned that the connection failed, and whether it carried wrong bytes.
    pub(super) failed: Option<(Instant, bool)>,
    /// Nothing more is expected from the peer, and nothing can be sent to it.
    pub(super) gone: Option<Gone>,
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Left,
    Broken,
}

/// A message that no receive has matched.
pub(super) enum Message {
    Whole { message: Box<[u8]>, data_type: Option<DataType> },
    Offer { id: u64, address: u64, bytes: u64, data_type: Option<DataType> },
}

/// A receive that arrives in pieces.
pub(super) struct Incoming<T> {
    pub(super) op: PendingOp<T>,
    pub(super) from: usize,
    pub(super) received: usize,
}

/// A receive whose message the driver copies out of the sender's memory.
#[derive(Debug)]
pub struct Pull<T> {
    /// The receive.
    pub op: PendingOp<T>,
    /// The sender, and where the message lies in its memory.
    pub from: usize,
    /// See [`Pull::from`].
    pub address: u64,
    /// The send, by the number that its rank gave it.
    pub(super) offer: u64,
}

/// Where the payload of a frame goes. The driver copies it before it releases the frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Nowhere.
    None,
    /// Into a caller's memory.
    Caller {
        /// Where.
        address: u64,
        /// No more than this.
        bytes: usize,
    },
    /// Into a buffer for a message that no receive has matched.
    Buffer(&'a mut [u8]),
}

/// A copy between a caller's memory and a buffer, which the driver makes at once.
#[derive(Debug, PartialEq, Eq)]
pub enum LocalCopy<'a> {
    /// Nothing to copy.
    None,
    /// From a caller's memory.
    In {
        /// The memory.
        from: u64,
        /// The buffer.
        to: &'a mut [u8],
    },
    /// Into a caller's memory.
    Out {
        /// The buffer.
        from: Box<[u8]>,
        /// The memory.
        to: u64,
    },
}

impl<T> Pull<T> {
    /// A pull for a receive, of the message at an address of its sender, which numbers the send `offer`.
    pub fn new(op: PendingOp<T>, from: usize, address: u64, offer: u64) -> Pull<T> {
        Pull { op, from, address, offer }
    }
}

impl Route {
    /// The most payload of a frame.
    pub(super) fn frame_bytes_max(self) -> usize {
        match self {
            Route::Own => 0,
            Route::Ring { frame_bytes_max, .. } | Route::Connection { frame_bytes_max } => frame_bytes_max,
        }
    }

    /// Whether an offer of this length is pulled.
    pub(super) fn pulls(self, bytes: usize) -> bool {
        match self {
            Route::Own => true,
            Route::Ring { pull_bytes_min, .. } => pull_bytes_min.is_some_and(|least| bytes >= least),
            Route::Connection { .. } => false,
        }
    }
}

impl Gone {
    pub(super) fn outcome(self, rank: usize) -> Outcome {
        match self {
            Gone::Left => Outcome::Left(rank),
            Gone::Broken => Outcome::Broken(rank),
        }
    }
}
