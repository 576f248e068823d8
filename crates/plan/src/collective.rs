//! The collectives, and the result that each promises.
//!
//! A collective moves *blocks*: buffers of the call's count of elements. In an all-gather every rank passes in one block
//! and gets all of them; in a reduce-scatter it passes in one block per rank and gets one sum. A plan cuts each block into
//! the same number c of chunks, so chunk `b·c + i` is chunk i of block b.
//!
//! Blocks have equal lengths unless the plan is [`uneven`](crate::Plan::uneven): all-gather-v, reduce-scatter-v and
//! all-to-all-v are the same collectives with blocks of different lengths.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::buffer::Buffer;

/// A collective, with its root, messages or torus.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Collective {
    /// Every rank ends with the reduction of all ranks' inputs, the same bits everywhere unless the plan
    /// [says otherwise](crate::plan::Agreement).
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
    /// Rank r ends with the reduction of the inputs of ranks 0 to r.
    Scan,
    /// Rank r ends with the reduction of the inputs of the ranks before it; the first gets nothing.
    ExclusiveScan,
    /// Messages that are sent and received as one group, so that both sides may send first. A rank's input holds its sends
    /// and its output its receives, in the order of the list.
    SendReceive {
        /// Source and target rank of each message.
        messages: Vec<(u32, u32)>,
    },
    /// Ranks on a torus, numbered with the last dimension running fastest, send a block to each neighbour and receive one
    /// from it. Blocks 2d and 2d+1 go to, and come from, the neighbours before and behind in dimension d. In a dimension of
    /// one rank, a rank is its own neighbour.
    Neighbours {
        /// The ranks in each dimension; a ring is `[1, 1, n]`.
        torus: [u32; 3],
    },
    /// No rank leaves before all have entered. Moves no data.
    Barrier,
}

/// The promised content of a block of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A block of one rank's input.
    Copy {
        /// That rank.
        rank: u32,
        /// The block.
        block: u32,
    },
    /// The reduction of this block of the inputs of ranks 0 to `below`, exclusive.
    Reduction {
        /// The block.
        block: u32,
        /// The number of ranks.
        below: u32,
    },
}

impl Collective {
    /// One of each kind, to be listed and parsed; roots are rank 0.
    pub const KINDS: [Collective; 11] = [
        Collective::AllReduce,
        Collective::Reduce { root: 0 },
        Collective::Broadcast { root: 0 },
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather { root: 0 },
        Collective::Scatter { root: 0 },
        Collective::Scan,
        Collective::ExclusiveScan,
        Collective::Barrier,
    ];

    /// The blocks of a rank's input and output buffers: the most that any rank passes in, and gets back.
    pub fn blocks(&self, ranks: u32) -> (u32, u32) {
        match self {
            Collective::AllReduce
            | Collective::Reduce { .. }
            | Collective::Broadcast { .. }
            | Collective::Scan
            | Collective::ExclusiveScan => (1, 1),
            Collective::AllGather | Collective::Gather { .. } => (1, ranks),
            Collective::ReduceScatter | Collective::Scatter { .. } => (ranks, 1),
            Collective::AllToAll => (ranks, ranks),
            Collective::SendReceive { messages } => {
                let most = |side: fn(&(u32, u32)) -> u32| {
                    let mut counts = vec![0; ranks as usize];
                    for message in messages {
                        counts.get_mut(side(message) as usize).into_iter().for_each(|count| *count += 1);
                    }
                    counts.into_iter().max().unwrap_or(0)
                };
                (most(|message| message.0), most(|message| message.1))
            }
            Collective::Neighbours { .. } => (6, 6),
            Collective::Barrier => (0, 0),
        }
    }

