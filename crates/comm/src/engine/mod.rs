//! Runs one rank's part of a plan: its counters, its compiled programs, and the loop that takes their steps.
//!
//! A step waits for everything it needs (counters, messages, free slots), then moves its elements in one pass of a
//! kernel from all sources to all targets, then publishes: messages and signals first, then the slots it has read.
//! With one lane, the usual case on a CPU, steps run in order and each wait blocks. With several, the rank's one thread
//! goes from lane to lane, runs the steps that are ready, and blocks only when none is.
//!
//! Once a shape has been compiled, nothing here allocates, locks or makes a system call, except to yield or sleep in a long
//! wait, and to read peers' ordinary memory where plans do.

// The engine hands out addresses in mapped memory and in the caller's buffers.
#![allow(unsafe_code)]

mod lanes;
mod packets;
mod ports;
mod state;
mod step;

use std::sync::Arc;

use weftlink_plan::domain::chunks::{Origin, origins_of_steps};
use weftlink_plan::{Aliasing, Cut, Verified};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::Stop;

use crate::compile::{Compiler, Program, Shape, Unfit};
use crate::layout::Layout;
use crate::shared::{Call, Shared};
pub(crate) use ports::Ports;
use state::State;

/// The most shapes that are kept compiled. A training job has as many as it has gradient buckets.
const PROGRAMS_MAX: usize = 64;

/// A plan ready to run on one rank.
pub(crate) struct Engine {
    pub(crate) plan: Arc<Verified>,
    layout: Layout,
    per_tile: Vec<Vec<u32>>,
    origins: Vec<Vec<Option<Origin>>>,
    programs: Vec<Program>,
    /// The program that ran last, which is most often the next.
    current: usize,
    state: State,
    writes_to_peers: bool,
}

impl Engine {
    /// Prepares a plan in fresh memory of `layout.bytes`, which all its ranks have mapped. The ports that were opened for the
    /// layout keep the memory mapped.
    pub(crate) fn new(plan: Arc<Verified>, rank: u32, layout: Layout, memory: &SharedMemory) -> Self {
        assert!(memory.len() >= layout.bytes, "the plan needs {} bytes", layout.bytes);
        let per_tile: Vec<_> =
            (0..plan.ranks).map(|rank| plan.well_formed().signals_per_tile(rank)).collect();
        let origins = origins_of_steps(&plan).swap_remove(rank as usize);
        let state = State::new(&plan, &layout, rank, memory);
        let programs = Vec::with_capacity(PROGRAMS_MAX);
        let writes_to_peers = plan.writes_to_peers();
        Self { plan, layout, per_tile, origins, programs, current: 0, state, writes_to_peers }
    }

    /// Whether the plan reaches into peers' buffers, so that these must be symmetric or readable.
    #[inline]
    pub(crate) fn reaches_users(&self) -> bool {
        self.state.reaches_users
    }

    /// Whether the plan writes to them, so that they must be symmetric.
    #[inline]
    pub(crate) fn writes_to_peers(&self) -> bool {
        self.writes_to_peers
    }

    /// Whether the plan is proved for this aliasing of buffers.
    #[inline]
    pub(crate) fn claims(&self, aliasing: Aliasing) -> bool {
        self.plan.aliasing.contains(&aliasing)
    }

    /// How a block of this many elements is cut.
    pub(crate) fn cut(&self, count: usize, element_bytes: usize) -> Option<Cut> {
        let shape = Shape { aliasing: Aliasing::InPlace, element_bytes, count, uneven: None };
        self.layout.blocks(&self.plan, 0, &shape).map(|blocks| blocks.longest())
    }

    /// Selects the program for blocks of these lengths, and compiles it if need be.
    #[inline]
    pub(crate) fn prepare(&mut self, shape: &Shape, ports: &Ports) -> Result<(), Unfit> {
        if self.programs.get(self.current).is_none_or(|program| program.shape != *shape) {
            self.current = self.program(shape, ports)?;
        }
        Ok(())
    }

    /// Whether the call that was prepared last is one whose buffers no other rank accesses; see [`Program::is_private`].
    #[inline]
    pub(crate) fn is_private(&self) -> bool {
        self.programs[self.current].is_private()
    }

    /// Runs a call to its end. The caller has announced it and prepared its shape.
    ///
    /// # Safety
    /// `call.input` and `call.output` are valid for as many blocks as the rank gives and gets, of the lengths of the shape
    /// that was prepared last; the same memory or disjoint as the header's aliasing says, which the plan claims; and nothing
    /// else uses them but peers of the same call.
    #[inline]
    pub(crate) unsafe fn run(
        &mut self,
        ports: &mut Ports,
        shared: &Shared,
        call: &Call<'_>,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        let run = Run { shared, call, program: &self.programs[self.current], rank: self.state.rank };
        self.state.run(&run, ports, tracer)
    }

    /// The position of the program for a shape.
    #[cold]
    fn program(&mut self, shape: &Shape, ports: &Ports) -> Result<usize, Unfit> {
        if let Some(found) = self.programs.iter().position(|program| program.shape == *shape) {
            return Ok(found);
        }
        let Self { plan, layout, per_tile, origins, .. } = &*self;
        let ends = &ports.ends;
        let (rank, returns) = (self.state.rank, plan.writes_to_scratch());
        let compiler = Compiler { plan, layout, rank, per_tile, origins, returns, ends };
        let program = compiler.compile(shape.clone())?;
        if self.programs.len() == PROGRAMS_MAX {
            self.programs.remove(0);
        }
        self.programs.push(program);
        Ok(self.programs.len() - 1)
    }
}

/// What the parts of a running call share.
#[derive(Clone, Copy)]
struct Run<'a> {
    shared: &'a Shared,
    call: &'a Call<'a>,
    program: &'a Program,
    rank: u32,
}

/// Where and why a call stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) stop: Stop,
    /// The lane and its step, if one step was waiting.
    pub(crate) step: Option<(u32, u32)>,
    pub(crate) waiting: Waiting,
}

/// Hooks of a run, compiled away when unused. `step` is called when a step's inputs are there and nothing has been published.
pub(crate) trait Tracer {
    fn step(&mut self, lane: u32, tile: u32, ordinal: u32);
    /// Called when a step has published its `bytes`.
    #[inline(always)]
    fn done(&mut self, _lane: u32, _bytes: usize) {}
    /// Called when a wait begins.
    #[inline(always)]
    fn waiting(&mut self, _lane: u32) {}
}

/// No hooks.
pub(crate) struct Silent;

impl Tracer for Silent {
    #[inline(always)]
    fn step(&mut self, _lane: u32, _tile: u32, _ordinal: u32) {}
}
