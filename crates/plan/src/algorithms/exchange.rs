//! Exchange: one-shot all-reduce by messages.
//!
//! **Steps.** Every rank sends its whole input to every other, then combines all of them in the order of the ranks,
//! so that all ranks hold the same bits. Two steps, one message in a row.
//!
//! **Bytes on the wire.** n-1 times the buffer per rank, each way.
//!
//! **When it wins.** Small buffers: latency is that of a single message. With [`Protocol::Ll`] the payload rides in
//! the cache line of its own flag.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
//! (as the limit of recursive doubling); "all-pairs" in MSCCL++.

use crate::plan::{
    Aliasing, Channel, Chunks, Collective, Format, Input, Lane, Output, Place, Plan, Program, Protocol, Step,
};

/// How many packets may be under way between two ranks: credits are looked at once per so many calls. Many ranks make
/// do with fewer, since a proof goes through all of them.
fn packets(ranks: u32) -> u32 {
    if ranks <= 8 { 32 } else { 8 }
}

/// How many messages may be under way that have slots of their own.
const DEPTH_SIMPLE: u32 = 4;

/// The plan for `ranks`.
///
/// # Panics
/// If there are no ranks.
pub fn exchange(ranks: u32, protocol: Protocol) -> Plan {
    assert!(ranks > 0, "an exchange needs a rank");
    let depth = if protocol == Protocol::Simple { DEPTH_SIMPLE } else { packets(ranks) };
    Plan {
        weft: Format::default(),
        name: if protocol == Protocol::Simple { "exchange" } else { "exchange-ll" }.to_owned(),
        collective: Collective::AllReduce,
        ranks,
        chunks: Chunks { input: 1, output: 1, scratch: 0 },
        aliasing: Aliasing::BOTH.to_vec(),
        channels: vec![Channel { protocol, depth }],
        counters: 0,
        programs: (0..ranks).map(|rank| exchange_program(rank, ranks)).collect(),
    }
}

fn exchange_program(rank: u32, ranks: u32) -> Program {
    let mine = || Input::Local(Place::input(0));
    let peers = (0..ranks).filter(|&peer| peer != rank);
    let parts = (0..ranks).map(|peer| if peer == rank { mine() } else { Input::received(peer) }).collect();
    let combine = Step::reduce(parts).to(Output::Local(Place::output(0)));
    let nodes = if ranks == 1 {
        vec![combine.into()]
    } else {
        vec![Step::copy(mine()).to_all(peers.map(Output::sent)).into(), combine.into()]
    };
    Program { lanes: vec![Lane { channel: 0, nodes }] }
}
