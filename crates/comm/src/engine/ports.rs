//! One rank's ends of all FIFOs of its communicator, whichever plan uses them.

// Slots are addresses in mapped memory.
#![allow(unsafe_code)]

use std::collections::BTreeSet;

use weftlink_shm::fifo::{Receiver, Sender};
use weftlink_shm::line::Line;
use weftlink_shm::memory::SharedMemory;

use crate::layout::{FifoPlace, Fifos, LINE, Layout, PACKET_WORDS};
use crate::shared::lines_at;
use crate::wire::{Courier, Fault};

/// The ends, and what messages need on their way.
pub(crate) struct Ports {
    pub(super) fifos: Fifos,
    /// The number of this rank's end of each FIFO, where it has one.
    pub(super) ends: Vec<u32>,
    pub(super) senders: Vec<SendEnd>,
    pub(super) receivers: Vec<ReceiveEnd>,
    /// A packet on its way out.
    pub(super) packet: Box<[u64; PACKET_WORDS]>,
    /// The operands of a step; as many places as any step needs.
    pub(super) sources: Vec<*const u8>,
    pub(super) targets: Vec<*mut u8>,
    /// Where pieces of peers' memory are put that is read by the kernel.
    pub(super) pieces: Vec<u8>,
    pub(super) piece_sources: Vec<*const u8>,
    pub(super) piece_targets: Vec<*mut u8>,
    /// The ends of FIFOs that leave the host, if any rank is elsewhere.
    pub(super) courier: Option<Box<Courier>>,
    /// Unmapped last: the ends point into it.
    _memories: Vec<SharedMemory>,
}

// SAFETY: the raw addresses point into memory mapped for the ports' lifetime or, during a call, into the caller's buffers;
// no thread but the one that owns the ports uses them from here.
unsafe impl Send for Ports {}

pub(super) struct SendEnd {
    pub(super) fifo: Sender<'static>,
    pub(super) to: u32,
    bulk: Bulk,
}

pub(super) struct ReceiveEnd {
    pub(super) fifo: Receiver<'static>,
    pub(super) from: u32,
    bulk: Bulk,
    /// The packet that has arrived.
    pub(super) packet: Box<[u64; PACKET_WORDS]>,
}

/// The memory for a FIFO's messages, which packets do without, and where the next one is. They follow each other through it, a
/// line's start each, and begin again when the longest possible one might not fit before its end.
///
/// As many as a FIFO holds, `depth` of the longest, and one more have room. What is in flight beside the next message, at most
/// `depth - 1`, lies right before it, or ends less than one behind the end of the memory if it begins again: either way no two
/// overlap. Small messages do not use the same lines over and over, which would still be in the peer's nearest cache.
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

    /// The next message took so many bytes at both ends, or as many as any.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        if self.bytes > 0 {
            let next = self.next + bytes.min(self.message_bytes_max).next_multiple_of(LINE);
            self.next = if next + self.message_bytes_max <= self.bytes { next } else { 0 };
        }
    }
}

impl Ports {
    /// No ends yet; with a courier if ranks are on several hosts.
    pub(crate) fn new(courier: Option<Box<Courier>>) -> Self {
        Self {
            courier,
            fifos: Fifos::default(),
            ends: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            packet: Box::new([0; PACKET_WORDS]),
            sources: Vec::new(),
            targets: Vec::new(),
            pieces: Vec::new(),
            piece_sources: Vec::new(),
            piece_targets: Vec::new(),
            _memories: Vec::new(),
        }
    }

    /// Places a plan among the FIFOs there are. Call [`Ports::open`] with memory for those that are new.
    pub(crate) fn place(&mut self, plan: &weftlink_plan::Verified, hosts: &[u32], here: u32) -> Layout {
        let lanes = plan.programs.iter().flat_map(|program| &program.lanes);
        let operands =
            lanes.flat_map(|lane| lane.steps()).map(|step| step.inputs.len().max(step.outputs.len()));
        // One more: packets are made from a copy of the result.
        let operands = operands.max().unwrap_or(0).max(self.sources.len().saturating_sub(1)) + 1;
        self.sources.resize(operands, std::ptr::null());
        self.targets.resize(operands, std::ptr::null_mut());
        self.piece_sources.reserve(operands);
        self.piece_targets.reserve(operands);
        Layout::new(plan, &mut self.fifos, hosts, here)
    }

