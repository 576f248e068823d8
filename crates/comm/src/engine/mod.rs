//! Runs one rank's part of a plan: its ends of the plan's FIFOs, its counters, its compiled programs, and the loop
//! that takes their steps.
//!
//! A step waits for everything it needs (counters, messages, free slots), then moves its elements in one pass of a
//! kernel from all sources to all targets, then publishes: messages and signals first, then the slots it has read.
//! With one lane, which is the usual case on a CPU, steps are taken in order and each wait is a wait. With several,
//! the rank's one thread goes from lane to lane, takes what is ready, and waits only when nothing is.
//!
//! Nothing here allocates, locks or calls the kernel once a count has been compiled, except to yield or sleep in a long wait.

// The engine hands out addresses in mapped memory and in the caller's buffers.
#![allow(unsafe_code)]

mod ends;
mod lanes;
mod step;

use std::sync::Arc;

use weftlink_plan::domain::chunks::chunks_of_steps;
use weftlink_plan::{Aliasing, Cut, Verified};

use crate::compile::{Compiler, Program};
use crate::layout::{FifoPlace, Layout};
use crate::memory::SharedMemory;
use crate::shared::{Call, Shared};
use crate::wait::Stop;
use ends::Ends;

/// How many counts are kept compiled. A training job has as many as it has gradient buckets.
const PROGRAMS_MAX: usize = 64;

/// A plan ready to run on one rank.
pub(crate) struct Engine {
    pub(crate) plan: Arc<Verified>,
    layout: Layout,
    per_tile: Vec<Vec<u32>>,
    chunks: Vec<Vec<Option<u32>>>,
    sends: Vec<usize>,
    receives: Vec<usize>,
    programs: Vec<Program>,
    /// The program that ran last, which most often runs next.
    current: usize,
    ends: Ends,
    /// Unmapped last: everything above points into it.
    _memory: SharedMemory,
}

// SAFETY: the raw addresses point into memory mapped for the engine's lifetime or, during a call, into the caller's
// buffers; no thread but the one that owns the engine uses them from here.
unsafe impl Send for Engine {}

impl Engine {
    /// The bytes of shared memory that all ranks need together to run a plan.
    pub(crate) fn bytes(plan: &Verified) -> usize {
        Layout::new(plan).bytes
    }

    /// Prepares a plan in fresh memory of [`Engine::bytes`], which all its ranks have mapped.
    pub(crate) fn new(plan: Arc<Verified>, rank: u32, memory: SharedMemory) -> Self {
        let layout = Layout::new(&plan);
        assert!(memory.len() >= layout.bytes, "the plan needs {} bytes", layout.bytes);
        let per_tile: Vec<_> =
            (0..plan.ranks).map(|rank| plan.well_formed().signals_per_tile(rank)).collect();
        let chunks = chunks_of_steps(&plan).swap_remove(rank as usize);
        let mine = |is_mine: &dyn Fn(&FifoPlace) -> bool| {
            (0..layout.fifos.len()).filter(|&at| is_mine(&layout.fifos[at])).collect::<Vec<_>>()
        };
        let sends = mine(&|fifo| fifo.source == rank);
        let receives = mine(&|fifo| fifo.target == rank);
        let ends = Ends::new(&plan, &layout, rank, &sends, &receives, &memory);
        let programs = Vec::with_capacity(PROGRAMS_MAX);
        Self { plan, layout, per_tile, chunks, sends, receives, programs, current: 0, ends, _memory: memory }
    }

    /// Whether the plan reaches into peers' buffers, so that these must be symmetric.
    #[inline]
    pub(crate) fn needs_windows(&self) -> bool {
        self.ends.reaches_users
    }

    /// Whether the plan is proved for buffers that are passed like this.
    #[inline]
    pub(crate) fn claims(&self, aliasing: Aliasing) -> bool {
        self.plan.aliasing.contains(&aliasing)
    }

    /// How a buffer of so many elements is cut.
    pub(crate) fn cut(&self, count: usize) -> Cut {
        self.layout.cut(&self.plan, count)
    }

    /// Runs a call to its end. The caller has announced it.
    ///
    /// # Safety
    /// `call.input` and `call.output` are valid for `call.header.count` elements, the same memory or disjoint as the
    /// header's aliasing says, the plan claims that aliasing, and nobody else uses them but peers of the same call.
    #[inline]
    pub(crate) unsafe fn run(
        &mut self,
        shared: &Shared,
        call: &Call,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        let count = call.header.count as usize;
        if self.programs.get(self.current).is_none_or(|program| program.count != count) {
            self.current = self.program(count);
        }
        self.ends.run(&Run { shared, call, program: &self.programs[self.current] }, tracer)
    }

    /// The position of the program for a count, compiled if need be.
    #[cold]
    fn program(&mut self, count: usize) -> usize {
        if let Some(found) = self.programs.iter().position(|program| program.count == count) {
            return found;
        }
        let Self { plan, layout, per_tile, chunks, sends, receives, .. } = &*self;
        let compiler = Compiler { plan, layout, rank: self.ends.rank, per_tile, chunks, sends, receives };
        let program = compiler.compile(count);
        if self.programs.len() == PROGRAMS_MAX {
            self.programs.remove(0);
        }
        self.programs.push(program);
        self.programs.len() - 1
    }
}

/// What the parts of a running call look at.
#[derive(Clone, Copy)]
struct Run<'a> {
    shared: &'a Shared,
    call: &'a Call,
    program: &'a Program,
}

/// Where and why a call stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) stop: Stop,
    /// The lane and its step, if one step was waiting.
    pub(crate) step: Option<(u32, u32)>,
    pub(crate) waiting: Waiting,
}

/// What was waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Entered {
        rank: u32,
    },
    Reached {
        rank: u32,
        counter: u32,
    },
    Message {
        from: u32,
    },
    Slot {
        to: u32,
    },
    /// Any of several lanes.
    Anything,
}

/// Is told each step when its inputs are there and nothing has been published. A test's ear; costs nothing else.
pub(crate) trait Tracer {
    fn step(&mut self, lane: u32, tile: u32, ordinal: u32);
}

/// Hears nothing.
pub(crate) struct Silent;

impl Tracer for Silent {
    #[inline(always)]
    fn step(&mut self, _lane: u32, _tile: u32, _ordinal: u32) {}
}
