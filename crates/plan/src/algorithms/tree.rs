//! # Tree
//!
//! Two binary trees, each for half of the data. An inner node of one tree, which sends to two others, is a leaf of the
//! other, so that no rank sends more than the buffer each way, and no rank is far from the root.
//!
//! **Steps.** The root (of an all-reduce, the first rank) is above both trees; the other islands' first ranks, in
//! order, are the nodes. The first tree is the in-order binary tree over 1 to N, in which odd numbers are leaves. The
//! second is its mirror image if N is even, and is shifted by one place if N is odd, so that leaves become inner nodes.
//! Inside an island the first rank is above the same two trees of the others if any two ranks reach each other at full speed,
//! and at the head of a chain if not. *Reduce:* every rank combines its part with the sums of its children and sends the
//! result to its parent. *Broadcast:* every rank keeps the data of its parent and forwards it. *All-reduce:* both, in
//! separate lanes, so that tiles go up while others come down; the root sends each back in the same step. If the layout has
//! spanning trees of its own, the all-reduce uses those, with an equal share each.
//!
//! **Bytes on the wire.** Up and down once per rank that is not the root: the buffer each way per inner node, less at
//! leaves.
//!
//! **Possible.** Everywhere.
//!
//! **When it wins.** Medium buffers on many ranks: latency grows with the logarithm of the ranks, and enough tiles in flight
//! reach full bandwidth.
//!
//! **Paper.** Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2 log2(g)` | `2 log2(m)` | `S ([g > 1] + [g > 2]/2 + [g > 3]/2)` | `S ([m > 1] + [m > 2]/2 + [m > 3]/2)` |
//! | broadcast | `log2(g)` | `log2(m)` | `S [g > 1]` | `S [m > 1]` |
//! | reduce | `log2(g)` | `log2(m)` | `S [g > 1]` | `S [m > 1]` |

use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Channel, Collective, Input, Lane, Output, Place, Plan, Program, Protocol, Step};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let program = |links: &[Links]| {
        let mut lanes = Vec::new();
        for (tree, links) in (0..).zip(links) {
            lanes.push(lane(tree, up(tree, links, true)));
            // The root sends back the sum itself, so it receives nothing from above.
            lanes.extend(links.parent.map(|parent| lane(tree, down(tree, links, Input::received(parent)))));
        }
        lanes
    };
    if layout.trees.is_empty() {
        return recipe(Collective::AllReduce, layout, layout.islands[0][0], program);
    }
    let families: Vec<Vec<Links>> = layout.trees.iter().map(|tree| families(&tree.parents)).collect();
    let outline = outline(Collective::AllReduce, layout.ranks(), families.len() as u32);
    Recipe::new(outline, move |rank| {
        let links: Vec<_> = families.iter().map(|of| of[rank as usize].clone()).collect();
        Program { lanes: program(&links) }
    })
}

/// The broadcast from `root`.
pub fn broadcast(layout: &Layout, root: u32) -> Recipe<'_> {
    recipe(Collective::Broadcast { root }, layout, root, |links| {
        let source = |tree: u32, links: &Links| match links.parent {
            Some(parent) => Input::received(parent),
            None => Input::Local(Place::input(tree)),
        };
        (0..).zip(links).map(|(tree, links)| lane(tree, down(tree, links, source(tree, links)))).collect()
    })
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    recipe(Collective::Reduce { root }, layout, root, |links| {
        (0..).zip(links).map(|(tree, links)| lane(tree, up(tree, links, false))).collect()
    })
}

/// A rank's place in one tree.
#[derive(Clone, Default)]
struct Links {
    parent: Option<u32>,
    children: Vec<u32>,
}

/// Combines the children's sums with the rank's own part and sends the result to the parent; the root may send it back down.
fn up(tree: u32, links: &Links, turns_around: bool) -> Step {
    let own = Input::Local(Place::input(tree));
    let parts = std::iter::once(own).chain(links.children.iter().map(|&child| Input::received(child)));
    let sum = Step::reduce(parts.collect());
    match links.parent {
        Some(parent) => sum.to(Output::sent(parent)),
        None => {
            let down = if turns_around { links.children.as_slice() } else { &[] };
            sum.to(Output::Local(Place::output(tree))).to_all(down.iter().map(|&child| Output::sent(child)))
        }
    }
}

/// Keeps the data from above and sends it to the children.
fn down(tree: u32, links: &Links, source: Input) -> Step {
    let children = links.children.iter().map(|&child| Output::sent(child));
    Step::copy(source).to(Output::Local(Place::output(tree))).to_all(children)
}

/// Up and down share a channel, since they go between the same ranks in opposite directions.
fn lane(tree: u32, step: Step) -> Lane {
    Lane { channel: tree, nodes: vec![step.into()] }
}

fn outline(collective: Collective, ranks: u32, trees: u32) -> Plan {
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; trees as usize];
    Plan { channels, ..Plan::outline("tree", collective, ranks, trees) }
}

/// The plan with the lanes that `lanes` writes for a rank's places in the two trees below `root`.
fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    root: u32,
    lanes: impl Fn(&[Links]) -> Vec<Lane> + Send + Sync + 'a,
) -> Recipe<'a> {
    let places = layout.places();
    Recipe::new(outline(collective, layout.ranks(), 2), move |rank| {
        let links = [false, true].map(|second| links(layout, &places, root, rank, second));
        Program { lanes: lanes(&links) }
    })
}

