//! Traces: the steps of a rank, in the order of all ranks or with their times.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::engine::Tracer;

/// A step in the order of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TracedStep {
    /// Its place among the steps of all ranks: taken when its inputs had arrived, before it published anything.
    pub ticket: u64,
    /// The lane.
    pub lane: u32,
    /// The tile.
    pub tile: u32,
    /// The number of earlier steps of the lane in this tile.
    pub ordinal: u32,
}

/// Records each step under a ticket that all ranks share.
pub(super) struct Recorder<'a> {
    pub(super) tickets: &'a AtomicU64,
    pub(super) steps: Vec<TracedStep>,
}

impl Tracer for Recorder<'_> {
    fn step(&mut self, lane: u32, tile: u32, ordinal: u32) {
        let ticket = self.tickets.fetch_add(1, Ordering::AcqRel);
        self.steps.push(TracedStep { ticket, lane, tile, ordinal });
    }
}

/// A step with its times, in nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimedStep {
    /// The lane.
    pub lane: u32,
    /// The tile.
    pub tile: u32,
    /// The number of earlier steps of the lane in this tile.
    pub ordinal: u32,
    /// When it began to wait for its inputs.
    pub waiting_ns: u64,
    /// When they had arrived.
    pub began_ns: u64,
    /// When it ended.
    pub done_ns: u64,
    /// The bytes it moved.
    pub bytes: usize,
}

/// Records when each step began to wait, started and ended.
pub(super) struct Stopwatch {
    pub(super) steps: Vec<TimedStep>,
    /// When each lane last began to wait.
    free_ns: Vec<u64>,
    started_ns: u64,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self { steps: Vec::new(), free_ns: Vec::new(), started_ns: now_ns() }
    }

    fn free(&mut self, lane: u32) -> &mut u64 {
        let lane = lane as usize;
        if self.free_ns.len() <= lane {
            self.free_ns.resize(lane + 1, self.started_ns);
        }
        &mut self.free_ns[lane]
    }
}

impl Tracer for Stopwatch {
    fn step(&mut self, lane: u32, tile: u32, ordinal: u32) {
        let (waiting_ns, began_ns) = (*self.free(lane), now_ns());
        self.steps.push(TimedStep { lane, tile, ordinal, waiting_ns, began_ns, done_ns: began_ns, bytes: 0 });
    }

    fn done(&mut self, lane: u32, bytes: usize) {
        let now = now_ns();
        *self.free(lane) = now;
        // Steps do not overlap, in whichever lanes they are.
        if let Some(step) = self.steps.last_mut() {
            (step.done_ns, step.bytes) = (now, bytes);
        }
    }

    fn waiting(&mut self, lane: u32) {
        *self.free(lane) = now_ns();
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
