//! # CollNet direct
//!
//! Each rank computes its island's sum of its part, network switches add the sums of all islands in transit, and the ranks
//! distribute the result in their island.
//!
//! **Steps.** *All-reduce:* the buffer has a part for each position of an island. Ranks send each other their parts, and each copies
//! the sum of its part into memory that the network can read. When all ranks of a rail have, one of them requests the sum from the
//! network, which stores it to all of them; the others wait for that. Then each sends its part to all ranks of its island.
//!
//! **Bytes on the wire.** Inside, a reduce-scatter and an all-gather; across, one buffer up and one down per island, for any
//! number of islands: half of what a ring of them would send.
//!
//! **Possible.** On two or more islands of equal size, on a network whose switches reduce. With any buffers, since the network
//! reads scratch memory.
//!
//! **When it wins.** Several islands with a network adapter for each rank, on a network with SHARP.
//!
//! **Paper.** Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP): a hardware architecture for efficient
//! data reduction", 2016; as CollNetDirect in NCCL 2.14, 2022.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2[g > 1]` | `2` | `2 S (g-1)/g` | `S` |

use std::iter::once;

use crate::Recipe;
use crate::algorithms::Impossible;
use crate::algorithms::grid::{Grid, Numbering};
use crate::layout::Layout;
use crate::plan::{
    Buffer, Channel, Collective, Digit, Group, Grouped, Input, Lane, Node, Output, Place, Plan, Program,
    Protocol, RankDigit, Step, Switch, Symmetry, Wait,
};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("collnet-direct", layout)?;
    network_reduces("collnet-direct", layout)?;
    let (islands, per_island, lanes) = (grid.islands, grid.per_island, grid.lanes());
    let rail = |position| network((0..islands).map(|island| grid.rank(island, position)).collect());
    let fixed = Digit { size: lanes, with: None };
    let chunks = vec![Digit { size: per_island, with: Some(1) }, fixed];
    let symmetry = Symmetry {
        ranks: vec![RankDigit { size: islands, turns: false }, RankDigit { size: per_island, turns: true }],
        input: chunks.clone(),
        output: chunks,
        scratch: vec![fixed],
    };
    let mut outline = Plan {
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; lanes as usize],
        groups: (0..per_island).map(rail).collect(),
        counters: COUNTERS * lanes,
        symmetry: grid.is_in_order().then_some(symmetry),
        ..Plan::outline("collnet-direct", Collective::AllReduce, layout.ranks(), per_island * lanes)
    };
    outline.chunks.scratch = lanes;
    Ok(Recipe::new(outline, move |rank| Program {
        lanes: (0..lanes).map(|number| lane(&grid, rank, number)).collect(),
    }))
}

fn lane(grid: &Grid<'_>, rank: u32, lane: u32) -> Lane {
    let me = grid.member(rank, lane, Numbering::Parts);
    let chunk = |position: u32| position * me.lanes + lane;
    let own = |position| Input::Local(Place::input(chunk(position)));
    let received = |position| Input::received(me.peer(position));
    let sent = |position| Output::sent(me.peer(position));
    let give = me.peers().map(|to| Step::copy(own(to)).to(sent(to)));
    let sum = Step::reduce(once(own(me.position)).chain(me.peers().map(received)).collect());
    let rail = Rail {
        group: me.position,
        members: (0..grid.islands).map(|at| grid.rank(at, me.position)).collect(),
    };
    let (network, result) = rail.reduce(rank, lane, sum);
    let keep = |position| Output::Local(Place::output(chunk(position)));
    let hand_out = result.to(keep(me.position)).to_all(me.peers().map(sent));
    let receive = me.peers().map(|from| Step::copy(received(from)).to(keep(from)));
    let nodes = give.chain(network).chain(once(hand_out)).chain(receive).map(Node::Step).collect();
    Lane { channel: lane, nodes }
}

/// The counters of a lane.
pub(super) const COUNTERS: u32 = 2;

/// A group of ranks for which network switches add and copy.
pub(super) fn network(mut members: Vec<u32>) -> Group {
    members.sort_unstable();
    Group { switch: Switch::Network, members }
}

/// Checks that the network's switches reduce.
pub(super) fn network_reduces(algorithm: &str, layout: &Layout) -> Result<(), Impossible> {
    let impossible =
        |why: &String| Impossible(format!("{algorithm} needs a network whose switches reduce: {why}"));
    layout.network_reduces.as_ref().map_err(impossible).copied()
}

/// One rank of each island, whose sums the network adds.
pub(super) struct Rail {
    /// The group of these ranks.
    pub(super) group: u32,
    /// The ranks by island.
    pub(super) members: Vec<u32>,
}

impl Rail {
    /// The steps that copy `sum` into scratch and make it the sum of all members, and the beginning of the step that reads the
    /// result. The next tile can reuse scratch: a rank starts it after it has read the result, and the network stores a result
    /// only after all ranks have copied their sums.
    pub(super) fn reduce(&self, rank: u32, lane: u32, sum: Step) -> (Vec<Step>, Step) {
        let (staged, summed) = (lane * COUNTERS, lane * COUNTERS + 1);
        let all = || Grouped { group: self.group, buffer: Buffer::Scratch, chunk: lane.into() };
        let requester = self.members[lane as usize % self.members.len()];
        let mut steps = vec![sum.to(Output::Local(Place::scratch(lane))).signal(staged)];
        let result = Step::copy(Input::Local(Place::scratch(lane)));
        if rank != requester {
            return (steps, result.after([Wait::reached(requester, summed, 1)]));
        }
        let others = self.members.iter().filter(|&&member| member != rank);
        let waits = others.map(|&member| Wait::reached(member, staged, 1));
        let sum = Step::copy(Input::Switch(all())).after(waits).to(Output::Multicast(all()));
        steps.push(sum.signal(summed));
        (steps, result)
    }
}
