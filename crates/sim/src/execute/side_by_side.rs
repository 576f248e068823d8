//! The plans that a library runs side by side, each with its share of the data, as layouts of one plan: each leads through other NICs and links.
//! Where islands are alike and nothing is disturbed, only the first is simulated.

use weftlink_plan::Layout;
use weftlink_plan::algorithms::Algorithm;

/// The layouts of the plans that a library runs side by side, each through other links: trees from each rail, chains along each ring. The
/// first is the layout itself.
pub(super) fn side_by_side(layout: &Layout, algorithm: Algorithm) -> Vec<Layout> {
    let rails = layout.islands.iter().map(Vec::len).max().unwrap_or(1);
    let from_rail = |rail: usize| {
        let mut layout = layout.clone();
        for island in &mut layout.islands {
            let rails = island.len().max(1);
            island.rotate_left(rail % rails);
        }
        layout
    };
    let along_ring = |ring: usize| {
        let mut layout = layout.clone();
        layout.rings.rotate_left(ring);
        layout
    };
    match algorithm {
        Algorithm::Tree if layout.islands.len() > 1 => (0..rails).map(from_rail).collect(),
        Algorithm::Chain if !layout.rings.is_empty() => (0..layout.rings.len()).map(along_ring).collect(),
        _ => vec![layout.clone()],
    }
}

/// The layouts of trees whose chains inside islands follow the rings, as NCCL's channels do. Chains in one island all begin at its first
/// rank, so that rings in opposite directions leave out different links.
pub(super) fn along_rings(layout: &Layout) -> Vec<Layout> {
    let places = layout.places();
    let mut found: Vec<Layout> = Vec::new();
    for ring in &layout.rings {
        let mut islands: Vec<Vec<u32>> = vec![Vec::new(); layout.islands.len()];
        for rank in ring {
            islands[places[*rank as usize].0 as usize].push(*rank);
        }
        if let [island] = islands.as_mut_slice() {
            let first = island.iter().position(|rank| *rank == layout.islands[0][0]);
            island.rotate_left(first.unwrap_or(0));
        }
        if found.iter().all(|known| known.islands != islands) {
            found.push(Layout { islands, ..layout.clone() });
        }
    }
    found
}
