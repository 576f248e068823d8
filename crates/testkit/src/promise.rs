//! The results of each collective, defined independently of the verifier's list, so that each checks the other.
//!
//! A barrier has no blocks; [`chaos`](crate::chaos) checks that no rank leaves it early.

use weftlink_plan::Collective;

/// The number of input and output blocks of a rank.
pub fn blocks(collective: &Collective, ranks: usize, rank: usize) -> (usize, usize) {
    let only = |root: u32, blocks: usize| if root as usize == rank { blocks } else { 0 };
    let count = |messages: &[(u32, u32)], side: fn(&(u32, u32)) -> u32| {
        messages.iter().filter(|message| side(message) as usize == rank).count()
    };
    match *collective {
        Collective::AllReduce | Collective::Scan => (1, 1),
        Collective::ExclusiveScan => (1, usize::from(rank > 0)),
        Collective::Barrier => (0, 0),
        Collective::Neighbours { .. } => (6, 6),
        Collective::SendReceive { ref messages } => {
            (count(messages, |message| message.0), count(messages, |message| message.1))
        }
        Collective::Reduce { root } => (1, only(root, 1)),
        Collective::Broadcast { root } => (only(root, 1), 1),
        Collective::AllGather => (1, ranks),
        Collective::ReduceScatter => (ranks, 1),
        Collective::AllToAll => (ranks, ranks),
        Collective::Gather { root } => (1, only(root, ranks)),
        Collective::Scatter { root } => (only(root, ranks), 1),
    }
}

/// The input blocks whose sum is a block of a rank's output, as (rank, block).
pub fn parts(collective: &Collective, ranks: usize, rank: usize, block: usize) -> Vec<(usize, usize)> {
    let of_all_ranks = |block: usize| (0..ranks).map(|rank| (rank, block)).collect();
    match *collective {
        Collective::Scan => (0..=rank).map(|rank| (rank, 0)).collect(),
        Collective::ExclusiveScan => (0..rank).map(|rank| (rank, 0)).collect(),
        Collective::Barrier => vec![],
        Collective::SendReceive { ref messages } => {
            let to_rank: Vec<_> = (0..messages.len()).filter(|&at| messages[at].1 as usize == rank).collect();
            let (at, from) = (to_rank[block], messages[to_rank[block]].0);
            vec![(from as usize, messages[..at].iter().filter(|message| message.0 == from).count())]
        }
        Collective::Neighbours { torus: [x, y, z] } => {
            let size = [x, y, z].map(|size| size as usize);
            let mut at = [rank / (size[1] * size[2]), rank / size[2] % size[1], rank % size[2]];
            let (dimension, behind) = (block / 2, block % 2 == 1);
            let step = if behind { 1 } else { size[dimension] - 1 };
            at[dimension] = (at[dimension] + step) % size[dimension];
            let from = (at[0] * size[1] + at[1]) * size[2] + at[2];
            vec![(from, 2 * dimension + usize::from(!behind))]
        }
        Collective::AllReduce | Collective::Reduce { .. } => of_all_ranks(0),
        Collective::ReduceScatter => of_all_ranks(rank),
        Collective::Broadcast { root } => vec![(root as usize, 0)],
        Collective::Scatter { root } => vec![(root as usize, rank)],
        Collective::AllGather | Collective::Gather { .. } => vec![(block, 0)],
        Collective::AllToAll => vec![(block, rank)],
    }
}

/// Every rank's input, block after block: `length` returns the elements of a rank's block, and `number` an element, given its rank, block
/// and position.
pub fn inputs<T>(
    collective: &Collective,
    ranks: usize,
    length: impl Fn(usize, usize) -> usize,
    number: impl Fn(usize, usize, usize) -> T,
) -> Vec<Vec<T>> {
    let input = |rank| {
        let places = (0..blocks(collective, ranks, rank).0)
            .flat_map(|block| (0..length(rank, block)).map(move |at| (block, at)));
        places.map(|(block, at)| number(rank, block, at)).collect()
    };
    (0..ranks).map(input).collect()
}

/// Every rank's output: `result` computes an element, given the ranks and blocks whose sum it is, and its position in them.
pub fn outputs<T>(
    collective: &Collective,
    ranks: usize,
    length: impl Fn(usize, usize) -> usize,
    result: impl Fn(&[(usize, usize)], usize) -> T,
) -> Vec<Vec<T>> {
    let output = |rank| {
        let mut output = Vec::new();
        for block in 0..blocks(collective, ranks, rank).1 {
            let parts = parts(collective, ranks, rank, block);
            output.extend((0..length(parts[0].0, parts[0].1)).map(|at| result(&parts, at)));
        }
        output
    };
    (0..ranks).map(output).collect()
}
