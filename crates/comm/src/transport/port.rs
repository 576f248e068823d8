//! Ports: the two ends of a FIFO, whatever carries its messages. The engine polls them, places messages, publishes and releases them, and
//! knows nothing else about them.
//!
//! Each port is one of its transport's. The match is here and inlined, so that a port in shared memory costs a comparison.

// Messages are known by their addresses.
#![allow(unsafe_code)]

use weftlink_shm::line::{Line, Poll};

use super::{shared_memory, tcp};

/// What tells the messages of a call from those of other calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    /// The signature of ranks that see each other's headers.
    pub(crate) short: u32,
    /// Hash and number of the call.
    pub(crate) hash: u64,
    pub(crate) number: u32,
}

impl Signature {
    /// The signature for ranks that do not see each other's headers.
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
    /// The bytes that it takes in bulk memory, which may be more.
    pub(crate) taken: usize,
    /// Where it lies. Nothing if it is in the place that the port gave.
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

    /// Where the next message is to be put. The port must be ready.
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
    /// If the message lies elsewhere than in the port's place, its bytes can be read there.
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

    /// The line whose change makes the port ready, if it is one.
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
    /// Whether a message of a call has arrived, with so many bytes.
    #[inline]
    pub(crate) fn poll(&self, signature: Signature, bytes: usize) -> Poll {
        match self {
            ReceivePort::SharedMemory(port) => port.poll(signature.short),
            ReceivePort::Tcp(port) => port.poll(signature.wide(), bytes),
        }
    }

    /// Where the message lies that has arrived.
    #[inline]
    pub(crate) fn place(&self) -> *mut u8 {
        match self {
            ReceivePort::SharedMemory(port) => port.place(),
            ReceivePort::Tcp(port) => port.place(),
        }
    }

    /// Gives the message back that has arrived, which takes so many bytes in bulk memory. Returns the line to wake, if its sender may be
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

    /// Lets the next message of a call come straight to a place, if the port can do that and the message has so many bytes. It must not
    /// have arrived.
    ///
    /// # Safety
    /// So many bytes can be written there, by nobody else, until the message is released or the wait for it has failed.
    pub(crate) unsafe fn expect(&mut self, signature: Signature, bytes: usize, place: *mut u8) {
        match self {
            ReceivePort::SharedMemory(_) => {}
            // SAFETY: the caller's promise.
            ReceivePort::Tcp(port) => unsafe { port.expect(signature.wide(), bytes, place) },
        }
    }

    /// The line whose change brings the next message, if it is one.
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
