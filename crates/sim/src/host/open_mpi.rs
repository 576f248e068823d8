//! Open MPI's fixed decisions (`coll/tuned`, since 4.1): for sums and other commutative operations, by ranks and bytes.
//!
//! Some of its algorithms have no plan here and are replaced by one that moves as many bytes in as many rounds: binomial and k-nomial trees
//! by trees, neighbour exchange by a ring, linear all-to-all by pairwise exchange.

use weftlink_plan::{Algorithm, Collective};

/// Segment size of pipelined algorithms (the default of `coll/base` where the decision gives none).
const SEGMENT_BYTES: u64 = 128 << 10;

/// For each upper bound of ranks (exclusive): for each upper bound of bytes (exclusive), the number of the algorithm.
type Decisions = &'static [(u64, &'static [(u64, u8)])];

const ANY: u64 = u64::MAX;

/// By bytes of the buffer. 2: reduce and broadcast, 3: recursive doubling, 4: ring, 5: segmented ring, 6: Rabenseifner.
const ALL_REDUCE: Decisions = &[
    (4, &[(8, 4), (4 << 10, 3), (8 << 10, 4), (16 << 10, 3), (64 << 10, 4), (256 << 10, 5), (ANY, 6)]),
    (8, &[(16, 4), (8 << 10, 3), (ANY, 6)]),
    (16, &[(8 << 10, 3), (ANY, 6)]),
    (32, &[(64, 5), (4 << 10, 3), (ANY, 6)]),
    (64, &[(128, 5), (ANY, 6)]),
    (128, &[(256 << 10, 3), (ANY, 6)]),
    (256, &[(128 << 10, 2), (256 << 10, 3), (ANY, 6)]),
    (512, &[(4 << 10, 2), (ANY, 6)]),
    (2048, &[(2 << 10, 2), (16 << 10, 3), (ANY, 6)]),
];
/// By bytes of a block. 1 and 4: linear, 2: pairwise, 3: Bruck, 5: two ranks.
const ALL_TO_ALL: Decisions = &[
    (16, &[(ANY, 1)]),
    (64, &[(512, 3), (ANY, 1)]),
    (512, &[(1 << 10, 3), (ANY, 1)]),
    (ANY, &[(512, 3), (ANY, 1)]),
];
/// By bytes of the buffer. 1: linear, 2 and 3: chains, 4 to 7: trees, 8: scatter and all-gather.
const BROADCAST: Decisions = &[
    (
        4,
        &[
            (32, 3),
            (256, 5),
            (512, 3),
            (1 << 10, 7),
            (32 << 10, 1),
            (128 << 10, 5),
            (256 << 10, 2),
            (512 << 10, 1),
            (1 << 20, 6),
            (ANY, 5),
        ],
    ),
    (8, &[(64, 5), (128, 6), (2 << 10, 5), (8 << 10, 6), (1 << 20, 1), (ANY, 2)]),
    (16, &[(8, 7), (64, 5), (4 << 10, 7), (16 << 10, 5), (32 << 10, 6), (ANY, 1)]),
    (ANY, &[(ANY, 6)]),
];
/// By bytes of the buffer. 1: linear, 2 and 3: chains, 4 and 5: trees.
const REDUCE: Decisions = &[
    (4, &[(8, 1), (16, 4), (32, 3), (256 << 10, 1), (512 << 10, 3), (1 << 20, 2), (ANY, 3)]),
    (8, &[(4 << 10, 4), (64 << 10, 2), (256 << 10, 5), (512 << 10, 1), (1 << 20, 5), (ANY, 1)]),
    (16, &[(8 << 10, 4), (ANY, 5)]),
    (32, &[(4 << 10, 4), (ANY, 5)]),
    (ANY, &[(ANY, 5)]),
];
/// By bytes of all blocks. 1 and 2: recursive halving, 3: ring, 4: butterfly.
const REDUCE_SCATTER: Decisions = &[
    (4, &[(64 << 10, 3), (128 << 10, 4), (ANY, 3)]),
    (32, &[(256 << 10, 2), (ANY, 3)]),
    (64, &[(2 << 10, 2), (512 << 10, 4), (ANY, 3)]),
    (ANY, &[(ANY, 4)]),
];
/// By bytes of a block. 3: recursive doubling, 4: ring, 5: neighbour exchange, 6: two ranks.
const ALL_GATHER: Decisions = &[
    (3, &[(ANY, 6)]),
    (32, &[(ANY, 3)]),
    (64, &[(1 << 10, 3), (64 << 10, 5), (ANY, 4)]),
    (256, &[(512, 3), (64 << 10, 5), (ANY, 4)]),
    (ANY, &[(1 << 10, 3), (ANY, 5)]),
];

fn decided(decisions: Decisions, ranks: u64, bytes: u64) -> Option<u8> {
    let (_, by_bytes) = decisions.iter().find(|(below, _)| ranks < *below).or(decisions.last())?;
    by_bytes.iter().find(|(below, _)| bytes < *below).or(by_bytes.last()).map(|(_, number)| *number)
}

/// The algorithm for a call of this size; `None` if there is no such call.
pub(super) fn algorithm(collective: &Collective, ranks: u64, bytes: u64) -> Option<Algorithm> {
    let block = bytes / ranks;
    Some(match collective {
        // Rings need an element per rank; with fewer, recursive doubling is used.
        Collective::AllReduce => match decided(ALL_REDUCE, ranks, bytes)? {
            2 => Algorithm::Tree,
            4 | 5 if bytes / 4 >= ranks => Algorithm::Ring,
            3..=5 => Algorithm::RecursiveDoubling,
            _ => Algorithm::HalvingDoubling,
        },
        Collective::AllToAll => match decided(ALL_TO_ALL, ranks, block)? {
            3 => Algorithm::Bruck,
            _ => Algorithm::Pairwise,
        },
        Collective::Broadcast { .. } => match decided(BROADCAST, ranks, bytes)? {
            1 => Algorithm::Linear,
            2 | 3 => Algorithm::Chain,
            _ => Algorithm::Tree,
        },
        Collective::Reduce { .. } => match decided(REDUCE, ranks, bytes)? {
            1 => Algorithm::Linear,
            2 | 3 => Algorithm::Chain,
            _ => Algorithm::Tree,
        },
        Collective::ReduceScatter => match decided(REDUCE_SCATTER, ranks, bytes)? {
            3 => Algorithm::Ring,
            _ => Algorithm::HalvingDoubling,
        },
        Collective::AllGather => match decided(ALL_GATHER, ranks, block)? {
            3 if ranks.is_power_of_two() => Algorithm::RecursiveDoubling,
            3 => Algorithm::Bruck,
            _ => Algorithm::Ring,
        },
        Collective::SendReceive { .. } => Algorithm::Linear,
        _ => return None,
    })
}

/// Size of the largest message.
pub(super) fn segment_bytes(algorithm: Algorithm, collective: &Collective) -> u64 {
    let rooted = matches!(collective, Collective::Broadcast { .. } | Collective::Reduce { .. });
    match algorithm {
        Algorithm::Chain if rooted => SEGMENT_BYTES,
        _ => u64::MAX,
    }
}
