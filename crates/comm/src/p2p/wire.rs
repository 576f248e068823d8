//! Frames to and from ranks on other hosts: FIFOs of a [TCP transport](TcpTransport) that the endpoint owns.

// Copies between the caller's memory and messages of the transport.
#![allow(unsafe_code)]

use std::cell::{RefCell, RefMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weftlink_bootstrap::Connection;
use weftlink_p2p::Frame;
use weftlink_shm::line::PAYLOAD_WORDS;

use crate::durations;
use crate::transport::Fault;
use crate::transport::tcp::TcpTransport;

/// The bytes of a frame before its payload.
const HEADER_BYTES: usize = PAYLOAD_WORDS * size_of::<u64>();
/// Frames that may be in flight to a rank.
const DEPTH: usize = 8;
/// The most payload of a frame: less with many ranks, so that all of it stays within a budget.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
const PAYLOAD_BYTES_MIN: usize = 4 << 10;
const BUDGET_BYTES: usize = 32 << 20;

/// The connections of an endpoint to all ranks on other hosts. Only the endpoint's state refers to them, under its lock.
pub(super) struct Wires(RefCell<TcpTransport>);

/// This rank's end of the link to one of them.
pub(super) struct Wire {
    wires: Rc<Wires>,
    rank: u32,
    outward: u32,
    inward: u32,
    payload_bytes: usize,
}

impl Wires {
    /// Takes connections into use, encrypted or not, and returns the link to each rank.
    pub(super) fn new(
        rank: usize,
        size: usize,
        connections: Vec<(u32, Vec<Connection>)>,
        encrypt: bool,
    ) -> std::io::Result<(Rc<Wires>, Vec<Wire>)> {
        let mut tcp = TcpTransport::new(size)?;
        let payload_bytes = BUDGET_BYTES / (2 * DEPTH * connections.len().max(1));
        let payload_bytes = payload_bytes.clamp(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX);
        let mut ends = Vec::new();
        for (other, connections) in connections {
            tcp.connect(other, connections, encrypt)?;
            let (message, fifo) = (HEADER_BYTES + payload_bytes, |from, to| from * size + to);
            let outward = tcp.open_outgoing(fifo(rank, other as usize), other, DEPTH, message);
            let inward = tcp.open_incoming(fifo(other as usize, rank), other, DEPTH, message);
            ends.push((other, outward, inward));
        }
        let wires = Rc::new(Wires(RefCell::new(tcp)));
        let wire =
            |(rank, outward, inward)| Wire { wires: Rc::clone(&wires), rank, outward, inward, payload_bytes };
        let all = ends.into_iter().map(wire).collect();
        Ok((wires, all))
    }

    /// Reads what has arrived and sends what can be sent.
    pub(super) fn progress(&self) {
        self.tcp().progress(None);
    }

    /// Sends what can be sent, and reports to peers what was read.
    pub(super) fn flush(&self) {
        self.tcp().flush();
    }

    /// Whether frames are still to be handed to the kernel.
    pub(super) fn is_carrying(&self) -> bool {
        !self.tcp().is_idle()
    }

    /// The descriptor that becomes readable when something arrives.
    pub(super) fn watched(&self) -> Arc<OwnedFd> {
        self.tcp().watched()
    }

    fn tcp(&self) -> RefMut<'_, TcpTransport> {
        self.0.borrow_mut()
    }
}

impl Drop for Wires {
    /// Hands frames that their senders believe sent to the kernel first.
    fn drop(&mut self) {
        let began = Instant::now();
        let tcp = self.0.get_mut();
        while !tcp.is_idle() && !tcp.has_faults() && began.elapsed() < durations::LAST_FLUSH {
            if !tcp.progress(None) {
                std::thread::sleep(durations::LAST_FLUSH_POLL);
            }
        }
    }
}

impl Wire {
    pub(super) fn frame_bytes_max(&self) -> usize {
        self.payload_bytes
    }

    pub(super) fn has_room(&self) -> bool {
        self.wires.tcp().has_room(self.outward)
    }

    /// Why the connection failed, if it did.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.wires.tcp().fault(Some(self.rank)).map(|(_, fault)| fault.clone())
    }

    /// Sends a frame with its payload, for which there must be room.
    ///
    /// # Safety
    /// The payload is readable for `bytes`, which are no more than a frame carries.
    pub(super) unsafe fn send(&mut self, frame: &Frame, payload: *const u8, bytes: usize) {
        debug_assert!(bytes <= self.payload_bytes, "{bytes} bytes in a frame");
        let mut tcp = self.wires.tcp();
        let target = tcp.room(self.outward);
        let words = frame.pack().map(u64::to_le);
        // SAFETY: the message has room for a frame and its payload, which the caller has promised to be there.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr().cast::<u8>(), target, HEADER_BYTES);
            if bytes > 0 {
                std::ptr::copy_nonoverlapping(payload, target.add(HEADER_BYTES), bytes);
            }
        }
        tcp.put(self.outward, 0, HEADER_BYTES + bytes);
    }

    /// The words of the next frame, if one has arrived.
    pub(super) fn arrived(&self) -> Option<[u64; PAYLOAD_WORDS]> {
        let (_, place, bytes) = self.wires.tcp().message(self.inward)?;
        let mut words = [0_u64; PAYLOAD_WORDS];
        if bytes >= HEADER_BYTES {
            // SAFETY: the message has at least as many bytes, and stays until it is released.
            unsafe { std::ptr::copy_nonoverlapping(place, words.as_mut_ptr().cast::<u8>(), HEADER_BYTES) };
        }
        Some(words.map(u64::from_le))
    }

    /// Copies the payload of the frame that has arrived: as many bytes as it says, but no more than arrived or `room`.
    ///
    /// # Safety
    /// The target is writable for `room` bytes, and nobody else uses them.
    pub(super) unsafe fn payload(&self, frame: &Frame, target: *mut u8, room: usize) {
        let Some((_, place, bytes)) = self.wires.tcp().message(self.inward) else { return };
        let bytes = (frame.bytes as usize).min(room).min(bytes.saturating_sub(HEADER_BYTES));
        // SAFETY: the message has as many bytes behind its frame, and stays until it is released; the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(place.wrapping_add(HEADER_BYTES), target, bytes) };
    }

    /// Releases the frame that has arrived.
    pub(super) fn next(&mut self) {
        self.wires.tcp().release(self.inward);
    }
}
