//! One rank's ends of a plan's FIFOs and counters, and the addresses its steps use: what changes while a program runs.

// Slots and scratch are addresses in mapped memory.
#![allow(unsafe_code)]

use weftlink_plan::Verified;
use weftlink_plan::plan::Buffer;

use super::lanes::Cursor;
use crate::compile::base_of;
use crate::counter::Counter;
use crate::fifo::{Receiver, Sender};
use crate::layout::{FifoPlace, Layout, PACKET_WORDS};
use crate::memory::SharedMemory;
use crate::shared::{Call, lines_at};

/// What changes while a program runs.
pub(super) struct Ends {
    pub(super) rank: u32,
    pub(super) senders: Vec<SendEnd>,
    pub(super) receivers: Vec<ReceiveEnd>,
    pub(super) counters: Vec<Counter<'static>>,
    pub(super) counters_per_rank: usize,
    /// The values of this rank's own counters.
    pub(super) signalled: Vec<u32>,
    /// Tiles done since the plan was loaded; wraps, as all sequences do.
    pub(super) round: u32,
    /// Base addresses, three to a rank; those of peers' user buffers are null until they are first needed.
    pub(super) bases: Vec<*mut f32>,
    pub(super) reaches_users: bool,
    pub(super) sources: Vec<*const u8>,
    pub(super) targets: Vec<*mut u8>,
    /// A packet on its way out.
    pub(super) packet: Vec<u64>,
    pub(super) lanes: Vec<Cursor>,
}

pub(super) struct SendEnd {
    pub(super) fifo: Sender<'static>,
    pub(super) to: u32,
    pub(super) bulk: Bulk,
}

pub(super) struct ReceiveEnd {
    pub(super) fifo: Receiver<'static>,
    pub(super) from: u32,
    pub(super) bulk: Bulk,
    /// The packet that has arrived.
    pub(super) packet: Vec<u64>,
}

/// The memory of a FIFO's slots, which packets do without.
#[derive(Clone, Copy)]
pub(super) struct Bulk {
    base: *mut f32,
    slot_elements: usize,
}

impl Bulk {
    /// Whether payload rides with the flags.
    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.slot_elements == 0
    }

    /// Where a slot's message lies.
    #[inline]
    fn slot(self, slot: usize) -> *mut f32 {
        // SAFETY: there are `slot_elements` for each slot of the FIFO.
        unsafe { self.base.add(slot * self.slot_elements) }
    }
}

impl Ends {
    pub(super) fn new(
        plan: &Verified,
        layout: &Layout,
        rank: u32,
        sends: &[usize],
        receives: &[usize],
        memory: &SharedMemory,
    ) -> Self {
        let lines = |at: usize, count: usize| lines_at(memory, at, count);
        let bulk = |at: usize| {
            // SAFETY: the layout lies within the memory.
            unsafe { memory.as_ptr().add(at) }.cast::<f32>()
        };
        let packet = vec![0; PACKET_WORDS];
        let parts = |place: &FifoPlace| {
            let slots = lines(place.slots, place.depth * place.slot_lines);
            let slot_elements = place.bulk_stride / size_of::<f32>();
            (slots, &lines(place.released, 1)[0], Bulk { base: bulk(place.bulk), slot_elements })
        };
        let send = |&at: &usize| {
            let place = &layout.fifos[at];
            let (slots, released, bulk) = parts(place);
            SendEnd { fifo: Sender::new(slots, released, place.depth), to: place.target, bulk }
        };
        let receive = |&at: &usize| {
            let place = &layout.fifos[at];
            let (slots, released, bulk) = parts(place);
            let (fifo, from) = (Receiver::new(slots, released, place.depth), place.source);
            ReceiveEnd { fifo, from, bulk, packet: packet.clone() }
        };
        let (ranks, counters_per_rank) = (plan.ranks as usize, plan.counters as usize);
        let mut bases = vec![std::ptr::null_mut(); 3 * ranks];
        for owner in 0..plan.ranks {
            bases[base_of(owner, Buffer::Scratch) as usize] =
                bulk(layout.scratch + owner as usize * layout.scratch_stride);
        }
        let operands = ranks + 1;
        Self {
            rank,
            senders: sends.iter().map(send).collect(),
            receivers: receives.iter().map(receive).collect(),
            counters: lines(layout.counters, ranks * counters_per_rank).iter().map(Counter::new).collect(),
            counters_per_rank,
            signalled: vec![0; counters_per_rank],
            round: 0,
            bases,
            reaches_users: plan.needs_windows(),
            sources: Vec::with_capacity(operands),
            targets: Vec::with_capacity(operands),
            packet,
            lanes: vec![Cursor::default(); plan.programs[rank as usize].lanes.len()],
        }
    }

    /// A rank's counter.
    #[inline]
    pub(super) fn counter(&self, rank: u32, number: u32) -> Counter<'static> {
        self.counters[rank as usize * self.counters_per_rank + number as usize]
    }

    /// Points at this call's buffers.
    #[inline]
    pub(super) fn begin(&mut self, call: &Call) {
        if self.reaches_users {
            self.bases.chunks_exact_mut(3).for_each(|bases| bases[..2].fill(std::ptr::null_mut()));
        }
        self.bases[base_of(self.rank, Buffer::Input) as usize] = call.input.cast_mut();
        self.bases[base_of(self.rank, Buffer::Output) as usize] = call.output;
    }
}

impl ReceiveEnd {
    /// Where the message that has arrived lies, if it is in bulk memory.
    pub(super) fn slot(&self) -> *mut f32 {
        self.bulk.slot(self.fifo.slot())
    }
}

impl SendEnd {
    /// Where the next message is to be put, if it goes through bulk memory.
    pub(super) fn slot(&self) -> *mut f32 {
        self.bulk.slot(self.fifo.slot())
    }
}