    /// Source and target rank of each block, for collectives that are made of messages. Both may be the same rank.
    pub(crate) fn messages(&self, ranks: u32) -> Vec<(u32, u32)> {
        match self {
            Collective::SendReceive { messages } => messages.clone(),
            Collective::Neighbours { torus } => {
                let sends = |rank: u32| (0..6).map(move |number| (rank, neighbour(*torus, rank, number)));
                (0..ranks).flat_map(sends).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The root, if it has one.
    pub fn root(&self) -> Option<u32> {
        match *self {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// The number of blocks that a rank passes in.
    pub fn gives(&self, rank: u32, ranks: u32) -> u32 {
        match self {
            Collective::Broadcast { root } | Collective::Scatter { root } if rank != *root => 0,
            Collective::SendReceive { messages } => count(messages, |message| message.0 == rank),
            _ => self.blocks(ranks).0,
        }
    }

    /// The number of blocks that a rank gets back.
    pub fn gets(&self, rank: u32, ranks: u32) -> u32 {
        match self {
            Collective::Reduce { root } | Collective::Gather { root } if rank != *root => 0,
            Collective::ExclusiveScan if rank == 0 => 0,
            Collective::SendReceive { messages } => count(messages, |message| message.1 == rank),
            _ => self.blocks(ranks).1,
        }
    }

    /// The promised content of a block of a rank's output; nothing if the rank does not get that block.
    pub fn promise(&self, rank: u32, ranks: u32, block: u32) -> Option<Promise> {
        if block >= self.gets(rank, ranks) {
            return None;
        }
        Some(match self {
            Collective::AllReduce | Collective::Reduce { .. } => {
                Promise::Reduction { block: 0, below: ranks }
            }
            Collective::Scan => Promise::Reduction { block: 0, below: rank + 1 },
            Collective::ExclusiveScan => Promise::Reduction { block: 0, below: rank },
            Collective::ReduceScatter => Promise::Reduction { block: rank, below: ranks },
            Collective::Broadcast { root } => Promise::Copy { rank: *root, block: 0 },
            Collective::AllGather | Collective::Gather { .. } => Promise::Copy { rank: block, block: 0 },
            Collective::AllToAll => Promise::Copy { rank: block, block: rank },
            Collective::Scatter { root } => Promise::Copy { rank: *root, block: rank },
            Collective::SendReceive { messages } => {
                let mut received = messages.iter().enumerate().filter(|(_, message)| message.1 == rank);
                let (position, &(from, _)) = received.nth(block as usize)?;
                Promise::Copy { rank: from, block: count(&messages[..position], |message| message.0 == from) }
            }
            Collective::Neighbours { torus } => {
                Promise::Copy { rank: neighbour(*torus, rank, block), block: block ^ 1 }
            }
            Collective::Barrier => return None,
        })
    }

    /// Whether blocks may differ in length: all but those in which every rank has the same block.
    pub fn may_be_uneven(&self) -> bool {
        match self {
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::SendReceive { .. }
            | Collective::Neighbours { .. } => true,
            Collective::AllReduce
            | Collective::Reduce { .. }
            | Collective::Broadcast { .. }
            | Collective::Scan
            | Collective::ExclusiveScan
            | Collective::Barrier => false,
        }
    }

    /// Whether it combines elements, rather than only moving them.
    pub fn reduces(&self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::Reduce { .. }
                | Collective::ReduceScatter
                | Collective::Scan
                | Collective::ExclusiveScan
        )
    }

    /// Whether it is the same for all ranks, so that a plan may be [symmetric](crate::classes).
    pub fn is_symmetric(&self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::AllGather
                | Collective::ReduceScatter
                | Collective::AllToAll
                | Collective::Neighbours { .. }
                | Collective::Barrier
        )
    }

    /// Why it is impossible on this number of ranks; nothing if it is possible.
    pub fn misfit(&self, ranks: u32) -> Option<String> {
        match self {
            _ if self.root().is_some_and(|root| root >= ranks) => Some(format!(
                "a {self} is impossible on {ranks} ranks: the last is rank {}",
                ranks.saturating_sub(1)
            )),
            Collective::SendReceive { messages } => {
                let stray = messages.iter().find(|(from, to)| *from >= ranks || *to >= ranks)?;
                Some(format!("rank {} sends to rank {}, but there are {ranks} ranks", stray.0, stray.1))
            }
            Collective::Neighbours { torus } => {
                let places: u128 = torus.iter().map(|size| u128::from(*size)).product();
                // Dimensions of one rank in front need not be written, so the message leaves them out.
                let sizes: Vec<String> =
                    torus.iter().skip_while(|size| **size == 1).map(ToString::to_string).collect();
                (places != ranks.into())
                    .then(|| format!("{} is {places} places, but there are {ranks} ranks", sizes.join(" x ")))
            }
            _ => None,
        }
    }

    /// The place of a block when input and output are one buffer: the smaller of the two is in the larger, at the rank's own
    /// block. Blocks of a rank without input or without output stay in their buffer.
    pub(crate) fn in_place(&self, rank: u32, ranks: u32, buffer: Buffer, block: u32) -> (Buffer, u32) {
        if buffer == Buffer::Scratch || self.gives(rank, ranks) == 0 || self.gets(rank, ranks) == 0 {
            return (buffer, block);
        }
        match (self, buffer) {
            (Collective::AllGather | Collective::Gather { .. }, Buffer::Input) => (Buffer::Output, rank),
            (Collective::ReduceScatter | Collective::Scatter { .. }, Buffer::Output) => (Buffer::Input, rank),
            (Collective::ReduceScatter | Collective::Scatter { .. }, _) => (Buffer::Input, block),
            // One buffer may have more blocks than the other; the rest stay in it.
            (_, Buffer::Input) if block >= self.gets(rank, ranks) => (Buffer::Input, block),
            _ => (Buffer::Output, block),
        }
    }

    /// The block of a rank's other buffer that is the same memory in place, even if the rank has no input or output blocks;
    /// nothing if there is none.
    pub(crate) fn alias_in_place(&self, rank: u32, buffer: Buffer, block: u32) -> Option<(Buffer, u32)> {
        use Collective::{AllGather, Gather, ReduceScatter, Scatter};
        match (self, buffer) {
            (_, Buffer::Scratch) => None,
            (AllGather | Gather { .. }, Buffer::Input) => Some((Buffer::Output, rank)),
            (AllGather | Gather { .. }, Buffer::Output) => (block == rank).then_some((Buffer::Input, 0)),
            (ReduceScatter | Scatter { .. }, Buffer::Output) => Some((Buffer::Input, rank)),
            (ReduceScatter | Scatter { .. }, Buffer::Input) => (block == rank).then_some((Buffer::Output, 0)),
            (_, Buffer::Input) => Some((Buffer::Output, block)),
            (_, Buffer::Output) => Some((Buffer::Input, block)),
        }
    }
}

fn count(messages: &[(u32, u32)], wanted: impl Fn(&&(u32, u32)) -> bool) -> u32 {
    messages.iter().filter(wanted).count() as u32
}

/// The neighbour of a rank on a torus: number 2d is before it in dimension d, number 2d+1 behind it.
pub fn neighbour(torus: [u32; 3], rank: u32, number: u32) -> u32 {
    let dimension = number as usize / 2;
    let stride: u32 = torus[dimension + 1..].iter().product();
    let (size, at) = (torus[dimension], rank / stride % torus[dimension]);
    let to = if number.is_multiple_of(2) { (at + size - 1) % size } else { (at + 1) % size };
    rank - at * stride + to * stride
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Collective::Reduce { root } | Collective::Gather { root } => write!(f, " to rank {root}"),
            Collective::Broadcast { root } | Collective::Scatter { root } => write!(f, " from rank {root}"),
            Collective::SendReceive { messages } => {
                let ending = if messages.len() == 1 { "" } else { "s" };
                write!(f, " of {} message{ending}", messages.len())
            }
            Collective::Neighbours { torus: [x, y, z] } => write!(f, " on a torus of {x} x {y} x {z}"),
            _ => Ok(()),
        }
    }
}

impl Collective {
    /// The names, in the order of [`kind`](Self::kind).
    pub const NAMES: [&str; 13] = [
        "all-reduce",
        "reduce",
        "broadcast",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "gather",
        "scatter",
        "scan",
        "exclusive-scan",
        "send-receive",
        "neighbours",
        "barrier",
    ];

    /// The position of its name in [`NAMES`](Self::NAMES).
    pub fn kind(&self) -> usize {
        match self {
            Collective::AllReduce => 0,
            Collective::Reduce { .. } => 1,
            Collective::Broadcast { .. } => 2,
            Collective::AllGather => 3,
            Collective::ReduceScatter => 4,
            Collective::AllToAll => 5,
            Collective::Gather { .. } => 6,
            Collective::Scatter { .. } => 7,
            Collective::Scan => 8,
            Collective::ExclusiveScan => 9,
            Collective::SendReceive { .. } => 10,
            Collective::Neighbours { .. } => 11,
            Collective::Barrier => 12,
        }
    }

    /// The name, without root, messages or torus.
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.kind()]
    }
}
