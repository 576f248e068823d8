//! Traces: what a rank did, step by step, for tests that hold it to the plan.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Tracer;

/// A step that was taken, in the order of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taken {
    /// Its place among all steps of all ranks: taken when its inputs were there, before anything was published.
    pub ticket: u64,
    /// The lane.
    pub lane: u32,
    /// The tile.
    pub tile: u32,
    /// How many steps the lane had taken in this tile before.
    pub ordinal: u32,
}

/// Records each step under a ticket that all ranks share.
pub(super) struct Recorder<'a> {
    pub(super) tickets: &'a AtomicU64,
    pub(super) taken: Vec<Taken>,
}

impl Tracer for Recorder<'_> {
    fn step(&mut self, lane: u32, tile: u32, ordinal: u32) {
        let ticket = self.tickets.fetch_add(1, Ordering::AcqRel);
        self.taken.push(Taken { ticket, lane, tile, ordinal });
    }
}