/// A rank's place in the first or second tree below `root`. Islands are counted from the root's, and the ranks of each
/// from the position that the root has in its own, so that the root is number 0 of both.
fn links(layout: &Layout, places: &[(u32, u32)], root: u32, rank: u32, second: bool) -> Links {
    let islands = layout.islands.len() as u32;
    let (root_island, root_position) = places[root as usize];
    let (island, position) = places[rank as usize];
    let numbered = |island: u32, number: u32| {
        let members = &layout.islands[island as usize];
        let count = members.len() as u32;
        members[((number + root_position) % count) as usize]
    };
    let count = layout.islands[island as usize].len() as u32;
    let number = (position + count - root_position % count) % count;
    let inside = if layout.switched { below(number, count, second) } else { chained(number, count) };
    let mut links = inside.named(|number| numbered(island, number));
    if number == 0 {
        let across = below((island + islands - root_island) % islands, islands, second);
        let heads = across.named(|number| numbered((number + root_island) % islands, 0));
        links.parent = heads.parent;
        links.children.extend(heads.children);
    }
    links
}

/// Of `count` numbers, number 0 is above the first or second tree of the others.
fn below(number: u32, count: u32, second: bool) -> Links {
    let nodes = count - 1;
    if nodes == 0 {
        return Links::default();
    }
    // The second tree is mirrored, which is its own inverse, or shifted, which shifting further around undoes.
    let shifted = |number: u32, by: u32| (number - 1 + by) % nodes + 1;
    let node = |number: u32| match (second, nodes.is_multiple_of(2)) {
        (false, _) => number,
        (true, true) => nodes + 1 - number,
        (true, false) => shifted(number, 1),
    };
    let of_node = |node: u32| match (second, nodes.is_multiple_of(2)) {
        (false, _) => node,
        (true, true) => nodes + 1 - node,
        (true, false) => shifted(node, nodes - 1),
    };
    if number == 0 {
        return Links { parent: None, children: vec![of_node(1 << nodes.ilog2())] };
    }
    let tree = in_order(node(number), nodes);
    let named = tree.named(of_node);
    Links { parent: Some(named.parent.unwrap_or(0)), ..named }
}

/// A node of the in-order binary tree over 1 to `nodes`: as high as its number has trailing zeros.
///
/// It is the tree over 1 to a power of two less one, without the numbers that are too large: their children move to the
/// nearest remaining ancestor.
fn in_order(node: u32, nodes: u32) -> Links {
    let half = |node: u32| 1 << node.trailing_zeros();
    let ancestors = std::iter::successors(Some(node), |&below: &u32| {
        let parent = (below & !half(below)) | half(below) << 1;
        (parent < nodes.next_power_of_two() * 2).then_some(parent)
    });
    let parent = ancestors.skip(1).find(|&ancestor| ancestor <= nodes);
    let reaches = || {
        std::iter::successors(Some(half(node) / 2), |reach| Some(reach / 2)).take_while(|&reach| reach > 0)
    };
    let left = reaches().next().map(|reach| node - reach);
    let right = reaches().map(|reach| node + reach).find(|&child| child <= nodes);
    Links { parent, children: left.into_iter().chain(right).collect() }
}

/// A chain of numbers.
fn chained(number: u32, count: u32) -> Links {
    Links {
        parent: number.checked_sub(1),
        children: Some(number + 1).filter(|&next| next < count).into_iter().collect(),
    }
}

/// Every rank's place in a tree that is given by parents.
fn families(parents: &[Option<u32>]) -> Vec<Links> {
    let mut links: Vec<_> = parents.iter().map(|&parent| Links { parent, children: vec![] }).collect();
    for (rank, parent) in (0..).zip(parents) {
        if let Some(parent) = parent {
            links[*parent as usize].children.push(rank);
        }
    }
    links
}

impl Links {
    /// The same place in a tree with renamed nodes.
    fn named(&self, name: impl Fn(u32) -> u32) -> Links {
        Links {
            parent: self.parent.map(&name),
            children: self.children.iter().map(|&child| name(child)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_node_of_one_tree_is_a_leaf_of_the_other() {
        for count in 2..200 {
            let children = |number, second| below(number, count, second).children;
            for number in 1..count {
                let [first, second] = [false, true].map(|second| children(number, second).len());
                assert!(first == 0 || second == 0, "{number} of {count} has {first} and {second} children");
            }
            for second in [false, true] {
                let mut reached = vec![0];
                for at in 0.. {
                    let Some(&number) = reached.get(at) else { break };
                    for child in children(number, second) {
                        assert_eq!(below(child, count, second).parent, Some(number));
                        reached.push(child);
                    }
                }
                reached.sort_unstable();
                assert_eq!(reached, (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn spanning_trees_of_the_layout_are_used() {
        let chain = |order: [u32; 3]| {
            let mut parents = vec![None; 3];
            order.windows(2).for_each(|pair| parents[pair[1] as usize] = Some(pair[0]));
            crate::layout::Tree { parents }
        };
        let trees = vec![chain([0, 1, 2]), chain([2, 0, 1]), chain([1, 2, 0])];
        let layout = Layout { trees, ..Layout::flat(3, 1) };
        let plan = all_reduce(&layout).plan();
        assert_eq!(plan.chunks.input, 3);
        crate::verify(plan).unwrap();
    }

    #[test]
    fn one_program_of_very_many_ranks_is_written_alone() {
        let layout = Layout::grid(12_500, 8, 1);
        let program = all_reduce(&layout).program(99_999);
        assert_eq!(program.lanes.len(), 4);
    }
}
