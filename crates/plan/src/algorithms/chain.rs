//! # Chain
//!
//! Ranks form a chain, and each forwards to the next, tile after tile.
//!
//! **Steps.** Ranks form a chain that begins (broadcast) or ends (reduce) at the root, in the order of their numbers around
//! the ring. *Broadcast:* every rank keeps the data and forwards it. *Reduce:* every rank adds its input and forwards the
//! sum. *Scan:* along the ranks in their order, every rank adds its input, keeps the sum and forwards it. *Exclusive scan:*
//! every rank keeps the sum that it received. Tiles are pipelined, so all ranks are busy once n tiles are in flight.
//!
//! **Bytes on the wire.** One buffer per rank, one way.
//!
//! **Possible.** Everywhere: all it needs is an order, and messages between neighbours.
//!
//! **When it wins.** Large buffers, which are cut into many tiles. Its latency grows with n.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
//! (pipelined ring).
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | broadcast, reduce, scan, exclusive-scan | `n-m` | `m-1` | `S [g>1]` | `S [m>1]` |

use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Channel, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The broadcast from `root`.
pub fn broadcast(layout: &Layout, root: u32) -> Recipe<'_> {
    let step = |link: &Link| {
        let source =
            if link.position == 0 { Input::Local(Place::input(0)) } else { Input::received(link.before) };
        let keep = Step::copy(source).to(Output::Local(Place::output(0)));
        if link.is_end { keep } else { keep.to(Output::sent(link.behind)) }
    };
    recipe(Collective::Broadcast { root }, layout, root, step)
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    let step = |link: &Link| {
        let own = Input::Local(Place::input(0));
        let sum =
            if link.is_end { Step::copy(own) } else { Step::reduce(vec![Input::received(link.behind), own]) };
        sum.to(if link.position == 0 { Output::Local(Place::output(0)) } else { Output::sent(link.before) })
    };
    recipe(Collective::Reduce { root }, layout, root, step)
}

/// The scan, along the ranks in their order.
pub fn scan(layout: &Layout) -> Recipe<'_> {
    along_ranks(Collective::Scan, layout, 0, |before, behind| {
        let own = Input::Local(Place::input(0));
        let parts = before.map(Input::received).into_iter().chain([own]).collect();
        vec![Step::reduce(parts).to(Output::Local(Place::output(0))).to_all(behind.map(Output::sent))]
    })
}

/// The exclusive scan, along the ranks in their order. The received sum stays in scratch until the rank has forwarded the sum with
/// its own input, which the result may overwrite.
pub fn exclusive_scan(layout: &Layout) -> Recipe<'_> {
    along_ranks(Collective::ExclusiveScan, layout, 1, |before, behind| {
        let own = Input::Local(Place::input(0));
        let (keep, aside) = (Output::Local(Place::output(0)), Place::scratch(0));
        match (before, behind) {
            (None, None) => vec![Step::sync()],
            (None, Some(behind)) => vec![Step::copy(own).to(Output::sent(behind))],
            (Some(before), None) => vec![Step::copy(Input::received(before)).to(keep)],
            (Some(before), Some(behind)) => vec![
                Step::copy(Input::received(before)).to(Output::Local(aside.clone())),
                Step::reduce(vec![Input::Local(aside.clone()), own]).to(Output::sent(behind)),
                Step::copy(Input::Local(aside)).to(keep),
            ],
        }
    })
}

/// A rank's place in the chain: its distance from the root, and its neighbours towards and away from it.
struct Link {
    position: u32,
    is_end: bool,
    before: u32,
    behind: u32,
}

/// A chain along the first of the layout's rings, cut open in front of the root.
fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    root: u32,
    step: impl Fn(&Link) -> Step + Send + Sync + 'a,
) -> Recipe<'a> {
    let (ranks, order) = (layout.ranks(), &layout.rings[0]);
    let place = |rank: u32| order.iter().position(|&other| other == rank).unwrap_or_default() as u32;
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
    let outline = Plan { channels, ..Plan::outline("chain", collective, ranks, 1) };
    Recipe::new(outline, move |rank| {
        let around = |by: u32| order[((place(rank) + by) % ranks) as usize];
        let position = (place(rank) + ranks - place(root)) % ranks;
        let is_end = position + 1 == ranks;
        let link = Link { position, is_end, before: around(ranks - 1), behind: around(1) };
        Program { lanes: vec![Lane { channel: 0, nodes: vec![step(&link).into()] }] }
    })
}

/// A chain of the ranks in their order; `steps` gets the ranks before and behind.
fn along_ranks<'a>(
    collective: Collective,
    layout: &'a Layout,
    scratch: u32,
    steps: impl Fn(Option<u32>, Option<u32>) -> Vec<Step> + Send + Sync + 'a,
) -> Recipe<'a> {
    let ranks = layout.ranks();
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
    let mut outline = Plan { channels, ..Plan::outline("chain", collective, ranks, 1) };
    outline.chunks.scratch = scratch;
    Recipe::new(outline, move |rank| {
        let steps = steps(rank.checked_sub(1), Some(rank + 1).filter(|&behind| behind < ranks));
        Program { lanes: vec![Lane { channel: 0, nodes: steps.into_iter().map(Into::into).collect() }] }
    })
}
