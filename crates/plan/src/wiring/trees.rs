//! Trees on a mesh: the maximum number of spanning trees that share no link.
//!
//! **All-reduce.** A tree carries its share of the data up to its root, adding on the way, and back down, so it uses each of
//! its links once in both directions. For any partition of the ranks into k parts, a tree has at least k-1 links between
//! parts, so there are at most (links between parts)/(k-1) trees; Nash-Williams and Tutte proved that the minimum over all
//! partitions is reached. That is the all-reduce's bound, so trees reach it on any mesh of two-way links, except for the
//! fraction of a tree that is lost to rounding, which splitting links reduces. Rings reach it if they use every wire, with
//! fewer and simpler steps, and take precedence then.
//!
//! Found by matroid union: links are added to forests one by one; if a link closes a cycle in every forest, one of the
//! cycle's links moves to another forest, and so on until one fits.
//!
//! **Broadcast and reduce.** These use a wire in one direction only. Edmonds proved that the maximum number of trees from a
//! root without a shared wire is the minimum number of wires out of any set of ranks that contains the root. Found as
//! Lovász did: a tree takes a wire only if enough remain for the others.
//!
//! **Papers.** Nash-Williams, "Edge-disjoint spanning trees of finite graphs", 1961; Edmonds, "Edge-disjoint
//! branchings", 1973; Lovász, "On two minimax theorems in graph", 1976.

use weftlink_fabric::maxflow::FlowGraph;

use super::mesh::{Mesh, Packing, Wires};
use crate::layout::Tree;

/// The maximum number of trees. Each takes a thread block of every GPU.
pub const TREES_MAX: usize = 64;
/// Links are not split further once trees reach this share of the bound, in thousandths: fewer trees are better.
const ENOUGH_THOUSANDTHS: u64 = 950;

impl Mesh {
    /// Spanning trees for an all-reduce: each uses its links both ways, and no two share a link. None if the links do not
    /// connect all ranks.
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
        let tree = |links: Vec<(usize, usize)>| rooted(self.ranks(), &links);
        Packing { items: found.into_iter().flatten().map(tree).collect(), split }
    }

    /// The rate of an all-reduce over trees, in wires.
    pub fn all_reduce_by_trees(&self, trees: &Packing<Tree>) -> Wires {
        Wires { count: trees.items.len() as u64, parts: trees.split.into() }
    }

    /// Trees from a root, for a broadcast; no two share a wire. There are as many as the narrowest cut below the root has
    /// wires.
    pub fn trees_from(&self, root: u32) -> Packing<Tree> {
        let root = root as usize;
        let mut residual = Residual::of(self);
        let count = residual.least_flow(root).min(TREES_MAX as u64);
        let items = (0..count).rev().map_while(|others| residual.take_tree(root, others)).collect();
        Packing { items, split: 1 }
    }

    /// The links that go both ways.
    fn both_ways(&self) -> Self {
        let pairs = (0..self.ranks()).flat_map(|a| (a + 1..self.ranks()).map(move |b| (a, b)));
        let links: Vec<_> = pairs.map(|(a, b)| (a, b, self.wires(a, b).min(self.wires(b, a)))).collect();
        Self::linked(self.ranks(), &links, self.wire_bytes_per_second())
    }
}

/// The tree of some links, rooted where it has the least depth.
fn rooted(ranks: usize, links: &[(usize, usize)]) -> Tree {
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
    /// `count` spanning trees of a mesh whose links are split, each as a list of links; nothing if there are fewer.
    fn grow(mesh: &Mesh, split: u32, count: usize) -> Option<Vec<Vec<(usize, usize)>>> {
        let ranks = mesh.ranks();
        let mut forests = Self { ranks, links: Vec::new(), forest_of: Vec::new(), count };
        let mut placed = 0;
        for (a, b) in (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b))) {
            for _ in 0..mesh.wires(a, b) * split {
                forests.links.push((a, b));
                forests.forest_of.push(None);
                // If one of several parallel links does not fit, none of the rest does.
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

    /// Adds a link to some forest, moving others if necessary; false if that is impossible.
    fn insert(&mut self, new: usize) -> bool {
        // For each link that would have to move: the link that takes its place.
        let mut replaced_by: Vec<Option<usize>> = vec![None; self.links.len()];
        let mut queue = vec![new];
        let mut next = 0;
        while let Some(&link) = queue.get(next) {
            next += 1;
            for forest in (0..self.count).filter(|forest| self.forest_of[link] != Some(*forest)) {
                let Some(cycle) = self.path(forest, self.links[link]) else {
                    self.shift(link, forest, &replaced_by);
                    return true;
                };
                for member in cycle {
                    if replaced_by[member].is_none() && member != new {
                        replaced_by[member] = Some(link);
                        queue.push(member);
                    }
                }
            }
        }
        false
    }

    /// Moves a link into a forest where it fits, and each link that waited for its place into the forest it left.
    fn shift(&mut self, link: usize, forest: usize, replaced_by: &[Option<usize>]) {
        let (mut link, mut forest) = (link, forest);
        while let (Some(left), Some(follower)) = (self.forest_of[link].replace(forest), replaced_by[link]) {
            (link, forest) = (follower, left);
        }
    }

    /// The links of a forest on the path from one rank to another; nothing if there is none.
    fn path(&self, forest: usize, (from, to): (usize, usize)) -> Option<Vec<usize>> {
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
        let mut path = Vec::new();
        let mut at = to;
        while at != from {
            let link = came_by[at]?;
            path.push(link);
            let (a, b) = self.links[link];
            at = if a == at { b } else { a };
        }
        Some(path)
    }
}

/// Wires that no tree uses.
struct Residual {
    ranks: usize,
    wires: Vec<u32>,
    flow: FlowGraph,
    /// The flow's edge for each wire bundle.
    edges: Vec<usize>,
}

impl Residual {
    fn of(mesh: &Mesh) -> Self {
        let ranks = mesh.ranks();
        let mut flow = FlowGraph::new(ranks);
        let cells = (0..ranks * ranks).map(|cell| (cell / ranks, cell % ranks));
        let wires: Vec<u32> = cells.clone().map(|(a, b)| mesh.wires(a, b)).collect();
        let edges = cells.zip(&wires).map(|((a, b), wires)| flow.edge(a, b, u64::from(*wires))).collect();
        Self { ranks, wires, flow, edges }
    }

    /// The least maximum flow from a root to any rank.
    fn least_flow(&mut self, root: usize) -> u64 {
        (0..self.ranks)
            .filter(|rank| *rank != root)
            .map(|rank| self.flow.max_flow(root, rank))
            .min()
            .unwrap_or(0)
    }

    /// Takes a tree from the root that leaves enough wires for `others`.
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

    /// Takes a wire if there is one and enough remain; else changes nothing.
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
