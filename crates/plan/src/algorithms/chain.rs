//! Chain broadcast and chain reduce.
//!
//! **Steps.** Ranks stand in a chain that begins (broadcast) or ends (reduce) at the root, in the order of their numbers
//! around the ring. A broadcast is handed down: keep it, pass it on. A reduction is handed up: add to it, pass it on.
//! Tiles follow each other, so all ranks are busy as soon as n tiles are under way.
//!
//! **Bytes on the wire.** One buffer per rank, one way.
//!
//! **When it wins.** Large buffers, which are cut into many tiles. Its latency grows with n.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
//! (pipelined ring).

use crate::plan::{
    Aliasing, Channel, Chunks, Collective, Format, Input, Lane, Output, Place, Plan, Program, Protocol, Step,
};

/// One message is read while the next is written.
const DEPTH: u32 = 2;

/// The broadcast from `root` to `ranks`.
///
/// # Panics
/// If `root` is none of the ranks.
pub fn chain_broadcast(ranks: u32, root: u32) -> Plan {
    let step = |place: &Link| {
        let source =
            if place.position == 0 { Input::Local(Place::input(0)) } else { Input::received(place.before) };
        let keep = Step::copy(source).to(Output::Local(Place::output(0)));
        if place.position + 1 == ranks { keep } else { keep.to(Output::sent(place.behind)) }
    };
    plan(Collective::Broadcast { root }, ranks, root, step)
}

/// The reduction of `ranks` to `root`.
///
/// # Panics
/// If `root` is none of the ranks.
pub fn chain_reduce(ranks: u32, root: u32) -> Plan {
    let step = |place: &Link| {
        let own = Input::Local(Place::input(0));
        let is_end = place.position + 1 == ranks;
        let sum =
            if is_end { Step::copy(own) } else { Step::reduce(vec![Input::received(place.behind), own]) };
        sum.to(if place.position == 0 { Output::Local(Place::output(0)) } else { Output::sent(place.before) })
    };
    plan(Collective::Reduce { root }, ranks, root, step)
}

/// A rank's place in the chain: how far from the root, and its neighbours towards and away from it.
struct Link {
    position: u32,
    before: u32,
    behind: u32,
}

fn plan(collective: Collective, ranks: u32, root: u32, step: impl Fn(&Link) -> Step) -> Plan {
    assert!(root < ranks, "the root is one of the ranks");
    let program = |rank: u32| {
        let around = |by: u32| (rank + by) % ranks;
        let link = Link { position: around(ranks - root), before: around(ranks - 1), behind: around(1) };
        Program { lanes: vec![Lane { channel: 0, nodes: vec![step(&link).into()] }] }
    };
    Plan {
        weft: Format::default(),
        name: "chain".to_owned(),
        collective,
        ranks,
        chunks: Chunks { input: 1, output: 1, scratch: 0 },
        aliasing: Aliasing::BOTH.to_vec(),
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        counters: 0,
        programs: (0..ranks).map(program).collect(),
    }
}
