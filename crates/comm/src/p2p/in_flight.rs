//! The messages of a group while they are in flight.

// The caller's memory is known by its address.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::Reason;
use weftlink_p2p::Direction;
use weftlink_plan::DataType;

use super::Endpoint;
use super::completion::Request;
use super::drive::Inner;
use crate::error::Error;

/// A message of a group. The caller's memory is borrowed until the group is over.
pub(crate) struct GroupMessage {
    pub(crate) direction: Direction,
    /// The number of the message among those from its sender to its receiver.
    pub(crate) number: u64,
    pub(crate) address: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) data_type: Option<DataType>,
}

/// A group that has started. When it is dropped, all its messages have completed; if some had not, it aborts the communicator for that.
pub(crate) struct InFlight<'a>(&'a Arc<Inner>);

impl Endpoint {
    /// Starts the messages of a group, each with this timeout. The endpoint must have no other group in flight.
    ///
    /// # Safety
    /// The caller drops the result; it must not leak it. Until then, the memory of each send is readable and does not change, and the
    /// memory of each receive is writable and not accessed by other code.
    pub(crate) unsafe fn start_group(
        &self,
        messages: impl IntoIterator<Item = GroupMessage>,
        timeout: Duration,
    ) -> Result<InFlight<'_>, Error> {
        let inner = &self.client.inner;
        inner.check_process()?;
        inner.start_group(messages.into_iter().map(|message| {
            let GroupMessage { direction, number: tag, address, bytes, data_type } = message;
            Request { direction, tag, address, bytes, data_type, timeout }
        }));
        Ok(InFlight(inner))
    }
}

impl InFlight<'_> {
    /// Waits until all messages have completed or one has failed. `doubt` is called now and then with the time waited and a rank that is
    /// waited for.
    pub(crate) fn wait(&self, doubt: impl FnMut(Duration, Option<usize>)) -> Result<(), Error> {
        self.0.drive_group(doubt);
        self.0.group_error().map_or(Ok(()), Err)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(Reason::Panicked);
        }
        self.0.end_group();
    }
}
