//! # CollNet chain
//!
//! A chain through each island adds its ranks' buffers up to a head, network switches add the sums of all heads in transit,
//! and the chains distribute the result.
//!
//! **Steps.** *All-reduce:* the rank at the end of the chain sends its chunk, each rank adds its own, and the head copies the sum into
//! memory that the network can read. When all heads have, one of them requests the sum from the network, which stores it to all
//! heads; then each head keeps the result and sends it back along the chain. The two directions are separate lanes; there are as
//! many chains side by side as the layout has rings.
//!
//! **Bytes on the wire.** Inside, a buffer each way of the chain; across, one buffer up and one down per island.
//!
//! **Possible.** On two or more islands of equal size, on a network whose switches reduce. With any buffers, since the network
//! reads scratch memory.
//!
//! **When it wins.** Islands whose ranks share few network adapters, on a network with SHARP: only heads use it.
//!
//! **Paper.** Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP): a hardware architecture for efficient
//! data reduction", 2016; as CollNetChain in NCCL 2.14, 2022.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2(g-1)` | `2` | `S ([g > 1] + [g > 2])` | `S` |

use crate::Recipe;
use crate::algorithms::Impossible;
use crate::algorithms::collnet_direct::{COUNTERS, Rail, network, network_reduces};
use crate::algorithms::grid::{Grid, Numbering};
use crate::layout::Layout;
use crate::plan::{Channel, Collective, Input, Lane, Node, Output, Place, Plan, Program, Protocol, Step};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("collnet-chain", layout)?;
    network_reduces("collnet-chain", layout)?;
    let lanes = grid.lanes();
    let mut outline = Plan {
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; lanes as usize],
        groups: (0..lanes).map(|lane| network(heads(&grid, lane).collect())).collect(),
        counters: COUNTERS * lanes,
        ..Plan::outline("collnet-chain", Collective::AllReduce, layout.ranks(), lanes)
    };
    outline.chunks.scratch = lanes;
    Ok(Recipe::new(outline, move |rank| Program {
        lanes: (0..lanes).flat_map(|lane| lanes_of(&grid, rank, lane)).collect(),
    }))
}

/// The heads of a lane's chains, by island.
fn heads(grid: &Grid<'_>, lane: u32) -> impl Iterator<Item = u32> {
    (0..grid.islands).map(move |island| grid.rank(island, grid.chain(island, lane)[0]))
}

/// The lanes of a rank for one chain: one towards the head and one back; the head has one lane for both.
fn lanes_of(grid: &Grid<'_>, rank: u32, lane: u32) -> Vec<Lane> {
    let me = grid.member(rank, lane, Numbering::Parts);
    let chain = grid.chain(me.island, lane);
    let place = chain.iter().position(|&position| position == me.position).unwrap_or_default();
    let inner = place.checked_sub(1).map(|place| me.peer(chain[place]));
    let outer = chain.get(place + 1).map(|&position| me.peer(position));
    let own = Input::Local(Place::input(lane));
    let sum = Step::reduce(outer.map(Input::received).into_iter().chain([own]).collect());
    let back = |result: Step| result.to(Output::Local(Place::output(lane))).to_all(outer.map(Output::sent));
    let lane_of =
        |steps: Vec<Step>| Lane { channel: lane, nodes: steps.into_iter().map(Node::Step).collect() };
    match inner {
        None => {
            let rail = Rail { group: lane, members: heads(grid, lane).collect() };
            let (mut steps, result) = rail.reduce(rank, lane, sum);
            steps.push(back(result));
            vec![lane_of(steps)]
        }
        Some(inner) => {
            let result = Step::copy(Input::received(inner));
            vec![lane_of(vec![sum.to(Output::sent(inner))]), lane_of(vec![back(result)])]
        }
    }
}
