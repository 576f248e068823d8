//! # PAT
//!
//! Parallel aggregated trees: every rank's block has its own binomial tree, all trees are the same rotated around the ring,
//! and blocks that travel the same distance travel together. Like [Bruck's](super::bruck), with the farthest ranks first:
//! few blocks travel far, and many travel near.
//!
//! **Steps.** The nodes of the tree of rank r's block are counted from r around the ring; the children of node o are o plus
//! each power of two below the lowest bit of o. *All-gather:* in the round of distance d, the largest power of two first,
//! every rank sends the blocks for which its node is a multiple of 2d to the rank d places ahead. It receives them into the
//! output and sends from there. *Reduce-scatter:* the same in reverse: every rank sends the sums of the blocks for which its
//! node is an odd multiple of d to the rank d places behind, the smallest distance first.
//!
//! This is the variant in which all trees advance together, in log2(n) rounds. NCCL (2.23) uses it while its buffers hold a
//! round, and otherwise runs the trees one after the other.
//!
//! **Bytes on the wire.** n-1 blocks per rank, each way: the least possible. The all-gather needs no memory but the
//! two slots towards each of log2(n) ranks; the reduce-scatter keeps n/2 sums in scratch. Which rounds stay inside an island
//! depends on the positions, hence the bounds.
//!
//! **Possible.** Everywhere.
//!
//! **When it wins.** Small and medium blocks on many ranks, where a ring has too many hops.
//!
//! **Paper.** Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025; NCCL 2.23.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-gather, reduce-scatter | `<= log2(g) [m = 1] + max(log2(g) - 1, 0) [m > 1]` | `<= (log2(m) + [g > 1] + [pow2(2g-1) > g+1]) [m > 1]` | `<= S min(n - 1, (n-1)(pow2(2g-1) - 1)/pow2(2g-1) + log2(g)/2)/n` | `<= S (log2(g)/2 + (m-1)/m) [m > 1]` |

use super::rounds::{Rounds, ring_symmetry};
use crate::layout::Layout;
use crate::plan::{Collective, Input, Node, Output, Place, Plan, Step};
use crate::{Affine, Recipe};

/// The all-gather.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Rounds::outline("pat", Collective::AllGather, ranks, 1);
    let outline = Plan { symmetry: Some(ring_symmetry(&outline)), uneven: true, ..outline };
    Recipe::new(outline, move |rank| {
        let mut rounds = Rounds::new(rank);
        let own = Step::copy(Input::Local(Place::input(0))).to(Output::Local(Place::output(rank)));
        rounds.send([own.into()]);
        for distance in distances(ranks).rev() {
            let round = Round { distance, ranks };
            let (target, source) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            let send = |block| Step::copy(Input::Local(Place::output(block))).to(Output::sent(target));
            let receive = |block| Step::copy(Input::received(source)).to(Output::Local(Place::output(block)));
            rounds.send([Node::repeat(round.trees(), [send(round.block(rank, 0))])]);
            rounds.receive([Node::repeat(round.trees(), [receive(round.block(source, 0))])]);
        }
        rounds.program()
    })
}

/// The reduce-scatter. Partial sums are in scratch, that of node o in chunk o/2.
pub fn reduce_scatter(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let mut outline = Rounds::outline("pat", Collective::ReduceScatter, ranks, 1);
    outline.chunks.scratch = ranks.div_ceil(2);
    let outline = Plan { symmetry: Some(ring_symmetry(&outline)), uneven: true, ..outline };
    Recipe::new(outline, move |rank| {
        let mut rounds = Rounds::new(rank);
        let own = |block: Affine| Input::Local(Place::input(block));
        let keep = || Output::Local(Place::output(0));
        if ranks == 1 {
            rounds.send([Step::copy(own(0.into())).to(keep()).into()]);
        }
        for distance in distances(ranks) {
            let round = Round { distance, ranks };
            let (target, source) = ((rank + ranks - distance) % ranks, (rank + distance) % ranks);
            // The last node has no children, so its sum is its input in every round.
            let ends_with_last = distance > 1 && round.last() == ranks - 1;
            let sums = round.trees() - u32::from(ends_with_last);
            let source_of_sums =
                if distance == 1 { own(round.block(target, 0)) } else { Input::Local(round.sum(distance)) };
            let send = |input| Step::copy(input).to(Output::sent(target));
            rounds.send([Node::repeat(sums, [send(source_of_sums)])]);
            let of_last = (rank + 1) % ranks;
            rounds.send(ends_with_last.then(|| send(own(of_last.into())).into()));

            let so_far = if distance == 1 { own(rank.into()) } else { Input::Local(Place::output(0)) };
            let first = Step::reduce(vec![so_far, Input::received(source)]).to(keep());
            let sum =
                if distance == 1 { own(round.block(rank, 1)) } else { Input::Local(round.sum(2 * distance)) };
            let add =
                Step::reduce(vec![sum, Input::received(source)]).to(Output::Local(round.sum(2 * distance)));
            rounds.receive([first.into(), Node::repeat(round.trees() - 1, [add])]);
        }
        rounds.program_with_scratch()
    })
}

/// The blocks of one distance: from the nodes that are multiples of `2 distance` to those `distance` above them, or back.
struct Round {
    distance: u32,
    ranks: u32,
}

impl Round {
    /// The number of trees for which a rank sends, and for which it receives.
    fn trees(&self) -> u32 {
        (self.ranks - self.distance).div_ceil(2 * self.distance)
    }

    /// The last of the nodes that are odd multiples of the distance.
    fn last(&self) -> u32 {
        self.distance + 2 * self.distance * (self.trees() - 1)
    }

    /// The blocks for which a rank is node `2 distance i`, for i from `from` on.
    fn block(&self, rank: u32, from: u32) -> Affine {
        let apart = 2 * i64::from(self.distance);
        Affine::ring(i64::from(rank) - apart * i64::from(from), -apart, self.ranks)
    }

    /// The sums of the nodes from this one on, `2 distance` apart.
    fn sum(&self, node: u32) -> Place {
        Place::scratch(Affine {
            offset: 0,
            base: i64::from(node / 2),
            by: vec![self.distance.into()],
            modulo: None,
        })
    }
}

/// 1, 2, 4 and so on, below the number of ranks.
fn distances(ranks: u32) -> impl DoubleEndedIterator<Item = u32> {
    (0..ranks.next_power_of_two().ilog2()).map(|round| 1 << round)
}
