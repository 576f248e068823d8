//! # Bruck
//!
//! Round by round, ranks deal with the one 1, 2, 4 and so on places around the ring, and all that goes the same way
//! goes together: a logarithmic number of rounds for any number of ranks.
//!
//! **Steps.** *All-gather:* in the round of distance d every rank sends the first d blocks it has, its own and those
//! of the ranks behind it, to the rank d places before it, and so gets the next d; in the last round only what is
//! lacking. Every block goes to its place at once, so nothing is turned in the end. *All-to-all:* every rank first
//! copies its blocks to scratch, block o being the one for the rank o places on. In the round of distance d it sends
//! on all blocks whose number has that bit, and gets others for them: each travels as far as the sum of its bits. In
//! its last round a block goes to its place in the output.
//!
//! **Bytes on the wire.** All-gather: n-1 blocks, the least possible, half of them over the largest distance.
//! All-to-all: every block as often as its number has bits. On islands it depends on the positions which rounds stay
//! inside, hence the bounds.
//!
//! **Possible.** Everywhere. The all-to-all is not for blocks of different lengths, since a rank passes on blocks
//! whose lengths it does not know.
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
                // A block takes the place in scratch of the one that was sent; and before anything was sent, all
                // inputs were put aside.
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

/// Groups of blocks that are passed on in a round: all have the bit of its distance.
struct Passing {
    /// The number of the first block.
    first: u32,
    /// How many groups, `2 distance` apart.
    groups: u32,
    /// How many blocks in each, one after the other.
    each: u32,
    distance: u32,
}

impl Passing {
    /// The blocks that a round passes on: those that have arrived with it, then full groups, then what is left.
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

    /// A block's number: how many places it has to go.
    fn number(&self) -> Affine {
        let by = vec![2 * i64::from(self.distance), 1];
        Affine { offset: 0, base: self.first.into(), by, modulo: None }
    }

    /// The rank that a block comes from once it has arrived.
    fn origin(&self, rank: u32, ranks: u32) -> Affine {
        let by = vec![-2 * i64::from(self.distance), -1];
        let base = i64::from(rank) - i64::from(self.first);
        Affine { offset: 0, base, by, modulo: Some(ranks) }
    }

    /// Which block it is in the order they are sent, if the first has this ordinal.
    fn ordinal(&self, first: u32) -> Affine {
        Affine { offset: 0, base: first.into(), by: vec![self.each.into(), 1], modulo: None }
    }
}

/// 1, 2, 4 and so on, below the number of ranks.
fn distances(ranks: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|round| 1 << round).take_while(move |&distance| distance < ranks)
}
