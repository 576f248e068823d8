//! Pairwise all-to-all.
//!
//! **Steps.** In round k every rank sends to the rank k further on and receives from the rank k further back: n-1 rounds,
//! one loop, and no rank is sent to by two at once.
//!
//! **Bytes on the wire.** n-1 blocks per rank, each way: the least possible.
//!
//! **When it wins.** Large blocks.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.

use crate::Affine;
use crate::plan::{
    Aliasing, Channel, Chunks, Collective, Format, Input, Lane, Node, Output, Place, Plan, Program, Protocol,
    Step,
};

/// Every pair of ranks exchanges one message each way in a tile, and may be a tile apart.
const DEPTH: u32 = 2;

/// The all-to-all of `ranks`. Out of place only: a block would be overwritten before it is sent.
///
/// # Panics
/// If there are no ranks.
pub fn pairwise_all_to_all(ranks: u32) -> Plan {
    assert!(ranks > 0, "an all-to-all needs a rank");
    Plan {
        weft: Format::default(),
        name: "pairwise".to_owned(),
        collective: Collective::AllToAll,
        ranks,
        chunks: Chunks { input: ranks, output: ranks, scratch: 0 },
        aliasing: vec![Aliasing::OutOfPlace],
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        counters: 0,
        programs: (0..ranks).map(|rank| pairwise_program(rank, ranks)).collect(),
    }
}

fn pairwise_program(rank: u32, ranks: u32) -> Program {
    let ahead = || Affine::ring(i64::from(rank) + 1, 1, ranks);
    let behind = || Affine::ring(i64::from(rank) - 1, -1, ranks);
    let own = Step::copy(Input::Local(Place::input(rank))).to(Output::Local(Place::output(rank)));
    let send = Step::copy(Input::Local(Place::input(ahead()))).to(Output::Sent { to: ahead() });
    let receive = Step::copy(Input::Received { from: behind() }).to(Output::Local(Place::output(behind())));
    let nodes = vec![own.into(), Node::repeat(ranks - 1, [send, receive])];
    Program { lanes: vec![Lane { channel: 0, nodes }] }
}
