//! Trees and rings on meshes, compared with the bounds of their cuts: real meshes and random ones.

mod wired;

use weftlink_fabric::domains::gpu_domains;
use weftlink_plan::Layout;
use weftlink_plan::layout::Tree;
use weftlink_plan::wiring::{Mesh, Packing, TREES_MAX};

use wired::{every_fabric, samples};

/// Checks that every rank is below one root, and that no wire is used more often than it is split; trees of an all-reduce use the
/// wires back as well.
#[track_caller]
fn are_sound(mesh: &Mesh, trees: &Packing<Tree>, both_ways: bool) {
    let ranks = mesh.ranks();
    let mut uses = vec![0; ranks * ranks];
    for tree in &trees.items {
        assert_eq!(tree.parents.len(), ranks);
        assert_eq!(tree.parents.iter().filter(|parent| parent.is_none()).count(), 1, "{tree:?}");
        for rank in 0..ranks {
            let up = std::iter::successors(Some(rank as u32), |at| tree.parents[*at as usize]);
            assert!(up.take(ranks + 1).count() <= ranks, "a cycle above {rank}: {tree:?}");
            if let Some(parent) = tree.parents[rank] {
                uses[parent as usize * ranks + rank] += 1;
                uses[rank * ranks + parent as usize] += u32::from(both_ways);
            }
        }
    }
    for (cell, uses) in uses.into_iter().enumerate() {
        assert!(
            uses <= trees.split * mesh.wires(cell / ranks, cell % ranks),
            "wire {cell} is used {uses} times"
        );
    }
}

/// Thousandths of the bound that rings and that trees reach.
fn shares(mesh: &Mesh) -> (u64, u64) {
    let (bound, _) = mesh.all_reduce_bound().expect("a mesh of several ranks has a bound");
    let (rings, trees) = (mesh.rings(), mesh.trees());
    are_sound(mesh, &trees, true);
    assert!(trees.items.len() <= TREES_MAX);
    let shares = (
        mesh.all_reduce_by_rings(&rings).thousandths_of(bound),
        mesh.all_reduce_by_trees(&trees).thousandths_of(bound),
    );
    assert!(shares.0 <= 1000 && shares.1 <= 1000, "nothing is faster than the bound: {shares:?}");
    println!(
        "{} GPUs, {} wires: {} rings / {} reach {}, {} trees / {} reach {}",
        mesh.ranks(),
        mesh.wire_count(),
        rings.items.len(),
        rings.split,
        shares.0,
        trees.items.len(),
        trees.split,
        shares.1
    );
    shares
}

/// A connected mesh of four to eight GPUs with up to `most` links between any two, some with none.
fn random(seed: u64, most: u32) -> Mesh {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % limit
    };
    let ranks = 4 + below(5) as usize;
    let mut links: Vec<(usize, usize, u32)> =
        (1..ranks).map(|rank| (below(rank as u32) as usize, rank, 1)).collect();
    for a in 0..ranks {
        links.extend(
            (a + 1..ranks).map(|b| (a, b, below(2 * most).saturating_sub(most - 1))).collect::<Vec<_>>(),
        );
    }
    Mesh::linked(ranks, &links, 25_000_000_000)
}

#[test]
fn the_better_of_rings_and_trees_comes_near_the_bound_on_random_meshes() {
    let best = |seed| {
        let (rings, trees) = shares(&random(seed, 4));
        rings.max(trees)
    };
    let shares: Vec<u64> = (1..=20).map(best).collect();
    assert!(shares.iter().all(|share| *share >= 950), "{shares:?}");
}

#[test]
fn rings_reach_the_bound_on_real_meshes() {
    for (name, fabric) in every_fabric().chain(samples()) {
        for domain in gpu_domains(&fabric).into_iter().filter(|domain| domain.len() > 1) {
            let Some(mesh) = Mesh::of(&fabric, &domain) else { continue };
            print!("{name}: ");
            let (rings, trees) = shares(&mesh);
            assert_eq!(rings.max(trees), 1000, "{name}");
        }
    }
}

#[test]
fn layouts_have_trees_if_rings_are_slower() {
    for (name, fabric) in every_fabric().filter(|(_, fabric)| fabric.gpus().len() <= 16) {
        let layout = Layout::of(&fabric);
        // Between packages, nodes with MI200s have one or two links for each pair that they join.
        let irregular =
            ["odds-and-ends.xml", "mixed-lab.toml", "frontier-node", "4x-mi250"].contains(&name.as_str());
        assert!(layout.trees.is_empty() || irregular, "{name}: {:?}", layout.trees);
    }
}

#[test]
fn a_star_and_a_path_are_their_own_trees() {
    let star = Mesh::linked(4, &[(0, 1, 3), (0, 2, 3), (0, 3, 3)], 1);
    let trees = star.trees();
    assert_eq!((trees.items.len(), trees.split), (3, 1));
    assert!(trees.items.iter().all(|tree| tree.parents == [None, Some(0), Some(0), Some(0)]));
    // Rooted in the middle.
    let path = Mesh::linked(5, &[(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 4, 1)], 1);
    assert_eq!(path.trees().items, [Tree { parents: vec![Some(1), Some(2), None, Some(2), Some(3)] }]);
    assert_eq!(Mesh::linked(3, &[(0, 1, 1)], 1).trees().items, []);
}

#[test]
fn trees_from_a_root_fill_the_narrowest_cut() {
    for mesh in (1..=20).map(|seed| random(seed, 3)) {
        for root in 0..mesh.ranks() as u32 {
            let trees = mesh.trees_from(root);
            are_sound(&mesh, &trees, false);
            assert!(trees.items.iter().all(|tree| tree.parents[root as usize].is_none()));
            // The links go both ways, so the narrowest cut below any root is the narrowest of all.
            assert_eq!(trees.items.len() as u64, mesh.least_cut());
        }
    }
}
