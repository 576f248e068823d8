//! # Staged
//!
//! Every rank copies its part into staging memory, where the others read it.
//!
//! **Steps.** *All-reduce, reduce:* the buffer is cut into n chunks. Rank r copies all but its own chunk into its staging
//! memory and signals. Once all have, it combines chunk r of all ranks in their order, keeps the result if it needs it, and
//! writes it back to the ranks that need it: over the data that it has just read, so that a cache line crosses once each way
//! and belongs to the rank that writes it next. Every rank copies the results out of its own staging memory, the next rank's
//! first. *Broadcast, all-gather, gather:* the owner of a block stages it once, and the others read it. *Reduce-scatter,
//! all-to-all, scatter:* a rank with blocks for others stages them, and every rank reads its own. With several rings, as many
//! lanes each handle a part of every block, so that one copies while another waits.
//!
//! All tiles share the staging memory. In an all-reduce no rank has to wait for it: a rank stages again where it has read a
//! result. Otherwise a rank leaves when its staged data has been read.
//!
//! **Bytes on the wire.** As much as one-shot and two-shot move; in addition, every rank copies its data once, and results
//! once more.
//!
//! **Possible.** Wherever ranks can access each other's staging memory, with any user buffers. In place too: data that others
//! need is staged before it is overwritten.
//!
//! **When it wins.** Large ordinary buffers on one host: two synchronisations per tile, for any number of ranks.
//!
//! **Paper.** Graham and Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", 2008.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2 [m=1][g>1]` | `2 [m>1]` | `2 S (g-1)/n` | `2 S g (n-g)/n` |
//! | reduce | `2 [m=1][g>1]` | `2 [m>1]` | `2 S (g-1)/n` | `S (g+1)(n-g)/n` |
//! | broadcast | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)` | `S (n-g)` |
//! | all-gather | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | reduce-scatter | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | all-to-all | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | gather | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S (n-g)/n` |
//! | scatter | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S (n-g)/n` |

use super::one_shot::{ahead, all_but, come_around};
use crate::layout::Layout;
use crate::plan::{
    Buffer, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, RankDigit, Remote, Step,
    Symmetry, Wait,
};
use crate::{Affine, Recipe};

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let outline = outline(Collective::AllReduce, layout, layout.ranks(), layout.ranks());
    recipe(outline, layout, |share| {
        let mut nodes = share.stage_all();
        let sum = share.sum(Output::Local(Place::output(share.mine())));
        let returned = all_but(share.rank, share.ranks).map(|peer| share.put_back(peer));
        nodes.extend([sum.to_all(returned).signal(share.done()).into(), share.take_results()]);
        nodes
    })
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    let outline = outline(Collective::Reduce { root }, layout, layout.ranks(), layout.ranks());
    recipe(outline, layout, move |share| {
        let mut nodes = share.stage_all();
        if share.rank == root {
            let sum = share.sum(Output::Local(Place::output(share.mine())));
            nodes.extend([sum.signal(share.done()).into(), share.take_results()]);
        } else {
            let sum = share.sum(share.put_back(root));
            nodes.extend([sum.signal(share.done()).into(), share.all_done().into()]);
        }
        nodes
    })
}

/// The broadcast from `root`.
pub fn broadcast(layout: &Layout, root: u32) -> Recipe<'_> {
    let outline = outline(Collective::Broadcast { root }, layout, 1, 1);
    recipe(outline, layout, move |share| {
        if share.rank == root {
            let mut nodes = share.stage_own();
            nodes.extend([share.keep(0, 0).into(), share.all_done().into()]);
            return nodes;
        }
        let staged = Wait::reached(root, share.staged(), 1);
        vec![share.take(root.into(), share.of(0).into(), share.of(0).into()).after([staged]).into()]
    })
}

/// The all-gather.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let outline = outline(Collective::AllGather, layout, 1, 1);
    let lanes = layout.rings.len() as u32;
    let outline = turning(outline, [one(lanes), blocks(layout), one(lanes)]);
    recipe(outline, layout, |share| {
        let mut nodes = share.stage_own();
        let each = share.take(share.ahead(), share.of(0).into(), share.block_ahead());
        nodes.push(share.keep(0, share.rank).into());
        nodes.extend([share.for_others(each.after([share.staged_ahead()])), share.come_around()]);
        nodes
    })
}

