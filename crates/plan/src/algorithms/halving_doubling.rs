//! # Halving and doubling
//!
//! A reduce-scatter in which every round halves the remaining data, then an all-gather in which every round doubles the
//! gathered data: as few bytes as a ring, in a logarithmic number of rounds.
//!
//! **Steps.** Ranks are corners of a hypercube, and so are the chunks. *Reduce-scatter:* for each dimension, the nearest
//! ranks first, two ranks that differ in it exchange the sums that belong to the other's half of the cube, and each combines
//! them, the lower rank's first. So most bytes stay near, and the order of the ranks is kept. *All-gather:* the same in
//! reverse, the farthest first: two ranks exchange all they have gathered. *All-reduce:* both, on as many chunks as the cube
//! has corners. With more ranks than a power of two, each odd rank of the first ones sends its input to the even rank before
//! it, which hosts both, and receives its result in the end.
//!
//! **Bytes on the wire.** The least possible on a power of two ranks. A rank that hosts another also moves that rank's
//! buffer. Every chunk is a separate message. The bounds are exact on a power of two islands of a power of two ranks, and
//! rough for other islands.
//!
//! **Possible.** Everywhere.
//!
//! **When it wins.** Medium buffers on a power of two ranks.
//!
//! **Paper.** Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner and Gropp,
//! "Optimization of collective communication operations in MPICH", 2005.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `<= 2 log2(g) + 2 [g > pow2(g)] [m > 1]` | `<= 2 log2(m) + 2 log2(g) [g > pow2(g)] [m > 1]` | `<= 2 S (g-1)/g [n = pow2(n)] + S (3 - 2/pow2(n)) [n > pow2(n)] [g > 1]` | `<= 2 S (1 - 1/pow2(2m-1)) + S (g+1) ([g = 1] [m > pow2(m)] + [g > pow2(g)]) [m > 1]` |
//! | all-gather, reduce-scatter | `<= log2(g) + [n > pow2(n)] (1 + [g > pow2(g)] [m > 1])` | `<= log2(m) + ([g = 1] [m > pow2(m)] + log2(g) [g > pow2(g)]) [m > 1]` | `<= S (g-1)/g [n = pow2(n)] + S (2 + log2(n)/n) [n > pow2(n)] [g > 1]` | `<= S (m-1)/m [n = pow2(n)] + S (1 + 1/m + (g+1) ([g = 1] + [g > pow2(g)])) [n > pow2(n)] [m > 1]` |

use super::rounds::{Folded, Role, Rounds, cube, cube_symmetry};
use crate::layout::Layout;
use crate::plan::{Collective, Input, Node, Output, Place, Plan, Step};
use crate::{Affine, Recipe};

/// Up to this many ranks, each rank combines the lower rank's sum with the higher one's, so that operations need not commute. More
/// ranks are proved by classes, which proves no order and needs all ranks to do the same.
const ORDERED_MAX: u32 = 128;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let folded = Folded::new(layout.ranks());
    recipe(Collective::AllReduce, layout, folded.corners, 0, move |rank| {
        let mut rounds = Rounds::new(rank);
        let every =
            |step: &dyn Fn(Affine) -> Step| [Node::repeat(folded.corners, [step(Affine::counted(0))])];
        let own = |chunk: Affine| Input::Local(Place::input(chunk));
        let kept = |chunk: Affine| Input::Local(Place::output(chunk));
        let keep = |chunk: Affine| Output::Local(Place::output(chunk));
        let (corner, guest) = match folded.role(rank) {
            Role::Corner(corner) => (corner, None),
            Role::Host { corner, guest } => (corner, Some(guest)),
            Role::Guest { host } => {
                rounds.send(every(&|chunk| Step::copy(own(chunk)).to(Output::sent(host))));
                rounds.receive(every(&|chunk| Step::copy(Input::received(host)).to(keep(chunk))));
                return rounds.program();
            }
        };
        if let Some(guest) = guest {
            rounds.receive(every(&|chunk| {
                Step::reduce(vec![own(chunk.clone()), Input::received(guest)]).to(keep(chunk))
            }));
        }
        let blocks = Blocks { folded, whole: true };
        // Before the first round, the sum is the input, unless a guest's was added to it.
        let sum = |chunk: Affine, dimension: u32| {
            if dimension == 1 && guest.is_none() { own(chunk) } else { kept(chunk) }
        };
        blocks.halve(&mut rounds, corner, sum, |chunk, _| keep(chunk));
        blocks.double(&mut rounds, corner);
        match guest {
            Some(guest) => {
                rounds.send(every(&|chunk| Step::copy(kept(chunk)).to(Output::sent(guest))));
            }
            None if folded.corners == 1 => {
                rounds.send(every(&|chunk| Step::copy(own(chunk.clone())).to(keep(chunk))))
            }
            None => {}
        }
        rounds.program()
    })
}

