//! # Exchange
//!
//! One-shot by messages: every rank sends its data to all ranks that need it, all at once.
//!
//! **Steps.** *All-reduce, all-gather:* every rank sends its whole input to every other. *Reduce-scatter:* it sends every
//! other rank that rank's block. Then it receives: it combines all parts in the order of the ranks, so that all hold the same
//! bits, or stores each block in its place. The latency is that of one message.
//!
//! **Bytes on the wire.** n-1 times the buffer per rank, each way, for an all-reduce; the least possible for the others.
//!
//! **Possible.** Everywhere: all it needs is messages between any two ranks.
//!
//! **When it wins.** Small buffers: latency is that of a single message. As exchange-ll ([`Protocol::Ll`]) the payload shares
//! the cache line of its flag.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
//! (as the limit of recursive doubling); "all-pairs" in MSCCL++.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `[m=1][g>1]` | `[m>1]` | `S (g-1)` | `S g (n-g)` |
//! | all-gather | `[m=1][g>1]` | `[m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | reduce-scatter | `[m=1][g>1]` | `[m>1]` | `S (g-1)/n` | `S g (n-g)/n` |

use super::one_shot::{ahead, turning};
use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{
    Channel, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, Protocol, Step,
};

/// The depth of packet FIFOs: a sender polls for credits once in this many calls. With many ranks it is smaller, since a proof
/// runs as many tiles.
pub(super) fn packets(ranks: u32) -> u32 {
    if ranks <= 8 { 32 } else { 8 }
}

/// The depth of FIFOs with slots.
const DEPTH_SIMPLE: u32 = 4;

/// The all-reduce.
pub fn all_reduce(layout: &Layout, protocol: Protocol) -> Recipe<'_> {
    let ranks = layout.ranks();
    Recipe::new(outline(Collective::AllReduce, ranks, protocol), move |rank| {
        let mine = || Input::Local(Place::input(0));
        let peers = (0..ranks).filter(|&peer| peer != rank);
        let send = (ranks > 1).then(|| Step::copy(mine()).to_all(peers.map(Output::sent)));
        program(send.map(Node::Step), [combine(rank, ranks, 0).into()])
    })
}

/// The all-gather.
pub fn all_gather(layout: &Layout, protocol: Protocol) -> Recipe<'_> {
    let ranks = layout.ranks();
    let blocks =
        turning(ranks, vec![Digit { size: 1, with: None }], vec![Digit { size: ranks, with: Some(0) }]);
    let outline = Plan { symmetry: Some(blocks), ..outline(Collective::AllGather, ranks, protocol) };
    Recipe::new(outline, move |rank| {
        let others = (1..ranks).map(|by| Output::sent((rank + by) % ranks));
        let send =
            Step::copy(Input::Local(Place::input(0))).to_all(others).to(Output::Local(Place::output(rank)));
        let take = Step::copy(Input::Received { from: ahead(rank, ranks) })
            .to(Output::Local(Place::output(ahead(rank, ranks))));
        program([send.into()], [Node::repeat(ranks - 1, [take])])
    })
}

/// The reduce-scatter.
pub fn reduce_scatter(layout: &Layout, protocol: Protocol) -> Recipe<'_> {
    let ranks = layout.ranks();
    Recipe::new(outline(Collective::ReduceScatter, ranks, protocol), move |rank| {
        let send = Step::copy(Input::Local(Place::input(ahead(rank, ranks))))
            .to(Output::Sent { to: ahead(rank, ranks) });
        program([Node::repeat(ranks - 1, [send])], [combine(rank, ranks, rank).into()])
    })
}

fn outline(collective: Collective, ranks: u32, protocol: Protocol) -> Plan {
    let (name, depth) = match protocol {
        Protocol::Simple => ("exchange", DEPTH_SIMPLE),
        Protocol::Ll | Protocol::Ll128 => ("exchange-ll", packets(ranks)),
    };
    let uneven = collective.may_be_uneven();
    let channels = vec![Channel { protocol, depth }];
    Plan { channels, uneven, ..Plan::outline(name, collective, ranks, 1) }
}

/// A lane that sends, then receives.
fn program(send: impl IntoIterator<Item = Node>, take: impl IntoIterator<Item = Node>) -> Program {
    Program { lanes: vec![Lane { channel: 0, nodes: send.into_iter().chain(take).collect() }] }
}

/// Combines the others' messages and a chunk of the rank's own input, in the order of the ranks.
fn combine(rank: u32, ranks: u32, own: u32) -> Step {
    let part = |owner: u32| match owner == rank {
        true => Input::Local(Place::input(own)),
        false => Input::received(owner),
    };
    Step::reduce((0..ranks).map(part).collect()).to(Output::Local(Place::output(0)))
}
