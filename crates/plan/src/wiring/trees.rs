//! Trees on a mesh: spanning trees that share no link, as many as its cuts allow.
//!
//! **All-reduce.** A tree carries its share of the data up to its root, added up on the way, and back down, so it uses
//! a link both ways, once. However the ranks are parted, a tree has a link between all k parts, k-1 of them at least: there
//! are no more trees than links between the parts over k-1, and Nash-Williams and Tutte proved that there are as
//! many. That is the all-reduce's bound, so trees reach it on any mesh of two-way links, regular or not, up to
//! the fraction of a tree that is lost to rounding; for that, links are split. Rings reach it where they use every
//! wire, with fewer and simpler steps, and are kept where they do.
//!
//! Found by matroid union: links are put into forests one by one; where a link closes a circle in every forest, one of
//! that circle's links moves on to another forest, and so on until one fits.
//!
//! **Broadcast and reduce.** Here a wire is used one way only. Edmonds proved that as many trees lead away from a root,
//! no wire in two of them, as wires lead out of any set of ranks with the root in it. Found as Lovász did: a tree takes
//! a wire only if enough stays for the others.
//!
//! **Papers.** Nash-Williams, "Edge-disjoint spanning trees of finite graphs", 1961; Edmonds, "Edge-disjoint
//! branchings", 1973; Lovász, "On two minimax theorems in graph", 1976.

use weftlink_fabric::maxflow::FlowGraph;

use super::mesh::{Mesh, Packing, Wires};
use crate::layout::Tree;

/// Trees that are looked for. Each takes a thread block of every GPU.
pub const TREES_MAX: usize = 64;
/// Fewer trees are worth so much: links are split no further once so many thousandths of the bound are reached.
const ENOUGH_THOUSANDTHS: u64 = 950;

impl Mesh {
    /// Spanning trees for an all-reduce: each uses its links both ways, and no link is used twice. None where the links do
    /// not join all ranks.
    pub fn trees(&self) -> Packing<Tree> {
        let links = self.both_ways();
        let Some((bound, _)) = links.all_reduce_bound().filter(|(bound, _)| bound.count > 0) else {
            return Packing { items: Vec::new(), split: 1 };
        };
        let trees = |split: u32| (bound.count * u64::from(split) / bound.parts).min(TREES_MAX as u64);
        let reached = |split: u32| {
            Wires { count: trees(split), parts: split.into() }.thousandths_of(bound).min(ENOUGH_THOUSANDTHS)
        };
        let splits = 1..(self.ranks() as u32).max(2);
        let split = splits.min_by_key(|split| (std::cmp::Reverse(reached(*split)), *split)).unwrap_or(1);
        let found = (1..=trees(split) as usize).rev().find_map(|count| Forests::grow(&links, split, count));
        let tree = |links: Vec<(usize, usize)>| hang(self.ranks(), &links);
        Packing { items: found.into_iter().flatten().map(tree).collect(), split }
    }

    /// What an all-reduce over trees moves per second, in wires.
    pub fn all_reduce_by_trees(&self, trees: &Packing<Tree>) -> Wires {
        Wires { count: trees.items.len() as u64, parts: trees.split.into() }
    }

    /// Trees that lead away from a root, for a broadcast; no wire is used twice. There are as many as the narrowest cut
    /// below the root has wires.
    pub fn trees_from(&self, root: u32) -> Packing<Tree> {
        let root = root as usize;
        let mut room = Room::of(self);
        let count = room.least_flow(root).min(TREES_MAX as u64);
        let items = (0..count).rev().map_while(|others| room.take_tree(root, others)).collect();
        Packing { items, split: 1 }
    }

    /// The links that go both ways.
    fn both_ways(&self) -> Self {
        let pairs = (0..self.ranks()).flat_map(|a| (a + 1..self.ranks()).map(move |b| (a, b)));
        let links: Vec<_> = pairs.map(|(a, b)| (a, b, self.wires(a, b).min(self.wires(b, a)))).collect();
        Self::linked(self.ranks(), &links, self.wire_bytes_per_second())
    }
}

/// The tree of some links, hung up by the rank that is nearest to its farthest one.
fn hang(ranks: usize, links: &[(usize, usize)]) -> Tree {
    let from = |root: usize| {
        let mut parents = vec![None; ranks];
        let mut reached = vec![(root, 0)];
        let mut next = 0;
        while let Some(&(at, depth)) = reached.get(next) {
            next += 1;
            for &(a, b) in links {
                let peer = if a == at { b } else { a };
                if (a == at || b == at) && peer != root && parents[peer].is_none() {
                    parents[peer] = Some(at as u32);
                    reached.push((peer, depth + 1));
                }
            }
        }
        (reached.last().map_or(0, |(_, depth)| *depth), Tree { parents })
    };
    let trees = (0..ranks).map(from).min_by_key(|(depth, _)| *depth);
    trees.map_or(Tree { parents: Vec::new() }, |(_, tree)| tree)
}

/// Forests that share no link.
struct Forests {
    ranks: usize,
    links: Vec<(usize, usize)>,
    /// The forest that each link is in.
    forest_of: Vec<Option<usize>>,
    count: usize,
}

