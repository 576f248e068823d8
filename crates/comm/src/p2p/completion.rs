//! How the completion of a send or a receive reaches its caller.

use std::time::{Duration, Instant};

use weftlink_p2p::{Direction, PendingOp, elements};
use weftlink_plan::DataType;

use crate::error::Error;

/// A send or a receive that has not completed.
pub(super) type Op = PendingOp<Completion>;

/// Who is notified of a completion.
pub(super) enum Completion {
    /// A thread that waits for it, among the results.
    Waiter,
    /// The thread that waits for all operations of a group; see [`GroupProgress`].
    Group,
    /// This function; a receive passes it the rank that sent.
    Callback(Callback),
}

pub(super) type Callback = Box<dyn FnOnce(Result<usize, Error>) + Send>;

/// How far the operations of a group are. An endpoint runs one group at a time.
#[derive(Default)]
pub(super) struct GroupProgress {
    /// Operations that have not completed.
    pub(super) pending: usize,
    /// The error of the first that failed.
    pub(super) error: Option<Error>,
}

/// The caller's part of an operation.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) tag: u64,
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) data_type: Option<DataType>,
    pub(super) timeout: Duration,
}

impl Request {
    /// The operation that it becomes.
    pub(super) fn begin(self, id: u64, began: Instant, completion: Completion) -> Op {
        let Request { direction, tag, address, bytes, data_type, timeout } = self;
        let deadline = began.checked_add(timeout);
        PendingOp { id, direction, tag, address, bytes, data_type, began, deadline, completion }
    }
}

/// The address of a caller's memory.
pub(crate) fn address(memory: *const u8) -> u64 {
    memory.expose_provenance() as u64
}

/// The caller's memory at an address of an operation.
pub(super) fn memory(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// An operation in words. The messages of a group have no tags that their caller knows.
pub(super) fn described(op: &Op) -> String {
    let (tag, what) = (tag_of(op), elements(op.bytes as u64, op.data_type));
    match op.direction {
        Direction::SendTo(to) => format!("send of {what}{tag} to rank {to}"),
        Direction::ReceiveFrom(Some(from)) => format!("receive of {what}{tag} from rank {from}"),
        Direction::ReceiveFrom(None) => format!("receive of {what}{tag} from any rank"),
    }
}

/// The tag of an operation in words, after a space.
pub(super) fn tag_of(op: &Op) -> String {
    match op.completion {
        Completion::Group => String::new(),
        Completion::Waiter | Completion::Callback(_) => format!(" with tag {}", op.tag),
    }
}
