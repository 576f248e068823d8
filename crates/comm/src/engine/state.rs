//! The state of a running program: one rank's counters of a plan, its position, and the addresses that its steps use.

// Scratch is an address in mapped memory.
#![allow(unsafe_code)]

use weftlink_plan::Verified;
use weftlink_plan::plan::Buffer;
use weftlink_shm::counter::Counter;
use weftlink_shm::memory::SharedMemory;

use super::lanes::Cursor;
use crate::compile::base_of;
use crate::layout::Layout;
use crate::shared::Call;
use crate::transport::lines_at;

/// The state of a running program.
pub(super) struct State {
    pub(super) rank: u32,
    pub(super) counters: Vec<Counter<'static>>,
    pub(super) counters_per_rank: usize,
    /// The values of this rank's own counters.
    pub(super) signalled: Vec<u32>,
    /// Tiles done since the plan was loaded; wraps, as all sequences do.
    pub(super) round: u32,
    /// Base addresses, three to a rank; those of peers' user buffers are unset until they are first needed.
    pub(super) bases: Vec<Base>,
    pub(super) reaches_users: bool,
    pub(super) lanes: Vec<Cursor>,
}

/// Where a buffer starts.
#[derive(Clone, Copy)]
pub(super) enum Base {
    Unset,
    /// In this process.
    Mapped(*mut u8),
    /// In another process, whose memory only the kernel can read.
    Foreign(u64),
}

// SAFETY: as for the ports: memory mapped for as long as the engine lives, or the caller's during a call.
unsafe impl Send for State {}

impl State {
    pub(super) fn new(plan: &Verified, layout: &Layout, rank: u32, memory: &SharedMemory) -> Self {
        let (ranks, counters_per_rank) = (plan.ranks as usize, plan.counters as usize);
        let mut bases = vec![Base::Unset; 3 * ranks];
        for owner in 0..plan.ranks {
            // SAFETY: the layout lies within the memory.
            let scratch =
                unsafe { memory.as_ptr().add(layout.scratch + owner as usize * layout.scratch_stride) };
            bases[base_of(owner, Buffer::Scratch) as usize] = Base::Mapped(scratch);
        }
        let counters = lines_at(memory, layout.counters, ranks * counters_per_rank);
        Self {
            rank,
            counters: counters.iter().map(Counter::new).collect(),
            counters_per_rank,
            signalled: vec![0; counters_per_rank],
            round: 0,
            bases,
            reaches_users: plan.needs_windows(),
            lanes: vec![Cursor::default(); plan.programs[rank as usize].lanes.len()],
        }
    }

    /// A rank's counter.
    #[inline]
    pub(super) fn counter(&self, rank: u32, number: u32) -> Counter<'static> {
        self.counters[rank as usize * self.counters_per_rank + number as usize]
    }

    /// Sets this call's buffers.
    #[inline]
    pub(super) fn begin(&mut self, call: &Call<'_>) {
        if self.reaches_users {
            self.bases.chunks_exact_mut(3).for_each(|bases| bases[..2].fill(Base::Unset));
        }
        self.bases[base_of(self.rank, Buffer::Input) as usize] = Base::Mapped(call.input.cast_mut());
        self.bases[base_of(self.rank, Buffer::Output) as usize] = Base::Mapped(call.output);
    }
}
