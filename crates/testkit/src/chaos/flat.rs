//! A prepared plan: no loops or formulas, only addresses in one flat memory.

use thiserror::Error;
use weftlink_plan::Collective;

use super::Shape;

/// Numbers per chunk: more than one, so that a chunk can be half written.
pub(super) const CHUNK: usize = 3;

/// A plan prepared for runs in one shape.
#[derive(Clone, Debug)]
pub struct Chaos {
    pub(super) shape: Shape,
    pub(super) ranks: usize,
    pub(super) collective: Collective,
    /// Whether the results of all ranks must have the same bits.
    pub(super) same_bits: bool,
    /// Chunks of a block.
    pub(super) chunks: usize,
    pub(super) counters: usize,
    /// Signals of each counter per tile: `[rank * counters + counter]`.
    pub(super) signals_per_round: Vec<u64>,
    pub(super) lanes: Vec<FlatLane>,
    pub(super) fifos: Vec<FlatFifo>,
    /// The size of the memory.
    pub(super) words: usize,
    /// The buffers of each rank.
    pub(super) buffers: Vec<UserBuffers>,
}

#[derive(Clone, Debug)]
pub(super) struct FlatLane {
    pub(super) rank: usize,
    /// Its index among the rank's lanes.
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

/// A source or destination of numbers.
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
    /// The address of its slots, one chunk each.
    pub(super) base: usize,
    pub(super) depth: usize,
}

/// The buffers of a rank. In place, one of input and output is part of the other.
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
    /// An index is negative or too large.
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
    #[error("rank {rank} lane {lane} step {step}: the operation does not fit its inputs and outputs")]
    Arity {
        /// Where.
        rank: usize,
        /// In which lane.
        lane: usize,
        /// At which step, counted as they run.
        step: usize,
    },
    /// Sizes contradict each other, or are too large for this test.
    #[error("{0}")]
    Sizes(&'static str),
}
