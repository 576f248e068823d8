//! Where a FIFO lies: what `layout.rs` works out and the two ports of the FIFO are opened from.

// Lines are places in mapped memory.
#![allow(unsafe_code)]

use weftlink_shm::line::{Line, PAYLOAD_WORDS};
use weftlink_shm::memory::SharedMemory;

use super::Transport;

/// Bytes of a line: cuts fall on its multiples, so that two ranks never write the same one.
pub(crate) const LINE: usize = size_of::<Line>();

/// Lines of a message whose payload rides with its flags.
pub(crate) const PACKET_LINES: usize = 20;
/// Words of such a message.
pub(crate) const PACKET_WORDS: usize = PACKET_LINES * PAYLOAD_WORDS;
/// Bytes of such a message.
pub(crate) const PACKET_BYTES: usize = PACKET_WORDS * size_of::<u64>();

/// One FIFO.
#[derive(Debug, Clone)]
pub(crate) struct FifoPlace {
    pub(crate) source: u32,
    pub(crate) target: u32,
    pub(crate) depth: usize,
    pub(crate) transport: Transport,
    /// In the memory of the plan that needed it first, if its transport takes memory there and its ranks are on this host: the line
    /// with the credits, then the lines of the slots, then bulk memory, if any.
    pub(crate) released: usize,
    pub(crate) slots: usize,
    pub(crate) slot_lines: usize,
    pub(crate) bulk: usize,
    pub(crate) bulk_bytes: usize,
    /// The most bytes of a message, unless payload rides with the flags.
    pub(crate) message_bytes_max: usize,
}

impl FifoPlace {
    /// One that has no place in this host's memory.
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

    /// The rank at the other end, if a rank is at one.
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
    // SAFETY: the range is mapped and aligned, and all bit patterns are lines. The engine and the communicator drop what
    // they make of these lines before the memory.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().add(at).cast::<Line>(), count) }
}