impl Forests {
    /// `count` spanning trees of a mesh whose links are split, each as its links; nothing if there are not so many.
    fn grow(mesh: &Mesh, split: u32, count: usize) -> Option<Vec<Vec<(usize, usize)>>> {
        let ranks = mesh.ranks();
        let mut forests = Self { ranks, links: Vec::new(), forest_of: Vec::new(), count };
        let mut placed = 0;
        for (a, b) in (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b))) {
            for _ in 0..mesh.wires(a, b) * split {
                forests.links.push((a, b));
                forests.forest_of.push(None);
                // Where one of several parallel links does not fit, none of the rest does.
                if !forests.insert(forests.links.len() - 1) {
                    break;
                }
                placed += 1;
            }
        }
        let members = |forest: usize| {
            let own =
                forests.links.iter().zip(&forests.forest_of).filter(move |(_, of)| **of == Some(forest));
            own.map(|(link, _)| *link).collect()
        };
        (placed == count * (ranks - 1)).then(|| (0..count).map(members).collect())
    }

    /// Puts a link into some forest, moving others if need be; false if there is no way.
    fn insert(&mut self, new: usize) -> bool {
        // For each link that would have to move: the link that takes its place.
        let mut replaced_by: Vec<Option<usize>> = vec![None; self.links.len()];
        let mut queue = vec![new];
        let mut next = 0;
        while let Some(&link) = queue.get(next) {
            next += 1;
            for forest in (0..self.count).filter(|forest| self.forest_of[link] != Some(*forest)) {
                let Some(circle) = self.way(forest, self.links[link]) else {
                    self.shift(link, forest, &replaced_by);
                    return true;
                };
                for member in circle {
                    if replaced_by[member].is_none() && member != new {
                        replaced_by[member] = Some(link);
                        queue.push(member);
                    }
                }
            }
        }
        false
    }

    /// Moves a link into a forest where it fits, and each that waited for a place into the one that became free.
    fn shift(&mut self, link: usize, forest: usize, replaced_by: &[Option<usize>]) {
        let (mut link, mut forest) = (link, forest);
        while let (Some(left), Some(follower)) = (self.forest_of[link].replace(forest), replaced_by[link]) {
            (link, forest) = (follower, left);
        }
    }

    /// The links of a forest that lead from one rank to another; nothing if none do.
    fn way(&self, forest: usize, (from, to): (usize, usize)) -> Option<Vec<usize>> {
        let mut came_by: Vec<Option<usize>> = vec![None; self.ranks];
        let mut queue = vec![from];
        let mut next = 0;
        while let Some(&at) = queue.get(next) {
            next += 1;
            for (number, &(a, b)) in self.links.iter().enumerate() {
                let peer = if a == at { b } else { a };
                let own = self.forest_of[number] == Some(forest) && (a == at || b == at);
                if own && peer != from && came_by[peer].is_none() {
                    came_by[peer] = Some(number);
                    queue.push(peer);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = to;
        while at != from {
            let link = came_by[at]?;
            way.push(link);
            let (a, b) = self.links[link];
            at = if a == at { b } else { a };
        }
        Some(way)
    }
}

/// Wires that no tree has taken.
struct Room {
    ranks: usize,
    wires: Vec<u32>,
    flow: FlowGraph,
    /// The flow's edge for each wire bundle.
    edges: Vec<usize>,
}

impl Room {
    fn of(mesh: &Mesh) -> Self {
        let ranks = mesh.ranks();
        let mut flow = FlowGraph::new(ranks);
        let cells = (0..ranks * ranks).map(|cell| (cell / ranks, cell % ranks));
        let wires: Vec<u32> = cells.clone().map(|(a, b)| mesh.wires(a, b)).collect();
        let edges = cells.zip(&wires).map(|((a, b), wires)| flow.edge(a, b, u64::from(*wires))).collect();
        Self { ranks, wires, flow, edges }
    }

    /// How many ways lead from a root to the rank that fewest lead to, no wire on two of them.
    fn least_flow(&mut self, root: usize) -> u64 {
        (0..self.ranks)
            .filter(|rank| *rank != root)
            .map(|rank| self.flow.max_flow(root, rank))
            .min()
            .unwrap_or(0)
    }

    /// A tree away from the root that leaves enough for `others`.
    fn take_tree(&mut self, root: usize, others: u64) -> Option<Tree> {
        let mut parents: Vec<Option<u32>> = vec![None; self.ranks];
        for _ in 1..self.ranks {
            let inside = |rank: usize| rank == root || parents[rank].is_some();
            let leaving = |cell: &usize| inside(cell / self.ranks) && !inside(cell % self.ranks);
            let cells: Vec<usize> = (0..self.wires.len()).filter(leaving).collect();
            let cell = cells.into_iter().find(|cell| self.try_wire(*cell, root, others))?;
            parents[cell % self.ranks] = Some((cell / self.ranks) as u32);
        }
        Some(Tree { parents })
    }

    /// Takes a wire if there is one and enough stays; else leaves everything as it was.
    fn try_wire(&mut self, cell: usize, root: usize, others: u64) -> bool {
        if self.wires[cell] == 0 {
            return false;
        }
        self.wires[cell] -= 1;
        self.flow.set_capacity(self.edges[cell], self.wires[cell].into());
        let enough = others == 0 || self.least_flow(root) >= others;
        if !enough {
            self.wires[cell] += 1;
            self.flow.set_capacity(self.edges[cell], self.wires[cell].into());
        }
        enough
    }
}
