//! Plans for messages between pairs, as libraries send them: all at once, each on its own lane.

use weftlink_plan::algorithms::Impossible;
use weftlink_plan::plan::{Aliasing, Channel, Input, Lane, Output, Place, Plan, Program, Protocol, Step};
use weftlink_plan::{Algorithm, Collective, Layout, Recipe};

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

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::verify;

    #[test]
    fn message_plans_verify() {
        for ranks in [2, 3, 8] {
            verify(all_to_all(&Layout::flat(ranks, 1)).unwrap().plan()).unwrap();
            verify(around(&Layout::flat(ranks, 1)).plan()).unwrap();
        }
    }
}
