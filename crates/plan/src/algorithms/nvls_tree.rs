//! # NVLS tree
//!
//! The switch of each island adds its ranks' data, trees of the islands add the islands' sums, and the switches distribute the
//! result.
//!
//! **Steps.** *All-reduce:* position p of each island is the head of part p. Once its island has entered, the head loads the island's
//! sum through the switch, adds the sums of its two children on the rail and sends the result up. The root's sum is complete and
//! goes down again; each head stores it to all of its island in the step that forwards it. Half of each part goes along one tree
//! and half along another, arranged so that an island with children in one is a leaf of the other. Up and down are separate lanes,
//! so that tiles are pipelined.
//!
//! **Bytes on the wire.** Inside, a buffer up to the switch and one down from it; across, each island sends and receives at most two
//! buffers, shared by its ranks.
//!
//! **Possible.** On two or more islands of equal size, whose switches multicast and reduce, in symmetric buffers.
//!
//! **When it wins.** Medium buffers on several NVLink islands: latency grows with the logarithm of the islands.
//!
//! **Paper.** Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; as NVLSTree
//! in NCCL 2.18, 2023.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2[g > 1]` | `2(log2(m+1) - 1)` | `[g > 1] S (g+1)/g` | `S (2 + [m > 2] + [m > 4])/2` |

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

/// The number of trees; each carries an equal share.
const TREES: u32 = 2;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Result<Recipe<'_>, Impossible> {
    let grid = Grid::new("nvls-tree", layout)?;
    if let Err(why) = &layout.multicast {
        return Err(Impossible(format!(
            "nvls-tree needs islands whose switches multicast and reduce: {why}"
        )));
    }
    let (ranks, per_island) = (layout.ranks(), grid.per_island);
    let switch = |members: &Vec<u32>| {
        let mut members = members.clone();
        members.sort_unstable();
        Group { switch: Switch::Nvswitch, members }
    };
    let chunks = vec![Digit { size: per_island, with: Some(1) }, Digit { size: TREES, with: None }];
    let digits =
        vec![RankDigit { size: grid.islands, turns: false }, RankDigit { size: per_island, turns: true }];
    let symmetry = Symmetry { ranks: digits, input: chunks.clone(), output: chunks, scratch: vec![] };
    let outline = Plan {
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; TREES as usize],
        groups: if per_island > 1 { layout.islands.iter().map(switch).collect() } else { vec![] },
        counters: TREES,
        symmetry: grid.is_in_order().then_some(symmetry),
        ..Plan::outline("nvls-tree", Collective::AllReduce, ranks, per_island * TREES)
    };
    Ok(Recipe::new(outline, move |rank| Program {
        lanes: (0..TREES).flat_map(|tree| lanes(&grid, rank, tree)).collect(),
    }))
}

/// The lanes of a rank for its part of one tree's share: one up and one down; the root has one lane for both.
fn lanes(grid: &Grid<'_>, rank: u32, tree: u32) -> Vec<Lane> {
    let me = grid.member(rank, 0, Numbering::Parts);
    let chunk = me.position * TREES + tree;
    let (parent, children) = family(me.island, grid.islands, tree == 1);
    let on_rail = |island: u32| grid.rank(island, me.position);
    let entered = || me.peers().map(|peer| Wait::entered(me.peer(peer)));
    let (sum, all) = if grid.per_island > 1 {
        let at = |buffer| Grouped { group: me.island, buffer, chunk: chunk.into() };
        (Input::Switch(at(Buffer::Input)), Output::Multicast(at(Buffer::Output)))
    } else {
        (Input::Local(Place::input(chunk)), Output::Local(Place::output(chunk)))
    };
    let parts = children.iter().map(|&child| Input::received(on_rail(child)));
    let up = Step::reduce([sum].into_iter().chain(parts).collect()).after(entered());
    let down = |step: Step| {
        step.to(all).to_all(children.iter().map(|&child| Output::sent(on_rail(child)))).signal(tree)
    };
    // The other heads of the island store to this rank's output.
    let stored: Node =
        Step::sync().after(me.peers().map(|peer| Wait::reached(me.peer(peer), tree, 1))).into();
    let lane = |nodes| Lane { channel: tree, nodes };
    match parent.map(on_rail) {
        None => vec![lane(vec![down(up).into(), stored])],
        Some(parent) => {
            let down = down(Step::copy(Input::received(parent)));
            vec![lane(vec![up.to(Output::sent(parent)).into()]), lane(vec![down.into(), stored])]
        }
    }
}

/// The parent and the children of an island. Islands are numbered from the root down, level by level, so that the first half
/// has children; counted from the other end, the second half.
fn family(island: u32, islands: u32, from_the_end: bool) -> (Option<u32>, Vec<u32>) {
    let name = |number: u32| if from_the_end { islands - 1 - number } else { number };
    let number = name(island);
    let parent = number.checked_sub(1).map(|before| name(before / 2));
    (
        parent,
        [2 * number + 1, 2 * number + 2].into_iter().filter(|&child| child < islands).map(name).collect(),
    )
}
