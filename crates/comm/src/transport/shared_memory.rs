//! Ports in memory that all ranks of a host map: the FIFOs of `weftlink_shm`, and the payload of their messages.
//!
//! A message's payload is in the lines of its flags, seven words each (a *packet*), or in bulk memory beside them. Packets have port types
//! of their own: the smallest calls use them without a match.

// Messages are addresses in mapped memory.
#![allow(unsafe_code)]

use weftlink_shm::fifo::{Receiver, Sender};
use weftlink_shm::line::{Line, Poll};
use weftlink_shm::memory::SharedMemory;

use super::Capabilities;
use super::place::{FifoPlace, LINE, PACKET_WORDS, lines_at};

/// Ranks that map the same memory load and store in it: windows, scratch, counters.
pub(super) const CAPABILITIES: Capabilities =
    Capabilities { fifo: true, put: true, get: true, ..Capabilities::NONE };

/// The end of a FIFO that sends packets.
pub(crate) struct PacketSendPort {
    fifo: Sender<'static>,
    pub(crate) to: u32,
}

impl PacketSendPort {
    pub(super) fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        Self { fifo: sender(place, memory), to: place.target }
    }

    /// Whether a packet may be published.
    #[inline]
    pub(crate) fn poll(&mut self) -> Poll {
        if self.fifo.has_credit() { Poll::Ready } else { Poll::Pending }
    }

    /// Sends a packet. Returns the line to wake.
    #[inline]
    pub(crate) fn publish(&mut self, signature: u32, words: &[u64]) -> &'static Line {
        self.fifo.publish_packet(signature, words)
    }

    /// The line whose change makes the port ready.
    #[inline]
    pub(crate) fn line(&self) -> &'static Line {
        self.fifo.credit_line()
    }
}

/// The end of a FIFO that receives packets.
pub(crate) struct PacketReceivePort {
    fifo: Receiver<'static>,
    pub(crate) from: u32,
    /// The packet that has arrived.
    packet: Box<[u64; PACKET_WORDS]>,
}

impl PacketReceivePort {
    pub(super) fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        Self { fifo: receiver(place, memory), from: place.source, packet: Box::new([0; PACKET_WORDS]) }
    }

    /// Copies the payload of the next packet, which has `words` words, out of its lines, if it has arrived.
    #[inline(always)]
    pub(crate) fn poll(&mut self, signature: u32, words: usize) -> Poll {
        self.fifo.take_packet(signature, &mut self.packet[..words])
    }

    /// The payload that was copied.
    #[inline]
    pub(crate) fn place(&self) -> *const u8 {
        self.packet.as_ptr().cast()
    }

    /// Releases the packet that has arrived. Returns the line to wake.
    #[inline]
    pub(crate) fn release(&mut self) -> &'static Line {
        self.fifo.release()
    }

    /// The line whose change announces the next packet.
    #[inline]
    pub(crate) fn line(&self) -> &'static Line {
        self.fifo.arrival_line()
    }
}

/// The end of a FIFO that sends through bulk memory.
pub(crate) struct SendPort {
    fifo: Sender<'static>,
    pub(super) to: u32,
    bulk: Bulk,
}

impl SendPort {
    pub(super) fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        Self { fifo: sender(place, memory), to: place.target, bulk: Bulk::new(place, memory) }
    }

    #[inline]
    pub(super) fn has_credit(&mut self) -> bool {
        self.fifo.has_credit()
    }

    #[inline]
    pub(super) fn place(&self) -> *mut u8 {
        self.bulk.place()
    }

    #[inline]
    pub(super) fn publish(&mut self, signature: u32, taken: usize) -> &'static Line {
        self.bulk.advance(taken);
        self.fifo.publish(signature)
    }

    #[inline]
    pub(super) fn line(&self) -> &'static Line {
        self.fifo.credit_line()
    }
}

/// The end of a FIFO that receives through bulk memory.
pub(crate) struct ReceivePort {
    fifo: Receiver<'static>,
    pub(super) from: u32,
    bulk: Bulk,
}

impl ReceivePort {
    pub(super) fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        Self { fifo: receiver(place, memory), from: place.source, bulk: Bulk::new(place, memory) }
    }

    #[inline]
    pub(super) fn poll(&self, signature: u32) -> Poll {
        self.fifo.poll(signature)
    }

    #[inline]
    pub(super) fn place(&self) -> *mut u8 {
        self.bulk.place()
    }

    #[inline]
    pub(super) fn release(&mut self, taken: usize) -> &'static Line {
        self.bulk.advance(taken);
        self.fifo.release()
    }

    #[inline]
    pub(super) fn line(&self) -> &'static Line {
        self.fifo.arrival_line()
    }
}

fn sender(place: &FifoPlace, memory: &SharedMemory) -> Sender<'static> {
    let slots = lines_at(memory, place.slots, place.depth * place.slot_lines);
    Sender::new(slots, &lines_at(memory, place.released, 1)[0], place.depth)
}

fn receiver(place: &FifoPlace, memory: &SharedMemory) -> Receiver<'static> {
    let slots = lines_at(memory, place.slots, place.depth * place.slot_lines);
    Receiver::new(slots, &lines_at(memory, place.released, 1)[0], place.depth)
}

/// The memory for a FIFO's messages, and the place of the next one. Messages follow each other through it, each from the start of a
/// line, and wrap around when the longest possible message might not fit before the end.
///
/// There is room for `depth + 1` of the longest messages. The messages in flight besides the next, at most `depth - 1`, lie right
/// before it, or, after a wrap, less than one message before the end of the memory: either way no two overlap. Small messages do
/// not reuse the same lines at once, which would still be in the peer's nearest cache.
struct Bulk {
    base: *mut u8,
    bytes: usize,
    message_bytes_max: usize,
    next: usize,
}

impl Bulk {
    fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        // SAFETY: the layout lies within the memory.
        let base = unsafe { memory.as_ptr().add(place.bulk) };
        Self { base, bytes: place.bulk_bytes, message_bytes_max: place.message_bytes_max, next: 0 }
    }

    /// Where the next message lies.
    #[inline]
    fn place(&self) -> *mut u8 {
        // SAFETY: there is room for a message from there on.
        unsafe { self.base.add(self.next) }
    }

    /// The next message occupies `bytes` at both ends, at most those of the longest.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        let next = self.next + bytes.min(self.message_bytes_max).next_multiple_of(LINE);
        self.next = if next + self.message_bytes_max <= self.bytes { next } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn messages_in_flight_never_overlap() {
        let mut random = 1_u32;
        for depth in [1, 2, 4] {
            let mut memory = vec![0_u8; (depth + 1) * 640];
            let (base, bytes) = (memory.as_mut_ptr(), memory.len());
            let mut bulk = Bulk { base, bytes, message_bytes_max: 640, next: 0 };
            let mut in_flight = VecDeque::new();
            for _ in 0..10_000 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Often the longest, often nothing.
                let length = ((random >> 16) as usize % 800).saturating_sub(80).min(640);
                let place = bulk.place().addr() - base.addr();
                assert!(place + length <= bytes);
                let is_apart = |&(other, end): &(usize, usize)| place + length <= other || end <= place;
                assert!(in_flight.iter().all(is_apart), "{place} {length} {in_flight:?}");
                in_flight.push_back((place, place + length));
                if in_flight.len() == depth {
                    in_flight.pop_front();
                }
                bulk.advance(length);
            }
        }
    }
}
