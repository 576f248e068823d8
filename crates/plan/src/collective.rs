//! The collectives, and what each promises.
//!
//! A collective moves *blocks*: buffers of the call's count of elements. An all-gather takes one block from every rank
//! and gives everybody all of them; a reduce-scatter takes as many blocks as there are ranks and gives everybody one
//! sum. A plan cuts each block into the same number of chunks, so chunk `b·c + i` is chunk i of block b.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::Buffer;

/// What a plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Collective {
    /// Every rank ends with the reduction of all ranks' inputs, the same bits everywhere.
    AllReduce,
    /// The root ends with the reduction of all ranks' inputs.
    Reduce {
        /// The rank that gets it.
        root: u32,
    },
    /// Every rank ends with the root's input.
    Broadcast {
        /// The rank that gives it.
        root: u32,
    },
    /// Every rank ends with all ranks' inputs, in the order of the ranks.
    AllGather,
    /// Rank r ends with the reduction of block r of all ranks' inputs.
    ReduceScatter,
    /// Rank r ends with block r of every rank's input, in the order of the ranks.
    AllToAll,
    /// The root ends with all ranks' inputs, in the order of the ranks.
    Gather {
        /// The rank that gets them.
        root: u32,
    },
    /// Rank r ends with block r of the root's input.
    Scatter {
        /// The rank that gives them.
        root: u32,
    },
}

/// What a block of output must hold in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A block of one rank's input.
    Copy {
        /// That rank.
        rank: u32,
        /// The block.
        block: u32,
    },
    /// The reduction of this block of every rank's input.
    Reduction {
        /// The block.
        block: u32,
    },
}

impl Collective {
    /// How many blocks a rank passes in and gets back.
    pub fn blocks(self, ranks: u32) -> (u32, u32) {
        match self {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => (1, 1),
            Collective::AllGather | Collective::Gather { .. } => (1, ranks),
            Collective::ReduceScatter | Collective::Scatter { .. } => (ranks, 1),
            Collective::AllToAll => (ranks, ranks),
        }
    }

    /// The one rank that is different, if there is one.
    pub fn root(self) -> Option<u32> {
        match self {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether a rank passes something in.
    pub fn gives(self, rank: u32) -> bool {
        match self {
            Collective::Broadcast { root } | Collective::Scatter { root } => rank == root,
            _ => true,
        }
    }

    /// Whether a rank gets something back.
    pub fn gets(self, rank: u32) -> bool {
        match self {
            Collective::Reduce { root } | Collective::Gather { root } => rank == root,
            _ => true,
        }
    }

    /// What a block of a rank's output must hold in the end.
    pub fn promise(self, rank: u32, block: u32) -> Promise {
        match self {
            Collective::AllReduce | Collective::Reduce { .. } => Promise::Reduction { block: 0 },
            Collective::Broadcast { root } => Promise::Copy { rank: root, block: 0 },
            Collective::AllGather | Collective::Gather { .. } => Promise::Copy { rank: block, block: 0 },
            Collective::ReduceScatter => Promise::Reduction { block: rank },
            Collective::AllToAll => Promise::Copy { rank: block, block: rank },
            Collective::Scatter { root } => Promise::Copy { rank: root, block: rank },
        }
    }

    /// Where a block lies when input and output are one buffer: the smaller of the two lies in the larger, where the
    /// rank's own block is. Blocks of a rank that gives or gets nothing stay where they are.
    pub(crate) fn in_place(self, rank: u32, buffer: Buffer, block: u32) -> (Buffer, u32) {
        if buffer == Buffer::Scratch || !self.gives(rank) || !self.gets(rank) {
            return (buffer, block);
        }
        match (self, buffer) {
            (Collective::AllGather | Collective::Gather { .. }, Buffer::Input) => (Buffer::Output, rank),
            (Collective::ReduceScatter | Collective::Scatter { .. }, Buffer::Output) => (Buffer::Input, rank),
            (Collective::ReduceScatter | Collective::Scatter { .. }, _) => (Buffer::Input, block),
            _ => (Buffer::Output, block),
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::AllReduce => f.write_str("all-reduce"),
            Collective::Reduce { root } => write!(f, "reduce to rank {root}"),
            Collective::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Collective::AllGather => f.write_str("all-gather"),
            Collective::ReduceScatter => f.write_str("reduce-scatter"),
            Collective::AllToAll => f.write_str("all-to-all"),
            Collective::Gather { root } => write!(f, "gather to rank {root}"),
            Collective::Scatter { root } => write!(f, "scatter from rank {root}"),
        }
    }
}
