//! # One-shot
//!
//! Every rank reads the data it needs in the memory of its peers.
//!
//! **Steps.** *All-reduce, reduce, reduce-scatter:* once all have entered the call, every rank that gets a result reads all inputs, in the order
//! of the ranks, and combines them. *All-gather, broadcast:* the owner of a block copies it into its own output and signals; the others
//! read it there. *All-to-all, gather, scatter, send-receive:* every rank reads each block that is for it. No rank leaves before
//! its peers have read its memory. *Barrier:* every rank polls until all others have entered.
//!
//! **Bytes on the wire.** Every rank that gets a result reads all its inputs once: n-1 buffers per rank for an all-reduce, the least possible
//! for the others.
//!
//! **Possible.** In symmetric buffers, or in buffers that peers can read. All-reduce, all-to-all and send-receive cannot work in
//! place: a rank would overwrite data that others are still reading.
//!
//! **When it wins.** Small symmetric buffers; for all-gather, reduce-scatter and all-to-all large ones too; the barrier of few
//! ranks.
//!
//! **Paper.** "One-shot" in NVIDIA's and PyTorch's symmetric-memory kernels; MSCCL++, Shah et al., 2025.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)` | `S g (n-g)` |
//! | reduce | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)` | `S (n-g)` |
//! | broadcast | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)` | `S (n-g)` |
//! | all-gather | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | reduce-scatter | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | all-to-all | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | gather | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S (n-g)/n` |
//! | scatter | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)/n` | `S (n-g)/n` |
//! | send-receive | `2 [m=1][g>1]` | `2 [m>1]` | `S [g>1]` | `S [m>1]` |
//! | barrier | `[m=1][g>1]` | `[m>1]` | `0` | `0` |

use std::collections::BTreeMap;

use crate::layout::Layout;
use crate::plan::{
    Aliasing, Buffer, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, RankDigit, Remote,
    Step, Symmetry, Wait,
};
use crate::{Affine, Recipe};

/// Counts the parts that a rank has read.
const READ: u32 = 0;

/// Signalled once a rank's own block is in its output.
const READY: u32 = 1;

/// The all-reduce. Out of place only: a rank would overwrite data that others still read.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = outline(Collective::AllReduce, ranks, vec![Aliasing::OutOfPlace]);
    Recipe::new(outline, move |rank| {
        program([sum(rank, ranks, 0).signal(READ)], all_but(rank, ranks).map(|peer| (peer, READ)))
    })
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = outline(Collective::Reduce { root }, ranks, Aliasing::BOTH.to_vec());
    Recipe::new(outline, move |rank| match rank == root {
        true => program([sum(rank, ranks, 0).signal(READ)], []),
        false => program([], [(root, READ)]),
    })
}

/// The reduce-scatter: every rank reads its block of all inputs.
pub fn reduce_scatter(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = outline(Collective::ReduceScatter, ranks, Aliasing::BOTH.to_vec());
    Recipe::new(outline, move |rank| {
        program([sum(rank, ranks, rank).signal(READ)], all_but(rank, ranks).map(|peer| (peer, READ)))
    })
}

/// The broadcast: every rank reads the root's output, after the root has copied its input there.
pub fn broadcast(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = outline(Collective::Broadcast { root }, ranks, Aliasing::BOTH.to_vec());
    Recipe::new(outline, move |rank| {
        let keep = |input| Step::copy(input).to(Output::Local(Place::output(0)));
        if rank == root {
            let own = keep(Input::Local(Place::input(0))).signal(READY);
            return program([own], all_but(rank, ranks).map(|peer| (peer, READ)));
        }
        let read = keep(Input::held_by(root, rank, Place::output(0)));
        program([read.after([Wait::reached(root, READY, 1)]).signal(READ)], [])
    })
}

