//! # Pull
//!
//! Every rank reads: first its share of all inputs, then the others' results. No rank writes to a peer.
//!
//! **Steps.** The buffer is cut into n chunks. *All-reduce:* once all have entered the call, rank r reads chunk r of every input,
//! combines them in the order of the ranks into its own output and signals. Then it reads every other chunk in the output of
//! its owner, the next rank's first, and leaves when all have read its own. *Reduce:* ranks other than the root combine into
//! a chunk of staging memory, where the root reads it.
//!
//! In place too: a rank overwrites chunk p of its buffer after rank p has combined it, and no other rank reads it before.
//!
//! **Bytes on the wire.** As much as two-shot moves, all of it by reading: 2(n-1)/n of the buffer per rank for an all-reduce.
//!
//! **Possible.** Where ranks can read each other's buffers. They need not write to them, so the kernel's copies from other
//! processes (CMA) are enough.
//!
//! **When it wins.** Large buffers that peers can read and not write, or cannot write as fast.
//!
//! **Paper.** Chakraborty, Subramoni and Panda, "Contention-aware kernel-assisted MPI collectives for multi-/many-core systems", 2017.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `3 [m=1][g>1]` | `3 [m>1]` | `2 S (g-1)/n` | `2 S g (n-g)/n` |
//! | reduce | `3 [m=1][g>1]` | `3 [m>1]` | `2 S (g-1)/n` | `S (g+1)(n-g)/n` |

use super::one_shot::{ahead, all_but, come_around};
use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Buffer, Collective, Input, Lane, Node, Output, Place, Plan, Program, Remote, Step, Wait};

/// Counts the results that a rank has read.
const READ: u32 = 0;

/// Signalled once a rank has combined its chunk.
const COMBINED: u32 = 1;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    Recipe::new(outline(Collective::AllReduce, ranks), move |rank| {
        let sum = sum(rank, ranks).to(Output::Local(Place::output(rank)));
        let result = Remote { rank: ahead(rank, ranks), buffer: Buffer::Output, chunk: ahead(rank, ranks) };
        program([sum.into(), read(rank, ranks, result), come_around(rank, ranks, READ)])
    })
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let mut outline = outline(Collective::Reduce { root }, ranks);
    outline.chunks.scratch = u32::from(ranks > 1);
    Recipe::new(outline, move |rank| {
        let sum = sum(rank, ranks);
        if rank == root {
            let result = Remote { rank: ahead(rank, ranks), buffer: Buffer::Scratch, chunk: 0.into() };
            return program([sum.to(Output::Local(Place::output(rank))).into(), read(rank, ranks, result)]);
        }
        // The others have read this rank's input, and the root its result.
        let combined = all_but(rank, ranks).map(|peer| Wait::reached(peer, COMBINED, 1));
        let taken = Wait::reached(root, READ, (rank + ranks - root) % ranks);
        let leave = Step::sync().after(combined).after([taken]);
        program([sum.to(Output::Local(Place::scratch(0))).into(), leave.into()])
    })
}

fn outline(collective: Collective, ranks: u32) -> Plan {
    Plan { counters: 2, ..Plan::outline("pull", collective, ranks, ranks) }
}

fn program(nodes: impl Into<Vec<Node>>) -> Program {
    Program { lanes: vec![Lane { channel: 0, nodes: nodes.into() }] }
}

/// The rank's chunk of all inputs, read once all have entered and combined in the order of the ranks.
fn sum(rank: u32, ranks: u32) -> Step {
    let parts = (0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(rank))).collect();
    Step::reduce(parts).after(all_but(rank, ranks).map(Wait::entered)).signal(COMBINED)
}

/// Reads the results of the others, the next rank's first.
fn read(rank: u32, ranks: u32, result: Remote) -> Node {
    let combined = Wait::Reached { rank: ahead(rank, ranks), counter: COMBINED, count: 1.into() };
    let read = Step::copy(Input::Peer(result)).after([combined]);
    Node::repeat(ranks - 1, [read.to(Output::Local(Place::output(ahead(rank, ranks)))).signal(READ)])
}
