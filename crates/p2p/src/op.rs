//! A send or a receive, from when it is posted until it completes.

use std::time::Instant;

use weftlink_plan::DataType;

/// A send or a receive that has not completed. `T` is what the driver needs to report its completion.
#[derive(Debug)]
pub struct PendingOp<T> {
    /// Unique among all operations of this rank, from 1.
    pub id: u64,
    /// Which way, and the peer.
    pub direction: Direction,
    /// Compared with that of the counterpart.
    pub tag: u64,
    /// The caller's memory, which belongs to this operation until it completes.
    pub address: u64,
    /// The length of that memory.
    pub bytes: usize,
    /// The type of its elements; nothing for bytes.
    pub data_type: Option<DataType>,
    /// When it was posted.
    pub began: Instant,
    /// When it times out; never, if the clock does not reach that far.
    pub deadline: Option<Instant>,
    /// The driver's own.
    pub completion: T,
}

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A send to a rank.
    SendTo(usize),
    /// A receive from a rank, or from any.
    ReceiveFrom(Option<usize>),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent to this rank, or received from it.
    Done(usize),
    /// Its deadline passed. With `aborts`, the receiver knows of the send and may be pulling it, so the driver must abort the
    /// communicator before the sender's memory is released.
    TimedOut {
        /// Whether the communicator must be aborted.
        aborts: bool,
    },
    /// The peer has left the communicator.
    Left(usize),
    /// The connection to the peer failed.
    Broken(usize),
    /// The counterpart has another length or type, as given.
    Differs {
        /// The rank of the counterpart.
        peer: usize,
        /// Its length.
        bytes: u64,
        /// Its type.
        data_type: Option<DataType>,
    },
    /// The sender's memory could not be pulled.
    Unreadable {
        /// The other rank.
        peer: usize,
        /// The number of the system's error, if this rank was the one to pull.
        errno: Option<i32>,
    },
    /// The communicator was aborted or dropped.
    Ended,
}

impl<T> PendingOp<T> {
    /// Whether a counterpart of this length and type fits.
    pub fn fits(&self, bytes: u64, data_type: Option<DataType>) -> bool {
        self.bytes as u64 == bytes && self.data_type == data_type
    }

    /// Whether its deadline has passed.
    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// The length of a message in elements of its type.
pub fn elements(bytes: u64, data_type: Option<DataType>) -> String {
    match data_type {
        Some(data_type) => format!("{} {}", bytes / data_type.bytes() as u64, data_type.name()),
        None => format!("{bytes} bytes"),
    }
}