/// The reduce-scatter.
pub fn reduce_scatter(layout: &Layout) -> Recipe<'_> {
    let outline = outline(Collective::ReduceScatter, layout, 1, layout.ranks());
    recipe(outline, layout, |share| {
        let mut nodes = share.stage_all();
        let sum = share.sum(Output::Local(Place::output(share.of(0))));
        nodes.extend([sum.signal(share.done()).into(), share.all_done().into()]);
        nodes
    })
}

/// The all-to-all.
pub fn all_to_all(layout: &Layout) -> Recipe<'_> {
    let outline = outline(Collective::AllToAll, layout, 1, layout.ranks());
    let outline = turning(outline, [blocks(layout), blocks(layout), blocks(layout)]);
    recipe(outline, layout, |share| {
        let mut nodes = share.stage_all();
        let each = share.take(share.ahead(), share.mine().into(), share.block_ahead());
        nodes.push(share.keep(share.rank, share.rank).into());
        nodes.extend([share.for_others(each.after([share.staged_ahead()])), share.come_around()]);
        nodes
    })
}

/// The gather to `root`.
pub fn gather(layout: &Layout, root: u32) -> Recipe<'_> {
    let outline = outline(Collective::Gather { root }, layout, 1, 1);
    recipe(outline, layout, move |share| {
        if share.rank == root {
            let each = share.take(share.ahead(), share.of(0).into(), share.block_ahead());
            return vec![share.keep(0, root).into(), share.for_others(each.after([share.staged_ahead()]))];
        }
        let mut nodes = share.stage_own();
        nodes.push(Step::sync().after([Wait::reached(root, share.done(), share.behind(root))]).into());
        nodes
    })
}

/// The scatter from `root`.
pub fn scatter(layout: &Layout, root: u32) -> Recipe<'_> {
    let outline = outline(Collective::Scatter { root }, layout, 1, layout.ranks());
    recipe(outline, layout, move |share| {
        if share.rank == root {
            let stage = share.stage(share.block_ahead(), share.block_ahead()).signal(share.staged());
            return vec![share.for_others(stage), share.keep(root, 0).into(), share.all_done().into()];
        }
        let staged = Wait::reached(root, share.staged(), share.behind(root));
        vec![share.take(root.into(), share.mine().into(), share.of(0).into()).after([staged]).into()]
    })
}

/// An outline with a lane for each ring; each block has `parts` for each lane, and a rank can stage `staged` of them.
fn outline(collective: Collective, layout: &Layout, parts: u32, staged: u32) -> Plan {
    let (ranks, lanes) = (layout.ranks(), layout.rings.len() as u32);
    let uneven = collective.may_be_uneven();
    let mut plan = Plan::outline("staged", collective, ranks, parts * lanes);
    plan.chunks.scratch = if ranks > 1 { staged * lanes } else { 0 };
    Plan { uneven, counters: 2 * lanes, ..plan }
}

/// The outline with the symmetry of all ranks around the ring, from the digits of chunks of input, output and scratch.
fn turning(outline: Plan, [input, output, scratch]: [Vec<Digit>; 3]) -> Plan {
    let scratch = if outline.chunks.scratch > 0 { scratch } else { vec![] };
    let ranks = vec![RankDigit { size: outline.ranks, turns: true }];
    Plan { symmetry: Some(Symmetry { ranks, input, output, scratch }), ..outline }
}

/// The digits of a block for each rank, which turns with it, in parts for each lane.
fn blocks(layout: &Layout) -> Vec<Digit> {
    let whose = Digit { size: layout.ranks(), with: Some(0) };
    vec![whose, Digit { size: layout.rings.len() as u32, with: None }]
}

/// The digits of one block, in parts for each lane.
fn one(lanes: u32) -> Vec<Digit> {
    vec![Digit { size: lanes, with: None }]
}

fn recipe<'a>(
    outline: Plan,
    layout: &'a Layout,
    nodes: impl Fn(Share) -> Vec<Node> + Send + Sync + 'a,
) -> Recipe<'a> {
    let (ranks, lanes) = (layout.ranks(), layout.rings.len() as u32);
    Recipe::new(outline, move |rank| {
        let lane = |lane| Lane { channel: 0, nodes: nodes(Share { rank, ranks, lane, lanes }) };
        Program { lanes: (0..lanes).map(lane).collect() }
    })
}

