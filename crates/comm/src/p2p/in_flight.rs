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
use super::drive::{Group, Inner};
use crate::error::Error;

/// A message of a group. The caller's memory is borrowed until the group is over.
#[derive(Clone, Copy)]
pub(crate) struct GroupMessage {
    pub(crate) direction: Direction,
    /// The number of the message among those from its sender to its receiver.
    pub(crate) number: u64,
    /// The [address](super::address) of the caller's memory.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) data_type: Option<DataType>,
}

/// A group that has started. When it is dropped, all its messages have completed; if some had not, it aborts the communicator for that.
pub(crate) struct InFlight<'a> {
    inner: &'a Arc<Inner>,
    group: Group,
}

impl Endpoint {
    /// Starts the messages of a group, each with this timeout. The endpoint must have no other group in flight.
    ///
    /// # Safety
    /// The caller drops the result; it must not leak it. Until then, the memory of each send is readable and does not change, and the
    /// memory of each receive is writable and not accessed by other code.
    pub(crate) unsafe fn start_group(
        &self,
        messages: &[GroupMessage],
        timeout: Duration,
    ) -> Result<InFlight<'_>, Error> {
        let inner = &self.client.inner;
        inner.check_process()?;
        let group = inner.start_group(messages.iter().map(|message| {
            let &GroupMessage { direction, number: tag, address, bytes, data_type } = message;
            Request { direction, tag, address, bytes, data_type, timeout }
        }));
        Ok(InFlight { inner, group })
    }
}

impl InFlight<'_> {
    /// Waits until all messages have completed or one has failed. `doubt` is called now and then with the time waited and a rank that is
    /// waited for.
    #[inline]
    pub(crate) fn wait(&mut self, doubt: impl FnMut(Duration, Option<Direction>)) -> Result<(), Error> {
        if let Group::Pending = self.group {
            self.group = self.inner.drive_group(doubt);
        }
        match &self.group {
            Group::Pending | Group::Done => Ok(()),
            Group::Failed(error) | Group::Failing(error) => Err(error.clone()),
        }
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Group::Pending | Group::Failing(_) = self.group {
            if std::thread::panicking() {
                self.inner.abort(Reason::Panicked);
            }
            self.inner.end_group();
        }
    }
}