/// The gather: the root reads all inputs.
pub fn gather(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = outline(Collective::Gather { root }, ranks, Aliasing::BOTH.to_vec());
    Recipe::new(outline, move |rank| {
        let read = |owner| {
            let block = Step::copy(Input::held_by(owner, rank, Place::input(0)));
            let entered = (owner != rank).then(|| Wait::entered(owner));
            block.after(entered).to(Output::Local(Place::output(owner))).signal(READ)
        };
        match rank == root {
            true => program((0..ranks).map(read), []),
            false => {
                // The root reads in the order of the ranks.
                let mine = Wait::reached(root, READ, rank + 1);
                Program { lanes: vec![Lane { channel: 0, nodes: vec![Step::sync().after([mine]).into()] }] }
            }
        }
    })
}

/// Messages, each read by the rank it is for. Out of place only, as for all-to-all.
pub fn send_receive<'a>(layout: &'a Layout, messages: &[(u32, u32)]) -> Recipe<'a> {
    let messages = messages.to_vec();
    let collective = Collective::SendReceive { messages: messages.clone() };
    let outline = outline(collective, layout.ranks(), vec![Aliasing::OutOfPlace]);
    Recipe::new(outline, move |rank| {
        let mut steps = Vec::new();
        let mut taken = BTreeMap::new();
        let (mut given, mut got) = (BTreeMap::new(), BTreeMap::new());
        for &(from, to) in &messages {
            let block = next(&mut given, from);
            let place = next(&mut got, to);
            if to == rank {
                let entered = (from != rank).then(|| Wait::entered(from));
                let read = Step::copy(Input::held_by(from, rank, Place::input(block))).after(entered);
                steps.push(read.to(Output::Local(Place::output(place))).signal(READ));
            } else if from == rank {
                // Ranks read in the order of the messages.
                taken.insert(to, place + 1);
            }
        }
        let leave = Step::sync().after(taken.into_iter().map(|(to, count)| Wait::reached(to, READ, count)));
        let leave = (!leave.waits.is_empty() || steps.is_empty()).then_some(leave);
        let nodes = steps.into_iter().chain(leave).map(Node::Step).collect();
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}

/// The next number for a rank, from 0.
fn next(counts: &mut BTreeMap<u32, u32>, rank: u32) -> u32 {
    let count = counts.entry(rank).or_insert(0);
    *count += 1;
    *count - 1
}

/// The scatter: every rank reads its block of the root's input.
pub fn scatter(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = outline(Collective::Scatter { root }, ranks, Aliasing::BOTH.to_vec());
    Recipe::new(outline, move |rank| {
        let read =
            Step::copy(Input::held_by(root, rank, Place::input(rank))).to(Output::Local(Place::output(0)));
        match rank == root {
            true => program([read], all_but(rank, ranks).map(|peer| (peer, READ))),
            false => program([read.after([Wait::entered(root)]).signal(READ)], []),
        }
    })
}

/// The all-gather: every rank copies its block into its output, where the others read it.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let blocks =
        turning(ranks, vec![Digit { size: 1, with: None }], vec![Digit { size: ranks, with: Some(0) }]);
    let outline =
        Plan { symmetry: Some(blocks), ..outline(Collective::AllGather, ranks, Aliasing::BOTH.to_vec()) };
    Recipe::new(outline, move |rank| {
        let own =
            Step::copy(Input::Local(Place::input(0))).to(Output::Local(Place::output(rank))).signal(READY);
        let ready = Wait::Reached { rank: ahead(rank, ranks), counter: READY, count: 1.into() };
        let block = Remote { rank: ahead(rank, ranks), buffer: Buffer::Output, chunk: ahead(rank, ranks) };
        let read = Step::copy(Input::Peer(block)).after([ready]);
        around(own, read.to(Output::Local(Place::output(ahead(rank, ranks)))).signal(READ), rank, ranks)
    })
}

