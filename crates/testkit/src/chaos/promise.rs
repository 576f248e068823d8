//! What each collective promises, written down a second time: the verifier has its own list, and two that agree are
//! worth more than one that is used twice.

use weftlink_plan::Collective;

/// How many blocks a rank passes in and gets back, if it does.
pub(super) fn blocks(collective: Collective, ranks: usize, rank: usize) -> (usize, usize) {
    let only = |root: u32, blocks: usize| if root as usize == rank { blocks } else { 0 };
    match collective {
        Collective::AllReduce => (1, 1),
        Collective::Reduce { root } => (1, only(root, 1)),
        Collective::Broadcast { root } => (only(root, 1), 1),
        Collective::AllGather => (1, ranks),
        Collective::ReduceScatter => (ranks, 1),
        Collective::AllToAll => (ranks, ranks),
        Collective::Gather { root } => (1, only(root, ranks)),
        Collective::Scatter { root } => (only(root, ranks), 1),
    }
}

/// Which blocks of whose inputs add up to a block of a rank's output: rank, block.
pub(super) fn parts(collective: Collective, ranks: usize, rank: usize, block: usize) -> Vec<(usize, usize)> {
    let everybodys = |block: usize| (0..ranks).map(|rank| (rank, block)).collect();
    match collective {
        Collective::AllReduce | Collective::Reduce { .. } => everybodys(0),
        Collective::ReduceScatter => everybodys(rank),
        Collective::Broadcast { root } => vec![(root as usize, 0)],
        Collective::Scatter { root } => vec![(root as usize, rank)],
        Collective::AllGather | Collective::Gather { .. } => vec![(block, 0)],
        Collective::AllToAll => vec![(block, rank)],
    }
}
