//! Ports of the TCP transport.

// Messages are known by their addresses.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;

use weftlink_shm::line::Poll;

use super::TcpTransport;
use crate::transport::{FifoPlace, Message};

/// The end of a FIFO that sends to another host.
pub(crate) struct SendPort {
    transport: Rc<RefCell<TcpTransport>>,
    end: u32,
    pub(in crate::transport) to: u32,
}

impl SendPort {
    /// Opens the end of FIFO `number`.
    pub(in crate::transport) fn new(
        transport: &Rc<RefCell<TcpTransport>>,
        fifo: usize,
        place: &FifoPlace,
    ) -> Self {
        let &FifoPlace { target: to, depth, message_bytes_max, .. } = place;
        let end = transport.borrow_mut().open_outgoing(fifo, to, depth, message_bytes_max);
        Self { transport: Rc::clone(transport), end, to }
    }

    pub(in crate::transport) fn has_room(&self) -> bool {
        self.transport.borrow().has_room(self.end)
    }

    pub(in crate::transport) fn place(&self) -> *mut u8 {
        self.transport.borrow_mut().room(self.end)
    }

    /// # Safety
    /// If the message does not lie in the port's place, its bytes are readable where it does.
    pub(in crate::transport) unsafe fn publish(&mut self, message: Message) {
        let Message { signature, bytes, from, .. } = message;
        let mut transport = self.transport.borrow_mut();
        match from {
            // SAFETY: the caller's promise.
            Some(place) => unsafe { transport.put_from(self.end, signature.wide(), place, bytes) },
            None => transport.put(self.end, signature.wide(), bytes),
        }
    }
}

/// The end of a FIFO that receives from another host.
pub(crate) struct ReceivePort {
    transport: Rc<RefCell<TcpTransport>>,
    end: u32,
    pub(in crate::transport) from: u32,
}

impl ReceivePort {
    /// Opens the end of FIFO `number`.
    pub(in crate::transport) fn new(
        transport: &Rc<RefCell<TcpTransport>>,
        fifo: usize,
        place: &FifoPlace,
    ) -> Self {
        let &FifoPlace { source: from, depth, message_bytes_max, .. } = place;
        let end = transport.borrow_mut().open_incoming(fifo, from, depth, message_bytes_max);
        Self { transport: Rc::clone(transport), end, from }
    }

    pub(in crate::transport) fn poll(&self, signature: u64, bytes: usize) -> Poll {
        match self.transport.borrow().message(self.end) {
            None => Poll::Pending,
            Some((found, _, length)) if found == signature && length == bytes => Poll::Ready,
            Some((found, ..)) => Poll::Mismatch { found: found as u32 },
        }
    }

    pub(in crate::transport) fn place(&self) -> *mut u8 {
        let message = self.transport.borrow().message(self.end);
        message.map_or(std::ptr::null_mut(), |(_, place, _)| place.cast_mut())
    }

    pub(in crate::transport) fn release(&mut self) {
        self.transport.borrow_mut().release(self.end);
    }

    /// # Safety
    /// The place is writable for that length, and nothing else uses it until the message is released or forgotten.
    pub(in crate::transport) unsafe fn expect(&mut self, signature: u64, bytes: usize, place: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.transport.borrow_mut().expect(self.end, signature, bytes, place) };
    }
}
