//! Ports: the two ends of a FIFO over any transport. The engine polls them, places messages, publishes and releases them, and
//! knows nothing else about them.
//!
//! Each variant is the port of one transport. The match is inlined, so a port in shared memory costs one comparison.

// Messages are known by their addresses.
#![allow(unsafe_code)]

use weftlink_shm::line::{Line, Poll};

use super::{shared_memory, tcp};

/// Identifies the messages of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    /// Between ranks that read each other's headers.
    pub(crate) short: u32,
    /// Hash and number of the call.
    pub(crate) hash: u64,
    pub(crate) number: u32,
}

impl Signature {
    /// Between ranks that do not read each other's headers.
    #[inline]
    pub(crate) fn wide(self) -> u64 {
        self.hash.wrapping_add(u64::from(self.number).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// A message that a step has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) signature: Signature,
    pub(crate) bytes: usize,
    /// The bytes that it occupies in bulk memory, which may be more.
    pub(crate) taken: usize,
    /// Where it lies; nothing if it is in the port's place.
    pub(crate) from: Option<*const u8>,
}

/// The end that sends.
pub(crate) enum SendPort {
    SharedMemory(shared_memory::SendPort),
    Tcp(tcp::SendPort),
}

/// The end that receives.
pub(crate) enum ReceivePort {
    SharedMemory(shared_memory::ReceivePort),
    Tcp(tcp::ReceivePort),
}

impl SendPort {
    /// Whether a message may be published.
    #[inline]
    pub(crate) fn poll(&mut self) -> Poll {
        let is_ready = match self {
            SendPort::SharedMemory(port) => port.has_credit(),
            SendPort::Tcp(port) => port.has_room(),
        };
        if is_ready { Poll::Ready } else { Poll::Pending }
    }

    /// Where to write the next message. The port must be ready.
    #[inline]
    pub(crate) fn place(&self) -> *mut u8 {
        match self {
            SendPort::SharedMemory(port) => port.place(),
            SendPort::Tcp(port) => port.place(),
        }
    }

    /// Sends a message. Returns the line to wake, if its receiver may be asleep on one. The port must be ready.
    ///
    /// # Safety
    /// If the message does not lie in the port's place, its bytes are readable where it does.
    #[inline]
    pub(crate) unsafe fn publish(&mut self, message: Message) -> Option<&'static Line> {
        match self {
            SendPort::SharedMemory(port) => Some(port.publish(message.signature.short, message.taken)),
            SendPort::Tcp(port) => {
                // SAFETY: the caller's promise.
                unsafe { port.publish(message) };
                None
            }
        }
    }

    /// The line whose change makes the port ready, if there is one.
    #[inline]
    pub(crate) fn line(&self) -> Option<&'static Line> {
        match self {
            SendPort::SharedMemory(port) => Some(port.line()),
            SendPort::Tcp(_) => None,
        }
    }

    /// The rank at the other end.
    #[inline]
    pub(crate) fn to(&self) -> u32 {
        match self {
            SendPort::SharedMemory(port) => port.to,
            SendPort::Tcp(port) => port.to,
        }
    }
}

impl ReceivePort {
    /// Whether a message of this call and length has arrived.
    #[inline]
    pub(crate) fn poll(&self, signature: Signature, bytes: usize) -> Poll {
        match self {
            ReceivePort::SharedMemory(port) => port.poll(signature.short),
            ReceivePort::Tcp(port) => port.poll(signature.wide(), bytes),
        }
    }

    /// Where the message that has arrived lies.
    #[inline]
    pub(crate) fn place(&self) -> *mut u8 {
        match self {
            ReceivePort::SharedMemory(port) => port.place(),
            ReceivePort::Tcp(port) => port.place(),
        }
    }

    /// Releases the message that has arrived, which occupies `taken` bytes of bulk memory. Returns the line to wake, if its sender may be
    /// asleep on one.
    #[inline]
    pub(crate) fn release(&mut self, taken: usize) -> Option<&'static Line> {
        match self {
            ReceivePort::SharedMemory(port) => Some(port.release(taken)),
            ReceivePort::Tcp(port) => {
                port.release();
                None
            }
        }
    }

    /// Delivers the next message of a call straight to a place, if the port can and the message has this length. It must not have
    /// arrived yet.
    ///
    /// # Safety
    /// The place is writable for `bytes`, and nothing else uses it until the message is released or the wait for it has failed.
    pub(crate) unsafe fn expect(&mut self, signature: Signature, bytes: usize, place: *mut u8) {
        match self {
            ReceivePort::SharedMemory(_) => {}
            // SAFETY: the caller's promise.
            ReceivePort::Tcp(port) => unsafe { port.expect(signature.wide(), bytes, place) },
        }
    }

    /// The line whose change announces the next message, if there is one.
    #[inline]
    pub(crate) fn line(&self) -> Option<&'static Line> {
        match self {
            ReceivePort::SharedMemory(port) => Some(port.line()),
            ReceivePort::Tcp(_) => None,
        }
    }

    /// The rank at the other end.
    #[inline]
    pub(crate) fn from(&self) -> u32 {
        match self {
            ReceivePort::SharedMemory(port) => port.from,
            ReceivePort::Tcp(port) => port.from,
        }
    }
}
