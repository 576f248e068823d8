//! A plan that is ready to run: no loops, no formulas, only addresses in one flat memory.

use thiserror::Error;
use weftlink_plan::Collective;

use super::Shape;

/// How many numbers a chunk has: more than one, so that a chunk can be half written.
pub(super) const CHUNK: usize = 3;

/// A plan that is ready to run in one shape.
#[derive(Clone, Debug)]
pub struct Chaos {
    pub(super) shape: Shape,
    pub(super) ranks: usize,
    pub(super) collective: Collective,
    /// Whether all ranks must hold the same bits.
    pub(super) same_bits: bool,
    /// Chunks of a block.
    pub(super) chunks: usize,
    pub(super) counters: usize,
    /// How often each counter is signalled per tile: `[rank * counters + counter]`.
    pub(super) signals_per_round: Vec<u64>,
    pub(super) lanes: Vec<FlatLane>,
    pub(super) fifos: Vec<FlatFifo>,
    /// How much memory all of it takes.
    pub(super) words: usize,
    /// Where each rank's input and output are.
    pub(super) buffers: Vec<UserBuffers>,
}

#[derive(Clone, Debug)]
pub(super) struct FlatLane {
    pub(super) rank: usize,
    /// Which of the rank's lanes it is.
    pub(super) lane: usize,
    pub(super) steps: Vec<FlatStep>,
}

#[derive(Clone, Debug)]
pub(super) struct FlatStep {
    pub(super) waits: Vec<FlatWait>,
    pub(super) inputs: Vec<End>,
    pub(super) outputs: Vec<End>,
    /// Indices of counters, as in [`Chaos::signals_per_round`].
    pub(super) signals: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FlatWait {
    Entered { rank: usize },
    Reached { counter: usize, count: u64 },
}

/// Where numbers come from or go to.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// The chunk at `base + tile * stride`.
    Memory {
        base: usize,
        stride: usize,
    },
    Fifo(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FlatFifo {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Where its slots are, one chunk each.
    pub(super) base: usize,
    pub(super) depth: usize,
}

/// Where a rank's buffers are; in place one of input and output is in the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserBuffers {
    pub(super) input: Span,
    pub(super) output: Span,
    pub(super) scratch: usize,
}

/// A buffer of the user's: `numbers` in each tile, tiles `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) base: usize,
    pub(super) stride: usize,
    pub(super) numbers: usize,
}

impl Span {
    /// The addresses of all its numbers: tile, position in the tile, address.
    pub(super) fn addresses(self, tiles: u32) -> impl Iterator<Item = (u32, usize, usize)> {
        let Span { base, stride, numbers } = self;
        (0..tiles)
            .flat_map(move |tile| (0..numbers).map(move |at| (tile, at, base + tile as usize * stride + at)))
    }
}

/// The plan names things that do not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// An index is negative or beyond what there is.
    #[error("rank {rank} lane {lane} step {step}: {what} is out of range")]
    OutOfRange {
        /// Where.
        rank: usize,
        /// In which lane.
        lane: usize,
        /// At which step, counted as they run.
        step: usize,
        /// Which index.
        what: &'static str,
    },
    /// A rank sends to itself, receives from itself or is its own peer.
    #[error("rank {rank} lane {lane} step {step}: a rank is its own peer")]
    OwnPeer {
        /// Where.
        rank: usize,
        /// In which lane.
        lane: usize,
        /// At which step, counted as they run.
        step: usize,
    },
    /// The operation does not fit the inputs and outputs.
    #[error("rank {rank} lane {lane} step {step}: the operation does not fit what it is given")]
    Arity {
        /// Where.
        rank: usize,
        /// In which lane.
        lane: usize,
        /// At which step, counted as they run.
        step: usize,
    },
    /// Sizes contradict one another, or are beyond what is worth running.
    #[error("{0}")]
    Sizes(&'static str),
}