/// The all-to-all: every rank reads its blocks of all inputs. Out of place only: a rank would overwrite data that others still
/// read.
pub fn all_to_all(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let blocks = vec![Digit { size: ranks, with: Some(0) }];
    let outline = outline(Collective::AllToAll, ranks, vec![Aliasing::OutOfPlace]);
    let outline = Plan { symmetry: Some(turning(ranks, blocks.clone(), blocks)), ..outline };
    Recipe::new(outline, move |rank| {
        let own = Step::copy(Input::Local(Place::input(rank))).to(Output::Local(Place::output(rank)));
        let block = Remote { rank: ahead(rank, ranks), buffer: Buffer::Input, chunk: rank.into() };
        let read = Step::copy(Input::Peer(block)).after([Wait::Entered { rank: ahead(rank, ranks) }]);
        around(own, read.to(Output::Local(Place::output(ahead(rank, ranks)))).signal(READ), rank, ranks)
    })
}

/// The barrier: every rank waits until all others have entered.
pub fn barrier(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Plan {
        symmetry: Some(turning(ranks, vec![], vec![])),
        ..Plan::outline("one-shot", Collective::Barrier, ranks, 1)
    };
    Recipe::new(outline, move |rank| {
        let others = (1..ranks).map(|by| Wait::entered((rank + by) % ranks));
        Program { lanes: vec![Lane { channel: 0, nodes: vec![Step::sync().after(others).into()] }] }
    })
}

fn outline(collective: Collective, ranks: u32, aliasing: Vec<Aliasing>) -> Plan {
    let uneven = collective.may_be_uneven();
    let counters = match collective {
        Collective::AllGather | Collective::Broadcast { .. } => 2,
        _ => 1,
    };
    Plan { aliasing, uneven, counters, ..Plan::outline("one-shot", collective, ranks, 1) }
}

/// All ranks but one.
pub(super) fn all_but(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (0..ranks).filter(move |&other| other != rank)
}

/// A chunk of all inputs, read once all have entered and combined in the order of the ranks.
fn sum(rank: u32, ranks: u32, chunk: u32) -> Step {
    let parts = (0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(chunk))).collect();
    Step::reduce(parts).after(all_but(rank, ranks).map(Wait::entered)).to(Output::Local(Place::output(0)))
}

/// Steps, and then a wait until others have signalled a counter.
fn program(steps: impl IntoIterator<Item = Step>, until: impl IntoIterator<Item = (u32, u32)>) -> Program {
    let leave = Step::sync().after(until.into_iter().map(|(peer, counter)| Wait::reached(peer, counter, 1)));
    let leave = (!leave.waits.is_empty()).then_some(leave);
    Program {
        lanes: vec![Lane { channel: 0, nodes: steps.into_iter().chain(leave).map(Node::Step).collect() }],
    }
}

/// The ranks after this one, around the ring, by the iteration of a loop.
pub(super) fn ahead(rank: u32, ranks: u32) -> Affine {
    Affine::ring(i64::from(rank) + 1, 1, ranks)
}

/// A first step, a step for each rank ahead, which signals the first counter, and a wait until each of those ranks has taken
/// its step for this one.
pub(super) fn around(own: Step, each: Step, rank: u32, ranks: u32) -> Program {
    let nodes = vec![own.into(), Node::repeat(ranks - 1, [each]), come_around(rank, ranks, READ)];
    Program { lanes: vec![Lane { channel: 0, nodes }] }
}

/// Waits until each of the ranks ahead, which signals a counter for every rank ahead of it, has signalled for this one.
pub(super) fn come_around(rank: u32, ranks: u32, counter: u32) -> Node {
    // The rank d places ahead signals for this one in its step n-d.
    let count = Affine { offset: 0, base: i64::from(ranks) - 1, by: vec![-1], modulo: None };
    let come = Wait::Reached { rank: ahead(rank, ranks), counter, count };
    Node::repeat(ranks - 1, [Step::sync().after([come])])
}

/// The symmetry of all ranks around the ring, with the digits of chunks that turn with them.
pub(super) fn turning(ranks: u32, input: Vec<Digit>, output: Vec<Digit>) -> Symmetry {
    Symmetry { ranks: vec![RankDigit { size: ranks, turns: true }], input, output, scratch: vec![] }
}
