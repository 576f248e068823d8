//! The algorithms that use islands, switches and peer memory: proved on grids of islands, and compared with independent
//! expectations, with switches and without.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::collective::Promise;
use weftlink_plan::domain::elements::oracle;
use weftlink_plan::plan::Node;
use weftlink_plan::{Algorithm, Collective, Cut, Layout, Plan, verify};

/// Islands, and ranks of each.
const GRIDS: [(u32, u32); 14] = [
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 8),
    (2, 1),
    (2, 2),
    (3, 1),
    (2, 8),
    (3, 4),
    (4, 8),
    (5, 3),
    (7, 2),
    (9, 8),
    (16, 2),
];

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Hierarchical,
    Algorithm::Nvls,
    Algorithm::NvlsTree,
    Algorithm::CollnetDirect,
    Algorithm::CollnetChain,
    Algorithm::OneShot,
    Algorithm::TwoShot,
];

/// Every collective with a root, for the first, a middle and the last rank, and the others once.
fn collectives(ranks: u32) -> Vec<Collective> {
    let roots = [0, ranks / 2, ranks - 1];
    let rooted = |root| {
        [
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]
    };
    let symmetric =
        [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
    let mut roots = roots.to_vec();
    roots.dedup();
    symmetric.into_iter().chain(roots.into_iter().flat_map(rooted)).collect()
}

/// Layouts of a grid: switched and not, with one and with two rings; the last with ranks and islands out of order.
fn layouts(islands: u32, per_island: u32) -> Vec<Layout> {
    let switched = Layout::grid(islands, per_island, 1);
    let unswitched = Layout { switched: false, ..Layout::grid(islands, per_island, 2) };
    let mut shuffled = Layout::grid(islands, per_island, 3);
    let ranks = shuffled.ranks();
    let stride = (2..).find(|stride| gcd(*stride, ranks) == 1).unwrap();
    shuffled.rings.iter_mut().flatten().for_each(|rank| *rank = *rank * stride % ranks);
    shuffled.islands.iter_mut().flatten().for_each(|rank| *rank = *rank * stride % ranks);
    shuffled.islands.iter_mut().step_by(2).for_each(|island| island.reverse());
    let wild = Layout { switched: false, ..shuffled.clone() };
    vec![switched, unswitched, shuffled, wild]
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The plans of all algorithms for all collectives on a layout, each also without switches if it uses any.
fn plans(layout: &Layout) -> Vec<Plan> {
    let mut plans = Vec::new();
    for algorithm in ALGORITHMS {
        for collective in collectives(layout.ranks()) {
            let Ok(recipe) = algorithm.recipe(&collective, layout) else { continue };
            let plan = recipe.plan();
            if !plan.groups.is_empty() {
                plans.push(plan.clone().without_switches());
            }
            plans.push(plan);
        }
    }
    plans
}

#[test]
fn all_are_proved_on_grids() {
    for (islands, per_island) in GRIDS {
        // The larger ones take seconds each.
        let forms = if islands * per_island > 24 { 1 } else { 4 };
        for (form, layout) in layouts(islands, per_island).iter().take(forms).enumerate() {
            for plan in plans(layout) {
                let (name, collective) = (plan.name.clone(), plan.collective.clone());
                verify(plan).unwrap_or_else(|refusal| {
                    panic!("{name} {collective}, form {form} of {islands} x {per_island}: {refusal}")
                });
            }
        }
    }
}

#[test]
fn all_plans_keep_their_promises() {
    for (islands, per_island) in GRIDS.into_iter().filter(|(m, g)| m * g <= 16) {
        for layout in layouts(islands, per_island) {
            for plan in plans(&layout) {
                assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
                promise(plan);
            }
        }
    }
}

/// Runs a plan on numbers and compares the result with the promise of its collective.
fn promise(plan: Plan) {
    let plan = verify(plan).unwrap();
    let (collective, ranks) = (plan.collective.clone(), plan.ranks);
    let number = |rank: u32, block: u32, at: usize| {
        1_000_003 * u64::from(rank + 1) + 1009 * u64::from(block) + at as u64
    };
    for count in [1_usize, 100] {
        let input = |rank| {
            let blocks = collective.gives(rank, ranks);
            (0..blocks).flat_map(|block| (0..count).map(move |at| number(rank, block, at))).collect()
        };
        let inputs: Vec<Vec<u64>> = (0..ranks).map(input).collect();
        let cut = Cut::new(count, plan.chunks_per_block(), 4, 8);
        for &aliasing in &plan.aliasing {
            let (outputs, _) = oracle(&plan, cut, aliasing, &inputs, |a, b| a + b);
            for (rank, output) in (0..).zip(&outputs) {
                assert_eq!(output.len(), collective.gets(rank, ranks) as usize * count, "{}", plan.name);
                for (position, &value) in output.iter().enumerate() {
                    let (block, at) = ((position / count) as u32, position % count);
                    let promised: u64 = match collective.promise(rank, ranks, block).unwrap() {
                        Promise::Copy { rank, block } => number(rank, block, at),
                        Promise::Reduction { block, below } => {
                            (0..below).map(|from| number(from, block, at)).sum()
                        }
                    };
                    assert_eq!(value, promised, "{} {collective} {aliasing}, rank {rank}", plan.name);
                }
            }
        }
    }
}

#[test]
fn large_grids_are_proved_by_classes() {
    let layout = Layout::grid(128, 8, 1);
    verify(Algorithm::Hierarchical.recipe(&Collective::AllReduce, &layout).unwrap().plan()).unwrap();
    // Far above the limit of a proof rank by rank, and still fast enough for a test.
    let layout = Layout::grid(32, 8, 1);
    for plan in plans(&layout).into_iter().filter(|plan| plan.symmetry.is_some()) {
        let (name, collective) = (plan.name.clone(), plan.collective.clone());
        verify(plan).unwrap_or_else(|refusal| panic!("{name} {collective}: {refusal}"));
    }
}

#[test]
fn a_rank_of_a_hundred_thousand_has_a_small_program() {
    let layout = Layout::grid(12_500, 8, 2);
    for collective in collectives(layout.ranks()) {
        let Ok(recipe) = Algorithm::Hierarchical.recipe(&collective, &layout) else { continue };
        for rank in [0, 77_777] {
            let program = recipe.program(rank);
            let nodes: usize = program.lanes.iter().map(|lane| count(&lane.nodes)).sum();
            assert!(nodes < 200, "{collective} has {nodes} nodes on rank {rank}");
        }
    }
}

fn count(nodes: &[Node]) -> usize {
    let node = |node: &Node| match node {
        Node::Step(_) => 1,
        Node::Loop(inner) => 1 + count(&inner.body),
    };
    nodes.iter().map(node).sum()
}

#[test]
fn impossible_layouts_have_a_reason() {
    let says = |algorithm: Algorithm, layout: &Layout, what: &str| {
        let message = algorithm.recipe(&Collective::AllReduce, layout).err().unwrap().to_string();
        assert!(message.contains(what), "{message} does not say {what}");
    };
    let mut unequal = Layout::grid(2, 4, 1);
    unequal.islands[1].pop();
    unequal.rings[0].pop();
    says(Algorithm::Hierarchical, &unequal, "these have 3 to 4");
    says(Algorithm::Hierarchical, &Layout::flat(4, 1), "at least 2 islands");
    says(Algorithm::Nvls, &Layout::grid(2, 4, 1), "inside one island, but there are 2");
    says(Algorithm::NvlsTree, &Layout::flat(4, 1), "at least 2 islands");
    let silent = || Layout { network_reduces: Err("it is Ethernet".to_owned()), ..Layout::grid(2, 4, 1) };
    says(Algorithm::CollnetDirect, &silent(), "it is Ethernet");
    says(Algorithm::CollnetChain, &silent(), "it is Ethernet");
    let why = || Err("the links end at other GPUs".to_owned());
    says(Algorithm::Nvls, &Layout { multicast: why(), ..Layout::flat(4, 1) }, "the links end at other GPUs");
    says(
        Algorithm::NvlsTree,
        &Layout { multicast: why(), ..Layout::grid(2, 4, 1) },
        "the links end at other GPUs",
    );
}
