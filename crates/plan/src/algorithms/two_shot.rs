//! # Two-shot
//!
//! Every rank reads its share of the buffer in the memory of its peers and writes the result to all ranks that need it.
//!
//! **Steps.** The buffer is cut into n chunks. *All-reduce:* once all have entered the call, rank r reads chunk r of every input
//! where it is, combines them in the order of the ranks and writes the result into chunk r of every output: one step
//! does the reduce-scatter and the all-gather. *Reduce:* it writes it to the root. *Broadcast:* rank r reads chunk r of the
//! root's input and writes it to every output. *All-gather, all-to-all:* every rank writes its blocks to their places in all
//! outputs. No rank leaves before all have written.
//!
//! **Bytes on the wire.** (n-1)/n of the buffer read and as much written per rank for an all-reduce: the least possible, and
//! each byte is read once. A broadcast leaves the root at most twice, for any number of ranks.
//!
//! **Possible.** In symmetric buffers, which peers can access. In place too, except for the all-to-all, whose blocks would be
//! overwritten before they are sent.
//!
//! **When it wins.** Symmetric buffers from a few hundred bytes up; where writing to peers is faster than reading from
//! them, as over PCIe, all-gather and all-to-all at any size.
//!
//! **Paper.** "Two-shot" in NVIDIA's and PyTorch's symmetric-memory kernels; as reduce-scatter and all-gather,
//! Rabenseifner, 2004.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2 [m=1][g>1]` | `2 [m>1]` | `2 S (g-1)/n` | `2 S g (n-g)/n` |
//! | reduce | `2 [m=1][g>1]` | `2 [m>1]` | `2 S (g-1)/n` | `S (g+1)(n-g)/n` |
//! | broadcast | `2 [m=1][g>1]` | `2 [m>1]` | `2 S (g-1)/n` | `S (g+1)(n-g)/n` |
//! | all-gather | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | all-to-all | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |

use crate::Recipe;
use crate::algorithms::one_shot::{ahead, around, turning};
use crate::layout::Layout;
use crate::plan::{
    Aliasing, Buffer, Collective, Digit, Input, Lane, Output, Place, Plan, Program, Remote, Step, Wait,
};

/// Counts the parts of a rank's share that it has written.
const WRITTEN: u32 = 0;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    share(Collective::AllReduce, ranks, ranks, move |rank| {
        Step::reduce((0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(rank))).collect())
            .to_all((0..ranks).map(|owner| Output::held_by(owner, rank, Place::output(rank))))
    })
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    share(Collective::Reduce { root }, ranks, ranks, move |rank| {
        Step::reduce((0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(rank))).collect())
            .to(Output::held_by(root, rank, Place::output(rank)))
    })
}

/// The broadcast from `root`.
pub fn broadcast(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    share(Collective::Broadcast { root }, ranks, ranks, move |rank| {
        Step::copy(Input::held_by(root, rank, Place::input(rank)))
            .to_all((0..ranks).map(|owner| Output::held_by(owner, rank, Place::output(rank))))
    })
}

/// The all-gather.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    share(Collective::AllGather, ranks, 1, move |rank| {
        Step::copy(Input::Local(Place::input(0)))
            .to_all((0..ranks).map(|owner| Output::held_by(owner, rank, Place::output(rank))))
    })
}

/// The all-to-all. Out of place only: a block would be overwritten before it is sent.
pub fn all_to_all(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let blocks = vec![Digit { size: ranks, with: Some(0) }];
    let outline = Plan {
        aliasing: vec![Aliasing::OutOfPlace],
        uneven: true,
        symmetry: Some(turning(ranks, blocks.clone(), blocks)),
        ..outline(Collective::AllToAll, ranks, 1)
    };
    Recipe::new(outline, move |rank| {
        let own = Step::copy(Input::Local(Place::input(rank))).to(Output::Local(Place::output(rank)));
        let target = Remote { rank: ahead(rank, ranks), buffer: Buffer::Output, chunk: rank.into() };
        let write = Step::copy(Input::Local(Place::input(ahead(rank, ranks))))
            .after([Wait::Entered { rank: ahead(rank, ranks) }])
            .to(Output::Peer(target));
        around(own, write.signal(WRITTEN), rank, ranks)
    })
}

fn outline(collective: Collective, ranks: u32, chunks: u32) -> Plan {
    Plan { counters: 1, ..Plan::outline("two-shot", collective, ranks, chunks) }
}

/// The plan in which every rank takes one step for its share once all have entered, and all wait for all.
fn share<'a>(
    collective: Collective,
    ranks: u32,
    chunks: u32,
    step: impl Fn(u32) -> Step + Send + Sync + 'a,
) -> Recipe<'a> {
    let uneven = collective.may_be_uneven();
    Recipe::new(Plan { uneven, ..outline(collective, ranks, chunks) }, move |rank| {
        let peers = || (0..ranks).filter(move |&peer| peer != rank);
        let share = step(rank).after(peers().map(Wait::entered)).signal(WRITTEN);
        let leave = Step::sync().after(peers().map(|peer| Wait::reached(peer, WRITTEN, 1)));
        Program { lanes: vec![Lane { channel: 0, nodes: vec![share.into(), leave.into()] }] }
    })
}
