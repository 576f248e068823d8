//! # Linear
//!
//! The root deals with everyone in turn.
//!
//! **Steps.** The root takes (gather) or sends (scatter) every other rank's block, one after the other.
//!
//! **Bytes on the wire.** n-1 blocks at the root, one at every other rank: the least possible.
//!
//! **Possible.** Everywhere: all it needs is messages between the root and everyone.
//!
//! **When it wins.** Where the root's link is the bottleneck anyway, which it is for large blocks.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | gather, scatter | `[m=1][g>1]` | `[m>1]` | `S (g-1)/n` | `S (n-g)/n` |

use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Channel, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step};

/// One message is read while the next is written.
const DEPTH: u32 = 2;

/// The gather to `root`.
pub fn gather(layout: &Layout, root: u32) -> Recipe<'_> {
    let own = || Input::Local(Place::input(0));
    let at_root = move |owner: u32| {
        let source = if owner == root { own() } else { Input::received(owner) };
        Step::copy(source).to(Output::Local(Place::output(owner)))
    };
    recipe(Collective::Gather { root }, layout, root, at_root, Step::copy(own()).to(Output::sent(root)))
}

/// The scatter from `root`.
pub fn scatter(layout: &Layout, root: u32) -> Recipe<'_> {
    let keep = || Output::Local(Place::output(0));
    let at_root = move |owner: u32| {
        let target = if owner == root { keep() } else { Output::sent(owner) };
        Step::copy(Input::Local(Place::input(owner))).to(target)
    };
    recipe(Collective::Scatter { root }, layout, root, at_root, Step::copy(Input::received(root)).to(keep()))
}

fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    root: u32,
    at_root: impl Fn(u32) -> Step + Send + Sync + 'a,
    elsewhere: Step,
) -> Recipe<'a> {
    let ranks = layout.ranks();
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
    let outline = Plan { channels, uneven: true, ..Plan::outline("linear", collective, ranks, 1) };
    Recipe::new(outline, move |rank| {
        let all = || (0..ranks).map(|owner| at_root(owner).into()).collect();
        let nodes = if rank == root { all() } else { vec![elsewhere.clone().into()] };
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}