/// One lane of a rank, with its part of every block.
#[derive(Clone, Copy)]
struct Share {
    rank: u32,
    ranks: u32,
    lane: u32,
    lanes: u32,
}

impl Share {
    /// Counts the blocks that the rank has staged.
    fn staged(self) -> u32 {
        2 * self.lane
    }

    /// Counts the blocks that the rank has combined or read.
    fn done(self) -> u32 {
        2 * self.lane + 1
    }

    /// This lane's part of a block.
    fn of(self, block: u32) -> u32 {
        block * self.lanes + self.lane
    }

    /// Its part of the rank's own block.
    fn mine(self) -> u32 {
        self.of(self.rank)
    }

    /// The ranks after this one, around the ring.
    fn ahead(self) -> Affine {
        ahead(self.rank, self.ranks)
    }

    /// The lane's part of the blocks of these ranks.
    fn block_ahead(self) -> Affine {
        let lanes = i64::from(self.lanes);
        let part = Affine::ring((i64::from(self.rank) + 1) * lanes, lanes, self.ranks * self.lanes);
        part.plus(self.lane)
    }

    /// The number of places from another rank to this one, around the ring.
    fn behind(self, other: u32) -> u32 {
        (self.rank + self.ranks - other) % self.ranks
    }

    fn staged_ahead(self) -> Wait {
        Wait::Reached { rank: self.ahead(), counter: self.staged(), count: 1.into() }
    }

    /// One step for every other rank.
    fn for_others(self, step: Step) -> Node {
        Node::repeat(self.ranks - 1, [step])
    }

    /// Copies a chunk of the input into staging memory.
    fn stage(self, input: Affine, scratch: Affine) -> Step {
        Step::copy(Input::Local(Place::input(input))).to(Output::Local(Place::scratch(scratch)))
    }

    /// Stages the rank's only block, and signals.
    fn stage_own(self) -> Vec<Node> {
        let stage = self.stage(self.of(0).into(), self.of(0).into()).signal(self.staged());
        (self.ranks > 1).then(|| stage.into()).into_iter().collect()
    }

    /// Stages all blocks but the rank's own, and signals.
    fn stage_all(self) -> Vec<Node> {
        let stage = self.stage(self.block_ahead(), self.block_ahead());
        let signal = Step::sync().signal(self.staged());
        vec![self.for_others(stage), signal.into()]
    }

    /// Copies a block of the rank's input to its output.
    fn keep(self, input: u32, output: u32) -> Step {
        let input = Input::Local(Place::input(self.of(input)));
        Step::copy(input).to(Output::Local(Place::output(self.of(output))))
    }

    /// Reads a block that another rank has staged, and signals.
    fn take(self, owner: Affine, scratch: Affine, output: Affine) -> Step {
        let staged = Remote { rank: owner, buffer: Buffer::Scratch, chunk: scratch };
        Step::copy(Input::Peer(staged)).to(Output::Local(Place::output(output))).signal(self.done())
    }

    /// The place where a peer has staged this rank's block, for the result.
    fn put_back(self, peer: u32) -> Output {
        Output::held_by(peer, self.rank, Place::scratch(self.mine()))
    }

    /// Copies the results that the others have written back.
    fn take_results(self) -> Node {
        let combined = Wait::Reached { rank: self.ahead(), counter: self.done(), count: 1.into() };
        let take = Step::copy(Input::Local(Place::scratch(self.block_ahead()))).after([combined]);
        self.for_others(take.to(Output::Local(Place::output(self.block_ahead()))))
    }

    /// Combines the rank's block of all ranks, in their order, once all have staged it.
    fn sum(self, output: Output) -> Step {
        let part = |owner: u32| match owner == self.rank {
            true => Input::Local(Place::input(self.mine())),
            false => Input::held_by(owner, self.rank, Place::scratch(self.mine())),
        };
        let staged = all_but(self.rank, self.ranks).map(|peer| Wait::reached(peer, self.staged(), 1));
        Step::reduce((0..self.ranks).map(part).collect()).after(staged).to(output)
    }

    /// Waits until all others are done with this rank's staged data.
    fn all_done(self) -> Step {
        Step::sync().after(all_but(self.rank, self.ranks).map(|peer| Wait::reached(peer, self.done(), 1)))
    }

    /// Waits until each of the others has read this rank's block.
    fn come_around(self) -> Node {
        come_around(self.rank, self.ranks, self.done())
    }
}
