//! Where a FIFO lies: computed by `layout.rs`, used to open the FIFO's two ports.

// Lines are places in mapped memory.
#![allow(unsafe_code)]

use weftlink_shm::line::{Line, PAYLOAD_WORDS};
use weftlink_shm::memory::SharedMemory;

use super::Transport;

/// Bytes of a line: buffers are cut at multiples of it, so that two ranks never write the same line.
pub(crate) const LINE: usize = size_of::<Line>();

/// Lines of a packet: a message whose payload is in the lines of its flags.
pub(crate) const PACKET_LINES: usize = 20;
/// Words of a packet.
pub(crate) const PACKET_WORDS: usize = PACKET_LINES * PAYLOAD_WORDS;
/// Bytes of a packet.
pub(crate) const PACKET_BYTES: usize = PACKET_WORDS * size_of::<u64>();

/// One FIFO.
#[derive(Debug, Clone)]
pub(crate) struct FifoPlace {
    pub(crate) source: u32,
    pub(crate) target: u32,
    pub(crate) depth: usize,
    pub(crate) transport: Transport,
    /// In the memory of the first plan that uses it, if its transport is mapped and its ranks are on this host: the line
    /// with the credits, then the lines of the slots, then bulk memory, if any.
    pub(crate) released: usize,
    pub(crate) slots: usize,
    pub(crate) slot_lines: usize,
    pub(crate) bulk: usize,
    pub(crate) bulk_bytes: usize,
    /// The most bytes of a message that is not a packet.
    pub(crate) message_bytes_max: usize,
}

impl FifoPlace {
    /// A FIFO that has no place in this host's memory.
    pub(crate) fn elsewhere(
        (source, target): (u32, u32),
        transport: Transport,
        depth: usize,
        message_bytes_max: usize,
    ) -> Self {
        let (released, slots, slot_lines, bulk, bulk_bytes) = (0, 0, 0, 0, 0);
        Self {
            source,
            target,
            depth,
            transport,
            released,
            slots,
            slot_lines,
            bulk,
            bulk_bytes,
            message_bytes_max,
        }
    }

    /// The rank at the other end, if `rank` is at one of them.
    pub(super) fn peer_of(&self, rank: u32) -> Option<u32> {
        match (self.source == rank, self.target == rank) {
            (true, _) => Some(self.target),
            (_, true) => Some(self.source),
            _ => None,
        }
    }
}

/// Lines in mapped memory, for as long as the engine keeps it mapped.
pub(crate) fn lines_at(memory: &SharedMemory, at: usize, count: usize) -> &'static [Line] {
    assert!(at.is_multiple_of(LINE) && at + count * LINE <= memory.len(), "lines lie within the memory");
    // SAFETY: the range is mapped and aligned, and all bit patterns are valid lines. The engine and the communicator drop
    // everything that refers to these lines before the memory.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().add(at).cast::<Line>(), count) }
}
