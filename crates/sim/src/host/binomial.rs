//! Binomial trees, which MPI libraries use for rooted collectives: the parent of rank r is r without its lowest set bit, and a rank serves
//! its children in turn, with the whole buffer each. A call takes as long as the root's messages, one for each level.

use weftlink_plan::plan::{Channel, Chunks, Input, Lane, Output, Place, Plan, Program, Protocol, Step};
use weftlink_plan::{Collective, Recipe};

/// Messages in flight between a pair.
const DEPTH: u32 = 2;

/// Broadcasts the buffer of rank 0.
pub(super) fn broadcast(ranks: u32) -> Recipe<'static> {
    Recipe::new(outline("binomial broadcast", Collective::Broadcast { root: 0 }, ranks), move |rank| {
        let mut nodes = Vec::new();
        let own = match parent(rank) {
            Some(parent) => Input::received(parent),
            None => Input::Local(Place::input(0)),
        };
        nodes.push(Step::copy(own).to(Output::Local(Place::output(0))).into());
        for child in children(rank, ranks).into_iter().rev() {
            nodes.push(Step::copy(Input::Local(Place::output(0))).to(Output::sent(child)).into());
        }
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}

/// Reduces to rank 0.
pub(super) fn reduce(ranks: u32) -> Recipe<'static> {
    let outline = outline("binomial reduce", Collective::Reduce { root: 0 }, ranks);
    let outline = Plan { chunks: Chunks { scratch: 1, ..outline.chunks }, ..outline };
    Recipe::new(outline, move |rank| {
        let mut sum = Input::Local(Place::input(0));
        let mut nodes = Vec::new();
        for child in children(rank, ranks) {
            let added = Step::reduce(vec![sum, Input::received(child)]);
            nodes.push(added.to(Output::Local(Place::scratch(0))).into());
            sum = Input::Local(Place::scratch(0));
        }
        let to = match parent(rank) {
            Some(parent) => Output::sent(parent),
            None => Output::Local(Place::output(0)),
        };
        nodes.push(Step::copy(sum).to(to).into());
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}

fn outline(name: &str, collective: Collective, ranks: u32) -> Plan {
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
    Plan { channels, ..Plan::outline(name, collective, ranks, 1) }
}

fn parent(rank: u32) -> Option<u32> {
    (rank > 0).then(|| rank & (rank - 1))
}

/// Nearest first.
fn children(rank: u32, ranks: u32) -> Vec<u32> {
    let bits = if rank == 0 { u32::BITS } else { rank.trailing_zeros() };
    (0..bits).map_while(|bit| rank.checked_add(1 << bit)).take_while(|child| *child < ranks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::verify;

    #[test]
    fn binomial_trees_verify() {
        for ranks in [2, 3, 4, 7, 16] {
            verify(broadcast(ranks).plan()).unwrap();
            verify(reduce(ranks).plan()).unwrap();
        }
    }
}
