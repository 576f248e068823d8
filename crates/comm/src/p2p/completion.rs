//! How the completion of a send or a receive reaches its caller.

use std::time::{Duration, Instant};

use weftlink_p2p::{Direction, PendingOp};
use weftlink_plan::DataType;

use crate::error::Error;

/// A send or a receive that has not completed.
pub(super) type Op = PendingOp<Completion>;

/// Who is notified of a completion.
pub(super) enum Completion {
    /// A thread that waits for it, among the results.
    Waiter,
    /// This function; a receive passes it the rank that sent.
    Callback(Callback),
}

pub(super) type Callback = Box<dyn FnOnce(Result<usize, Error>) + Send>;

/// The caller's part of an operation.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) tag: u64,
    pub(super) address: *mut u8,
    pub(super) bytes: usize,
    pub(super) data_type: Option<DataType>,
    pub(super) timeout: Duration,
}

impl Request {
    /// The operation that it becomes.
    pub(super) fn begin(self, id: u64, completion: Completion) -> Op {
        let Request { direction, tag, address, bytes, data_type, timeout } = self;
        let (address, began) = (address.expose_provenance() as u64, Instant::now());
        let deadline = began.checked_add(timeout);
        PendingOp { id, direction, tag, address, bytes, data_type, began, deadline, completion }
    }
}

/// The caller's memory at an address of an operation.
pub(super) fn memory(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