    /// The ranks elsewhere that a plan's new FIFOs lead to or come from, and to which there is no connection yet.
    pub(crate) fn unconnected(&self, layout: &Layout, rank: u32) -> BTreeSet<u32> {
        let Some(courier) = &self.courier else { return BTreeSet::new() };
        let places = &self.fifos.places()[layout.new_fifos.clone()];
        let other = |place: &FifoPlace| match (place.source == rank, place.target == rank) {
            (true, _) => Some(place.target),
            (_, true) => Some(place.source),
            _ => None,
        };
        let crossing = places.iter().filter(|place| place.crosses).filter_map(other);
        crossing.filter(|&peer| !courier.is_connected(peer)).collect()
    }

    /// What is wrong with the connection to a rank, if anything is.
    pub(crate) fn fault(&self, rank: u32) -> Option<&Fault> {
        self.courier.as_ref()?.fault(Some(rank)).map(|(_, fault)| fault)
    }

    /// The connections to ranks elsewhere.
    pub(crate) fn courier(&mut self) -> Option<&mut Courier> {
        self.courier.as_deref_mut()
    }

    /// Opens this rank's ends of a plan's new FIFOs, in the plan's memory, and keeps that.
    pub(crate) fn open(&mut self, layout: &Layout, rank: u32, memory: SharedMemory) {
        for number in layout.new_fifos.clone() {
            let place = &self.fifos.places()[number];
            let (depth, bytes) = (place.depth, place.message_bytes_max);
            if place.crosses && [place.source, place.target].contains(&rank) {
                let Some(courier) = &mut self.courier else { unreachable!("ranks are on several hosts") };
                self.ends.push(match place.source == rank {
                    true => courier.open_outgoing(number, place.target, depth, bytes),
                    false => courier.open_incoming(number, place.source, depth, bytes),
                });
                continue;
            }
            let end = if place.source == rank {
                self.senders.push(SendEnd::new(place, &memory));
                self.senders.len() - 1
            } else if place.target == rank {
                self.receivers.push(ReceiveEnd::new(place, &memory));
                self.receivers.len() - 1
            } else {
                usize::MAX
            };
            self.ends.push(end as u32);
        }
        self._memories.push(memory);
    }
}

impl SendEnd {
    fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        let slots = lines_at(memory, place.slots, place.depth * place.slot_lines);
        let fifo = Sender::new(slots, &lines_at(memory, place.released, 1)[0], place.depth);
        SendEnd { fifo, to: place.target, bulk: Bulk::new(place, memory) }
    }

    /// Where the next message is to be put, if it goes through bulk memory.
    #[inline]
    pub(super) fn place(&self) -> *mut u8 {
        self.bulk.place()
    }

    /// Sends the message of so many bytes that was put there. Returns the line to wake.
    #[inline]
    pub(super) fn publish(&mut self, signature: u32, bytes: usize) -> &'static Line {
        self.bulk.advance(bytes);
        self.fifo.publish(signature)
    }
}

impl ReceiveEnd {
    fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        let slots = lines_at(memory, place.slots, place.depth * place.slot_lines);
        let fifo = Receiver::new(slots, &lines_at(memory, place.released, 1)[0], place.depth);
        ReceiveEnd {
            fifo,
            from: place.source,
            bulk: Bulk::new(place, memory),
            packet: Box::new([0; PACKET_WORDS]),
        }
    }

    /// Whether payload rides with the flags.
    #[inline]
    pub(super) fn is_packet(&self) -> bool {
        self.bulk.bytes == 0
    }

    /// Where the message that has arrived lies, if it is in bulk memory.
    #[inline]
    pub(super) fn place(&self) -> *mut u8 {
        self.bulk.place()
    }

    /// Gives the message of so many bytes that has arrived back. Returns the line to wake.
    #[inline]
    pub(super) fn release(&mut self, bytes: usize) -> &'static Line {
        self.bulk.advance(bytes);
        self.fifo.release()
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
