//! Plans for messages between pairs, as libraries send them: all at once, each on its own lane.

use weftlink_plan::algorithms::Impossible;
use weftlink_plan::plan::{Aliasing, Channel, Input, Lane, Output, Place, Plan, Program, Protocol, Step};
use weftlink_plan::{Algorithm, Collective, Layout, Recipe};

use crate::setup::Operation;

/// Messages in flight between a pair.
const DEPTH: u32 = 2;

/// Every rank sends a block to every rank.
pub(super) fn all_to_all(layout: &Layout) -> Result<Recipe<'static>, Impossible> {
    let ranks = layout.ranks();
    let pairwise = Algorithm::Pairwise.recipe(&Collective::AllToAll, layout)?;
    let outline = Plan { name: "messages to all".to_owned(), ..pairwise.outline().clone() };
    Ok(Recipe::new(outline, move |rank| {
        let own = Step::copy(Input::Local(Place::input(rank))).to(Output::Local(Place::output(rank)));
        let to = |further: u32| {
            let (ahead, behind) = ((rank + further) % ranks, (rank + ranks - further) % ranks);
            vec![
                Step::copy(Input::Local(Place::input(ahead))).to(Output::sent(ahead)).into(),
                Step::copy(Input::received(behind)).to(Output::Local(Place::output(behind))).into(),
            ]
        };
        let lanes = std::iter::once(vec![own.into()]).chain((1..ranks).map(to));
        Program { lanes: lanes.map(|nodes| Lane { channel: 0, nodes }).collect() }
    }))
}

/// Every rank sends its buffer to the next rank.
pub(super) fn around(layout: &Layout) -> Recipe<'static> {
    let ranks = layout.ranks();
    let messages = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
    let outline = Plan {
        aliasing: vec![Aliasing::OutOfPlace],
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        ..Plan::outline("messages around", Collective::SendReceive { messages }, ranks, 1)
    };
    Recipe::new(outline, move |rank| {
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let nodes = vec![
            Step::copy(Input::Local(Place::input(0))).to(Output::sent(next)).into(),
            Step::copy(Input::received(previous)).to(Output::Local(Place::output(0))).into(),
        ];
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}

/// A gather or a scatter: a message between the root, rank 0, and every other rank.
pub(super) fn at_root(layout: &Layout, operation: Operation) -> Recipe<'static> {
    let ranks = layout.ranks();
    let is_gather = operation == Operation::Gather;
    let collective = if is_gather { Collective::Gather { root: 0 } } else { Collective::Scatter { root: 0 } };
    let outline = Plan {
        aliasing: vec![Aliasing::OutOfPlace],
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        ..Plan::outline("messages of the root", collective, ranks, 1)
    };
    let local = |chunk: u32| Input::Local(Place::input(chunk));
    let kept = |chunk: u32| Output::Local(Place::output(chunk));
    Recipe::new(outline, move |rank| {
        let own = Step::copy(local(0)).to(kept(0));
        let lanes: Vec<_> = match (rank, is_gather) {
            (0, true) => {
                let from = |other: u32| Step::copy(Input::received(other)).to(kept(other));
                std::iter::once(own).chain((1..ranks).map(from)).collect()
            }
            (0, false) => {
                let to = |other: u32| Step::copy(local(other)).to(Output::sent(other));
                std::iter::once(own).chain((1..ranks).map(to)).collect()
            }
            (_, true) => vec![Step::copy(local(0)).to(Output::sent(0))],
            (_, false) => vec![Step::copy(Input::received(0)).to(kept(0))],
        };
        let lane = |step: Step| Lane { channel: 0, nodes: vec![step.into()] };
        Program { lanes: lanes.into_iter().map(lane).collect() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::verify;

    #[test]
    fn message_plans_verify() {
        for ranks in [2, 3, 8] {
            verify(all_to_all(&Layout::flat(ranks, 1)).unwrap().plan()).unwrap();
            verify(around(&Layout::flat(ranks, 1)).plan()).unwrap();
            for operation in [Operation::Gather, Operation::Scatter] {
                verify(at_root(&Layout::flat(ranks, 1), operation).plan()).unwrap();
            }
        }
    }
}
