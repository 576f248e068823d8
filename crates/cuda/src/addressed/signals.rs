//! Copies to buffers that peers have shared, and signals between ranks.

// Enqueues copies and signals with addresses and streams of the caller.
#![allow(unsafe_code)]

use super::{AddressedRank, not_enabled};
use crate::Error;
use crate::driver::Stream;

impl AddressedRank {
    /// Enqueues a copy to memory that a peer has [shared](crate::Communicator::share_buffer), if there is one, and a signal to that peer. `put` has
    /// the target's address for this GPU, the source and the length. All ranks have called [`AddressedRank::enable_messages`].
    ///
    /// # Safety
    /// Both places are valid for the length until the stream has executed it, and until the last launch of a graph that has it. The stream is
    /// one of this rank's GPU.
    pub unsafe fn put_signal(
        &mut self,
        stream: u64,
        peer: usize,
        put: Option<[u64; 3]>,
    ) -> Result<(), Error> {
        self.check_own_stream(stream, || "a signal".to_owned())?;
        // SAFETY: the caller's.
        let stream = unsafe { Stream::borrowed(self.collectives.context(), stream as *mut _) };
        let messages = self.messages.as_ref().ok_or_else(not_enabled)?;
        let communicator = self.collectives.communicator();
        communicator.check()?;
        if let Some([target, source, bytes]) = put {
            // SAFETY: the caller's.
            unsafe { stream.copy(target, source, bytes as usize) }?;
        }
        // SAFETY: the window lives as long as this, which leaves before it is dropped.
        unsafe { communicator.signal(messages.window(), &stream, peer) }
    }

    /// Enqueues a wait for the next signals of a peer, this many.
    ///
    /// # Safety
    /// As for [`AddressedRank::put_signal`].
    pub unsafe fn wait_signals(&mut self, stream: u64, peer: usize, signals: u32) -> Result<(), Error> {
        self.check_own_stream(stream, || "a wait for signals".to_owned())?;
        self.collectives.set_call_timeout(self.timeout);
        // SAFETY: the caller's.
        let stream = unsafe { Stream::borrowed(self.collectives.context(), stream as *mut _) };
        let messages = self.messages.as_ref().ok_or_else(not_enabled)?;
        // SAFETY: as above.
        unsafe { self.collectives.communicator().wait_for(messages.window(), &stream, peer, signals) }
    }

    /// The device memory that this rank has allocated.
    pub fn device_bytes(&mut self) -> usize {
        let messages = self.messages.as_ref().map_or(0, |messages| messages.window().device_bytes());
        self.collectives.communicator().device_bytes() + messages
    }
}