/// The reduce-scatter. Partial sums are in scratch.
pub fn reduce_scatter(layout: &Layout) -> Recipe<'_> {
    let (ranks, folded) = (layout.ranks(), Folded::new(layout.ranks()));
    recipe(Collective::ReduceScatter, layout, 1, ranks, move |rank| {
        let mut rounds = Rounds::new(rank);
        let every = |step: &dyn Fn(Affine) -> Step| [Node::repeat(ranks, [step(Affine::counted(0))])];
        let own = |block: Affine| Input::Local(Place::input(block));
        let kept = |block: Affine| Input::Local(Place::scratch(block));
        let keep = || Output::Local(Place::output(0));
        let (corner, guest) = match folded.role(rank) {
            Role::Corner(corner) => (corner, None),
            Role::Host { corner, guest } => (corner, Some(guest)),
            Role::Guest { host } => {
                rounds.send(every(&|block| Step::copy(own(block)).to(Output::sent(host))));
                rounds.receive([Step::copy(Input::received(host)).to(keep()).into()]);
                return rounds.program();
            }
        };
        if let Some(guest) = guest {
            rounds.receive(every(&|block| {
                let sum = Step::reduce(vec![own(block.clone()), Input::received(guest)]);
                sum.to(Output::Local(Place::scratch(block)))
            }));
        }
        let blocks = Blocks { folded, whole: folded.folded == 0 };
        let sum = |block: Affine, dimension: u32| {
            if dimension == 1 && guest.is_none() { own(block) } else { kept(block) }
        };
        blocks.halve(&mut rounds, corner, sum, |block, dimension| {
            let is_last = dimension * 2 == folded.corners;
            let is_own = is_last && block == rank.into();
            if is_own { keep() } else { Output::Local(Place::scratch(block)) }
        });
        match guest {
            Some(guest) => rounds.send([Step::copy(kept(guest.into())).to(Output::sent(guest)).into()]),
            None if ranks == 1 => rounds.send([Step::copy(own(0.into())).to(keep()).into()]),
            None => {}
        }
        rounds.program_with_scratch()
    })
}

/// The all-gather.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let (ranks, folded) = (layout.ranks(), Folded::new(layout.ranks()));
    recipe(Collective::AllGather, layout, 1, 0, move |rank| {
        let mut rounds = Rounds::new(rank);
        // A guest has its own block and lacks those before and after it.
        let others = |guest: u32, step: &dyn Fn(Affine) -> Step| {
            [Node::repeat(ranks - 1, [step(Affine::ring(i64::from(guest) + 1, 1, ranks))])]
        };
        let keep = |block: Affine| Output::Local(Place::output(block));
        let own = Step::copy(Input::Local(Place::input(0))).to(keep(rank.into()));
        let (corner, guest) = match folded.role(rank) {
            Role::Corner(corner) => (corner, None),
            Role::Host { corner, guest } => (corner, Some(guest)),
            Role::Guest { host } => {
                rounds.send([own.to(Output::sent(host)).into()]);
                rounds.receive(others(rank, &|block| Step::copy(Input::received(host)).to(keep(block))));
                return rounds.program();
            }
        };
        rounds.send([own.into()]);
        rounds.receive(guest.map(|guest| Step::copy(Input::received(guest)).to(keep(guest.into())).into()));
        let blocks = Blocks { folded, whole: folded.folded == 0 };
        blocks.double(&mut rounds, corner);
        if let Some(guest) = guest {
            let kept = |block: Affine| Input::Local(Place::output(block));
            rounds.send(others(guest, &|block| Step::copy(kept(block)).to(Output::sent(guest))));
        }
        rounds.program()
    })
}

