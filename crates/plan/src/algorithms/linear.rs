//! Linear gather and linear scatter.
//!
//! **Steps.** The root takes (gather) or sends (scatter) every other rank's block, one after the other.
//!
//! **Bytes on the wire.** n-1 blocks at the root, one at every other rank: the least possible.
//!
//! **When it wins.** Where the root's link is the bottleneck anyway, which it is for large blocks.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.

use crate::plan::{
    Aliasing, Channel, Chunks, Collective, Format, Input, Lane, Output, Place, Plan, Program, Protocol, Step,
};

/// One message is read while the next is written.
const DEPTH: u32 = 2;

/// The gather of `ranks` to `root`.
///
/// # Panics
/// If `root` is none of the ranks.
pub fn linear_gather(ranks: u32, root: u32) -> Plan {
    let own = || Input::Local(Place::input(0));
    let at_root = |owner: u32| {
        let source = if owner == root { own() } else { Input::received(owner) };
        Step::copy(source).to(Output::Local(Place::output(owner)))
    };
    plan(Collective::Gather { root }, ranks, root, at_root, Step::copy(own()).to(Output::sent(root)))
}

/// The scatter of `root` to `ranks`.
///
/// # Panics
/// If `root` is none of the ranks.
pub fn linear_scatter(ranks: u32, root: u32) -> Plan {
    let keep = || Output::Local(Place::output(0));
    let at_root = |owner: u32| {
        let target = if owner == root { keep() } else { Output::sent(owner) };
        Step::copy(Input::Local(Place::input(owner))).to(target)
    };
    plan(Collective::Scatter { root }, ranks, root, at_root, Step::copy(Input::received(root)).to(keep()))
}

fn plan(
    collective: Collective,
    ranks: u32,
    root: u32,
    at_root: impl Fn(u32) -> Step,
    elsewhere: Step,
) -> Plan {
    assert!(root < ranks, "the root is one of the ranks");
    let program = |rank| {
        let all = || (0..ranks).map(|owner| at_root(owner).into()).collect();
        let nodes = if rank == root { all() } else { vec![elsewhere.clone().into()] };
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    };
    let (input, output) = collective.blocks(ranks);
    Plan {
        weft: Format::default(),
        name: "linear".to_owned(),
        collective,
        ranks,
        chunks: Chunks { input, output, scratch: 0 },
        aliasing: Aliasing::BOTH.to_vec(),
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        counters: 0,
        programs: (0..ranks).map(program).collect(),
    }
}
