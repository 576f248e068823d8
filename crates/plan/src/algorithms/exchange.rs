//! # Exchange
//!
//! One-shot all-reduce by messages: every rank sends everything to everyone.
//!
//! **Steps.** Every rank sends its whole input to every other, then combines all of them in the order of the ranks,
//! so that all ranks hold the same bits. Two steps, one message in a row.
//!
//! **Bytes on the wire.** n-1 times the buffer per rank, each way.
//!
//! **Possible.** Everywhere: all it needs is messages between any two ranks.
//!
//! **When it wins.** Small buffers: latency is that of a single message. As exchange-ll ([`Protocol::Ll`]) the payload rides in
//! the cache line of its own flag.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
//! (as the limit of recursive doubling); "all-pairs" in MSCCL++.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `[m=1][g>1]` | `[m>1]` | `S (g-1)` | `S g (n-g)` |

use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Channel, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step};

/// How many packets may be under way between two ranks: credits are looked at once per so many calls. Many ranks make
/// do with fewer, since a proof goes through all of them.
fn packets(ranks: u32) -> u32 {
    if ranks <= 8 { 32 } else { 8 }
}

/// How many messages may be under way that have slots of their own.
const DEPTH_SIMPLE: u32 = 4;

/// The all-reduce.
pub fn all_reduce(layout: &Layout, protocol: Protocol) -> Recipe<'_> {
    let ranks = layout.ranks();
    let depth = if protocol == Protocol::Simple { DEPTH_SIMPLE } else { packets(ranks) };
    let name = if protocol == Protocol::Simple { "exchange" } else { "exchange-ll" };
    let channels = vec![Channel { protocol, depth }];
    let outline = Plan { channels, ..Plan::outline(name, Collective::AllReduce, ranks, 1) };
    Recipe::new(outline, move |rank| {
        let mine = || Input::Local(Place::input(0));
        let peers = (0..ranks).filter(|&peer| peer != rank);
        let part = |peer| if peer == rank { mine() } else { Input::received(peer) };
        let combine = Step::reduce((0..ranks).map(part).collect()).to(Output::Local(Place::output(0)));
        let nodes = if ranks == 1 {
            vec![combine.into()]
        } else {
            vec![Step::copy(mine()).to_all(peers.map(Output::sent)).into(), combine.into()]
        };
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}
