//! A fabric as algorithms see it: islands, rings and trees on its wiring, and the bounds of its cuts.
//!
//! Nothing here depends on a system's name. [`Layout::of`] analyses a fabric; a [`Mesh`] is an island of direct links, on
//! which rings and trees are searched for. Equal hosts are analysed once, so 100,000 GPUs take little longer than eight.
//!
//! Deliberately absent: trees across islands. Between islands there is one network port per rail, and a ring or a
//! hierarchy uses all of them; algorithms choose their own trees over the rails.

mod bounds;
mod cuts;
mod cycles;
mod mesh;
mod pods;
mod rings;
mod sites;
mod switches;
mod trees;

use weftlink_fabric::{Fabric, Paths};

use crate::Layout;
use crate::layout::Tree;
use sites::{Interconnect, Sites};

pub use bounds::{Bound, Bounds};
pub use mesh::{EXACT_RANKS_MAX, Mesh, Packing, Wires};
pub use rings::{RINGS_MAX, RINGS_ON_A_SWITCH, RINGS_OVER_PCIE};
pub use trees::TREES_MAX;

/// A fabric's layout, bounds and paths.
pub(crate) fn digest(fabric: &Fabric) -> (Layout, Bounds, Paths<'_>) {
    let sites = Sites::of(fabric);
    (Layout::on(&sites), Bounds::on(&sites), sites.paths)
}

impl Layout {
    /// The layout of a fabric's ranks, one per GPU in the order of [`Fabric::gpus`]. A fabric without GPUs has no ranks and no
    /// rings.
    pub fn of(fabric: &Fabric) -> Self {
        Self::on(&Sites::of(fabric))
    }

    fn on(sites: &Sites<'_>) -> Self {
        let islands = sites.islands();
        let several = |island: &&sites::Placed<'_>| island.ranks.len() > 1;
        let by_switch = |island: &sites::Placed<'_>| matches!(island.island.kind, Interconnect::Switch);
        let switched =
            islands.iter().any(|island| several(&island)) && islands.iter().filter(several).all(by_switch);
        let rings = rings::rings(sites, &islands);
        let (multicast, network_reduces) =
            (switches::multicast(sites, &islands), switches::network_reduces(sites, &islands));
        Self {
            rings,
            trees: trees_beyond_rings(&islands),
            switched,
            multicast,
            network_reduces,
            islands: islands.into_iter().map(|island| island.ranks).collect(),
        }
    }
}

/// Trees over the only island, if it has direct links and trees carry more than its rings.
fn trees_beyond_rings(islands: &[sites::Placed<'_>]) -> Vec<Tree> {
    let [only] = islands else { return Vec::new() };
    let Interconnect::Links(mesh) = &only.island.kind else { return Vec::new() };
    let rings = mesh.all_reduce_by_rings(&mesh.rings());
    if mesh.all_reduce_bound().is_none_or(|(bound, _)| !rings.is_less(bound)) {
        return Vec::new();
    }
    let trees = mesh.trees();
    if !rings.is_less(mesh.all_reduce_by_trees(&trees)) {
        return Vec::new();
    }
    // Positions of the island become ranks.
    let tree = |tree: Tree| {
        let mut parents = vec![None; only.ranks.len()];
        for (position, parent) in tree.parents.into_iter().enumerate() {
            parents[only.ranks[position] as usize] = parent.map(|parent| only.ranks[parent as usize]);
        }
        Tree { parents }
    };
    trees.items.into_iter().map(tree).collect()
}