/// The blocks of each corner of the cube.
struct Blocks {
    folded: Folded,
    /// Whether each corner has the block of its own number; otherwise it has those of the ranks that it hosts.
    whole: bool,
}

impl Blocks {
    /// A step for each block of the corners that differ from `corner` in some of these bits.
    fn each(&self, corner: u32, bits: u32, step: impl Fn(Affine) -> Step) -> Vec<Node> {
        if self.whole {
            return vec![cube(corner, bits, step)];
        }
        let differing = (0..self.folded.corners).filter(|differing| differing & !bits == 0);
        let blocks = differing.flat_map(|differing| self.folded.ranks(corner ^ differing));
        blocks.map(|block| step(block.into()).into()).collect()
    }

    /// Rounds that leave each corner with the sums of its own blocks. `sum` is the place of a block's sum when a round begins,
    /// `keep` its place afterwards.
    fn halve(
        &self,
        rounds: &mut Rounds,
        corner: u32,
        sum: impl Fn(Affine, u32) -> Input,
        keep: impl Fn(Affine, u32) -> Output,
    ) {
        for dimension in self.folded.dimensions() {
            let partner = self.folded.rank(corner ^ dimension);
            // Nearer dimensions are done, farther ones are not.
            let open = (self.folded.corners - 1) & !(2 * dimension - 1);
            rounds.send(self.each(corner ^ dimension, open, |block| {
                Step::copy(sum(block, dimension)).to(Output::sent(partner))
            }));
            rounds.receive(self.each(corner, open, |block| {
                let (mine, theirs) = (sum(block.clone(), dimension), Input::received(partner));
                let goes_first = corner & dimension == 0 || self.folded.corners > ORDERED_MAX;
                Step::reduce(if goes_first { vec![mine, theirs] } else { vec![theirs, mine] })
                    .to(keep(block, dimension))
            }));
        }
    }

    /// Rounds that send the blocks of each corner, which are in the outputs, to all others.
    fn double(&self, rounds: &mut Rounds, corner: u32) {
        for dimension in self.folded.dimensions().rev() {
            let partner = self.folded.rank(corner ^ dimension);
            let known = (self.folded.corners - 1) & !(2 * dimension - 1);
            rounds.send(self.each(corner, known, |block| {
                Step::copy(Input::Local(Place::output(block))).to(Output::sent(partner))
            }));
            rounds.receive(self.each(corner ^ dimension, known, |block| {
                Step::copy(Input::received(partner)).to(Output::Local(Place::output(block)))
            }));
        }
    }
}

fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    chunks: u32,
    scratch: u32,
    program: impl Fn(u32) -> crate::plan::Program + Send + Sync + 'a,
) -> Recipe<'a> {
    let ranks = layout.ranks();
    let uneven = collective.may_be_uneven();
    let mut outline = Plan { uneven, ..Rounds::outline("halving-doubling", collective, ranks, chunks) };
    outline.chunks.scratch = scratch;
    let is_same_for_all = ranks > ORDERED_MAX || !outline.collective.reduces();
    outline.symmetry = (ranks.is_power_of_two() && is_same_for_all).then(|| cube_symmetry(&outline));
    Recipe::new(outline, program)
}
