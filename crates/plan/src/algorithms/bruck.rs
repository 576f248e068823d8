//! # Bruck
//!
//! In each round, ranks exchange with the rank 1, 2, 4 and so on places around the ring, and all blocks for the same
//! direction travel together: a logarithmic number of rounds for any number of ranks.
//!
//! **Steps.** *All-gather:* in the round of distance d every rank sends the first d blocks it has, its own and those of the
//! ranks behind it, to the rank d places before it, and receives the next d; in the last round only the missing ones. Every
//! block goes straight to its place, so no rotation is needed in the end. *All-to-all:* every rank first copies its blocks to
//! scratch, where block o is the one for the rank o places ahead. In the round of distance d it sends all blocks whose number
//! has that bit, and receives others in their place: each block travels the sum of its bits. In its last round a block goes
//! to its place in the output.
//!
//! **Bytes on the wire.** All-gather: n-1 blocks, the least possible, half of them over the largest distance.
//! All-to-all: every block as often as its number has bits. Which rounds stay inside an island depends on the positions,
//! hence the bounds.
//!
//! **Possible.** Everywhere. The all-to-all needs blocks of equal length, since a rank forwards blocks whose lengths it does
//! not know.
//!
//! **When it wins.** Small blocks on many ranks.
//!
//! **Paper.** Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", 1997.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-gather | `<= log2(g) [m = 1] + max(log2(g) - 1, 0) [m > 1]` | `<= (log2(m) + [g > 1] + [pow2(2g-1) > g+1]) [m > 1]` | `<= S min(pow2(2g-1) - 1 + log2(g) [pow2(2g-1) > g+1], n - 1)/n` | `<= S ((pow2(2g-1) pow2(2g-1) - 1)/3 + g (n - pow2(2g-1)))/n [m > 1]` |
//! | all-to-all | `<= log2(g) [m = 1] + max(log2(g) - 1, 0) [m > 1]` | `<= (log2(m) + [g > 1] + [pow2(2g-1) > g+1]) [m > 1]` | `<= S log2(g)/2` | `<= S (pow2(2g-1) - 1 + g (log2(n) - log2(g)))/2 [m > 1]` |

use super::rounds::{Rounds, SENT, ring_symmetry};
use crate::layout::Layout;
use crate::plan::{Collective, Input, Loop, Node, Output, Place, Plan, Step, Wait};
use crate::{Affine, Recipe};

/// The all-gather.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Rounds::outline("bruck", Collective::AllGather, ranks, 1);
    let outline = Plan { symmetry: Some(ring_symmetry(&outline)), uneven: true, ..outline };
    Recipe::new(outline, move |rank| {
        let mut rounds = Rounds::new(rank);
        let own = Step::copy(Input::Local(Place::input(0))).to(Output::Local(Place::output(rank)));
        rounds.send([own.into()]);
        for distance in distances(ranks) {
            let (target, source) = ((rank + ranks - distance) % ranks, (rank + distance) % ranks);
            let count = distance.min(ranks - distance);
            let first = |block: u32| Affine::ring(block.into(), 1, ranks);
            let send = Step::copy(Input::Local(Place::output(first(rank)))).to(Output::sent(target));
            let receive = Step::copy(Input::received(source)).to(Output::Local(Place::output(first(source))));
            rounds.send([Node::repeat(count, [send])]);
            rounds.receive([Node::repeat(count, [receive])]);
        }
        rounds.program()
    })
}

/// The all-to-all.
pub fn all_to_all(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let mut outline = Rounds::outline("bruck", Collective::AllToAll, ranks, 1);
    outline.chunks.scratch = ranks;
    outline.symmetry = Some(ring_symmetry(&outline));
    Recipe::new(outline, move |rank| {
        let mut rounds = Rounds::new(rank);
        let own = Step::copy(Input::Local(Place::input(rank))).to(Output::Local(Place::output(rank)));
        let ahead = Affine::ring(i64::from(rank) + 1, 1, ranks);
        let aside = Step::copy(Input::Local(Place::input(ahead)))
            .to(Output::Local(Place::scratch(Affine::counted(1))));
        rounds.send([own.into(), Node::repeat(ranks - 1, [aside])]);
        let mut sent = 0;
        for distance in distances(ranks) {
            let (target, source) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            let passing: Vec<_> = Passing::of(distance, ranks).collect();
            for blocks in &passing {
                let here = Input::Local(Place::scratch(blocks.number()));
                rounds.send([blocks.each(Step::copy(here).to(Output::sent(target)).signal(SENT))]);
            }
            for blocks in &passing {
                // A received block replaces the one that was sent in scratch, where all inputs were copied first.
                let after =
                    Wait::Reached { rank: rank.into(), counter: SENT, count: blocks.ordinal(sent + 1) };
                let place = match blocks.first < 2 * distance {
                    true => Place::output(blocks.origin(rank, ranks)),
                    false => Place::scratch(blocks.number()),
                };
                let receive = Step::copy(Input::received(source)).after([after]).to(Output::Local(place));
                rounds.receive([blocks.each(receive)]);
                sent += blocks.groups * blocks.each;
            }
        }
        rounds.program()
    })
}

/// Groups of blocks that are sent in a round: all have the bit of its distance.
struct Passing {
    /// The number of the first block.
    first: u32,
    /// The number of groups, `2 distance` apart.
    groups: u32,
    /// The number of consecutive blocks in each.
    each: u32,
    distance: u32,
}

impl Passing {
    /// The blocks that a round sends: those that arrive with it, then full groups, then the rest.
    fn of(distance: u32, ranks: u32) -> impl Iterator<Item = Passing> {
        let full = ranks / (2 * distance);
        let left = (ranks % (2 * distance)).saturating_sub(distance);
        let group = move |number: u32, groups, each| Passing {
            first: distance + 2 * distance * number,
            groups,
            each,
            distance,
        };
        let arrived = full.min(1);
        let all = [group(0, arrived, distance), group(1, full - arrived, distance), group(full, 1, left)];
        all.into_iter().filter(|blocks| blocks.groups > 0 && blocks.each > 0)
    }

    /// A step for each block.
    fn each(&self, step: Step) -> Node {
        Node::Loop(Loop { times: self.groups, body: vec![Node::repeat(self.each, [step])] })
    }

    /// A block's number: the places that it has to travel.
    fn number(&self) -> Affine {
        let by = vec![2 * i64::from(self.distance), 1];
        Affine { offset: 0, base: self.first.into(), by, modulo: None }
    }

    /// The origin of a block that has arrived.
    fn origin(&self, rank: u32, ranks: u32) -> Affine {
        let by = vec![-2 * i64::from(self.distance), -1];
        let base = i64::from(rank) - i64::from(self.first);
        Affine { offset: 0, base, by, modulo: Some(ranks) }
    }

    /// The ordinal of a block in the order of sending, if the first has this ordinal.
    fn ordinal(&self, first: u32) -> Affine {
        Affine { offset: 0, base: first.into(), by: vec![self.each.into(), 1], modulo: None }
    }
}

/// 1, 2, 4 and so on, below the number of ranks.
fn distances(ranks: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|round| 1 << round).take_while(move |&distance| distance < ranks)
}
