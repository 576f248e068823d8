//! One rank's ends of all FIFOs of its communicator, whichever plan uses them.

// Slots are addresses in mapped memory.
#![allow(unsafe_code)]

use crate::fifo::{Receiver, Sender};
use crate::layout::{FifoPlace, Fifos, Layout, PACKET_WORDS};
use crate::memory::SharedMemory;
use crate::shared::lines_at;

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

/// The memory of a FIFO's slots, which packets do without.
#[derive(Clone, Copy)]
struct Bulk {
    base: *mut u8,
    slot_bytes: usize,
}

impl Bulk {
    /// Where a slot's message lies.
    #[inline]
    fn slot(self, slot: usize) -> *mut u8 {
        // SAFETY: there are `slot_bytes` for each slot of the FIFO.
        unsafe { self.base.add(slot * self.slot_bytes) }
    }
}

impl Ports {
    /// No ends yet.
    pub(crate) fn new() -> Self {
        Self {
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
    pub(crate) fn place(&mut self, plan: &weftlink_plan::Verified) -> Layout {
        let lanes = plan.programs.iter().flat_map(|program| &program.lanes);
        let operands =
            lanes.flat_map(|lane| lane.steps()).map(|step| step.inputs.len().max(step.outputs.len()));
        // One more: packets are made from a copy of the result.
        let operands = operands.max().unwrap_or(0).max(self.sources.len().saturating_sub(1)) + 1;
        self.sources.resize(operands, std::ptr::null());
        self.targets.resize(operands, std::ptr::null_mut());
        self.piece_sources.reserve(operands);
        self.piece_targets.reserve(operands);
        Layout::new(plan, &mut self.fifos)
    }

    /// Opens this rank's ends of a plan's new FIFOs, in the plan's memory, and keeps that.
    pub(crate) fn open(&mut self, layout: &Layout, rank: u32, memory: SharedMemory) {
        for number in layout.new_fifos.clone() {
            let place = &self.fifos.places()[number];
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

fn bulk(place: &FifoPlace, memory: &SharedMemory) -> Bulk {
    // SAFETY: the layout lies within the memory.
    Bulk { base: unsafe { memory.as_ptr().add(place.bulk) }, slot_bytes: place.bulk_stride }
}

impl SendEnd {
    fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        let slots = lines_at(memory, place.slots, place.depth * place.slot_lines);
        let fifo = Sender::new(slots, &lines_at(memory, place.released, 1)[0], place.depth);
        SendEnd { fifo, to: place.target, bulk: bulk(place, memory) }
    }

    /// Where the next message is to be put, if it goes through bulk memory.
    #[inline]
    pub(super) fn slot(&self) -> *mut u8 {
        self.bulk.slot(self.fifo.slot())
    }
}

impl ReceiveEnd {
    fn new(place: &FifoPlace, memory: &SharedMemory) -> Self {
        let slots = lines_at(memory, place.slots, place.depth * place.slot_lines);
        let fifo = Receiver::new(slots, &lines_at(memory, place.released, 1)[0], place.depth);
        ReceiveEnd {
            fifo,
            from: place.source,
            bulk: bulk(place, memory),
            packet: Box::new([0; PACKET_WORDS]),
        }
    }

    /// Whether payload rides with the flags.
    #[inline]
    pub(super) fn is_packet(&self) -> bool {
        self.bulk.slot_bytes == 0
    }

    /// Where the message that has arrived lies, if it is in bulk memory.
    #[inline]
    pub(super) fn slot(&self) -> *mut u8 {
        self.bulk.slot(self.fifo.slot())
    }
}
