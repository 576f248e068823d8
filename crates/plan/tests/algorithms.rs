//! Every algorithm and each of its collectives: proved on many layouts, and correct on elements at any count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::domain::elements::oracle;
use weftlink_plan::plan::{Node, Protocol, Wait};
use weftlink_plan::{Algorithm, Collective, Cut, Layout, Plan, verify};

/// The collectives to test on a number of ranks: every kind, with several roots.
fn collectives(ranks: u32) -> Vec<Collective> {
    let roots: Vec<u32> = match ranks {
        1..=9 => (0..ranks).collect(),
        10..=17 => vec![0, ranks / 2, ranks - 1],
        _ => vec![ranks / 3],
    };
    let rooted = roots.into_iter().flat_map(|root| {
        [
            Collective::Reduce { root },
            Collective::Broadcast { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]
    });
    let mut all: Vec<_> = rooted.collect();
    all.extend(Collective::KINDS.into_iter().filter(|collective| collective.root().is_none()));
    all.extend(tori(ranks).into_iter().map(|torus| Collective::Neighbours { torus }));
    all.extend(messages(ranks).into_iter().map(|messages| Collective::SendReceive { messages }));
    all
}

/// Rings, planes and cubes, with dimensions of one and two ranks where they fit.
fn tori(ranks: u32) -> Vec<[u32; 3]> {
    let mut tori = vec![[1, 1, ranks], [ranks, 1, 1]];
    for divisor in [2, 3, 4].into_iter().filter(|&divisor| ranks.is_multiple_of(divisor)) {
        tori.push([1, ranks / divisor, divisor]);
        if (ranks / divisor).is_multiple_of(2) {
            tori.push([divisor, ranks / divisor / 2, 2]);
        }
    }
    tori
}

/// Lists of messages: none, each rank to itself, all to all several times, two ranks that both send first, and a pseudo-random
/// one.
fn messages(ranks: u32) -> Vec<Vec<(u32, u32)>> {
    let last = ranks - 1;
    let both = [(0, last), (last, 0)].repeat(5);
    let mixed = (0..3 * ranks).map(|i| (i * 7 % ranks, i * i % ranks)).collect();
    let mut lists = vec![vec![], (0..ranks).map(|rank| (rank, rank)).collect(), both, mixed];
    if ranks <= 9 {
        lists.push((0..3 * ranks * ranks).map(|i| (i % ranks, i / ranks % ranks)).collect());
    }
    lists
}

/// Every plan of every algorithm on a layout.
fn plans(layout: &Layout) -> Vec<Plan> {
    let mut plans = Vec::new();
    for collective in collectives(layout.ranks()) {
        let recipes =
            Algorithm::ALL.into_iter().filter_map(|algorithm| algorithm.recipe(&collective, layout).ok());
        plans.extend(recipes.map(|recipe| recipe.plan()));
    }
    plans
}

fn prove(layout: &Layout) {
    let refused = |plan: Plan| {
        let (name, collective, ranks) = (plan.name.clone(), plan.collective.clone(), plan.ranks);
        Some(format!("{name} {collective} of {ranks}: {}", verify(plan).err()?))
    };
    let refused: Vec<_> = plans(layout).into_iter().filter_map(refused).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn all_are_proved_for_few_ranks() {
    (1..=17).for_each(|ranks| prove(&Layout::flat(ranks, 1 + ranks % 3)));
}

#[test]
fn all_are_proved_for_many_ranks() {
    [24, 32, 64].into_iter().for_each(|ranks| prove(&Layout::flat(ranks, 1)));
}

#[test]
fn all_are_proved_for_a_rack() {
    prove(&Layout::flat(72, 1));
}

#[test]
fn all_are_proved_on_islands() {
    for (islands, each) in [(2, 1), (2, 3), (2, 4), (3, 3), (4, 2), (5, 2), (4, 8)] {
        prove(&Layout::grid(islands, each, 1));
    }
    // Islands of different sizes without switches, whose ranks are not in order.
    let islands = vec![vec![3, 0], vec![5, 1, 6, 7], vec![2], vec![4, 8]];
    prove(&Layout { islands, switched: false, ..Layout::flat(9, 2) });
}

/// The expected content of a block of output, independent of the crate's own promises. Element i of block b of rank r's input is
/// `number(r, b, i)`.
fn expected(
    collective: &Collective,
    ranks: u32,
    rank: u32,
    block: usize,
    number: impl Fn(u32, usize) -> u64,
) -> Option<u64> {
    let sum = |below: u32, block: usize| Some((0..below).map(|from| number(from, block)).sum());
    let mine = rank as usize;
    match collective {
        Collective::AllReduce => sum(ranks, 0),
        Collective::Reduce { root } => (rank == *root).then(|| sum(ranks, 0))?,
        Collective::Broadcast { root } => Some(number(*root, 0)),
        Collective::AllGather => Some(number(block as u32, 0)),
        Collective::ReduceScatter => sum(ranks, mine),
        Collective::AllToAll => Some(number(block as u32, mine)),
        Collective::Gather { root } => (rank == *root).then(|| number(block as u32, 0)),
        Collective::Scatter { root } => Some(number(*root, mine)),
        Collective::Scan => sum(rank + 1, 0),
        Collective::ExclusiveScan => (rank > 0).then(|| sum(rank, 0))?,
        Collective::SendReceive { messages } => {
            let mut sent = vec![0; ranks as usize];
            let mut received = Vec::new();
            for &(from, to) in messages {
                if to == rank {
                    received.push((from, sent[from as usize]));
                }
                sent[from as usize] += 1;
            }
            received.get(block).map(|&(from, block)| number(from, block))
        }
        Collective::Neighbours { torus: [x, y, z] } => {
            let at = [rank / (y * z), rank / z % y, rank % z];
            let (dimension, size) = (block / 2, [*x, *y, *z][block / 2]);
            let mut there = at;
            there[dimension] = (at[dimension] + if block.is_multiple_of(2) { size - 1 } else { 1 }) % size;
            let neighbour = (there[0] * y + there[1]) * z + there[2];
            // The neighbour's block in the opposite direction.
            Some(number(neighbour, if block.is_multiple_of(2) { block + 1 } else { block - 1 }))
        }
        Collective::Barrier => None,
    }
}

#[test]
fn all_compute_their_collective() {
    for ranks in (1..=9).chain([16, 17]) {
        for plan in plans(&Layout::flat(ranks, 2)) {
            if ranks <= 5 {
                assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
            }
            let plan = verify(plan).unwrap();
            for count in [0, 1, 7, 100] {
                computes_its_collective(&plan, count);
            }
        }
    }
}

fn computes_its_collective(plan: &weftlink_plan::Verified, count: usize) {
    let (collective, ranks) = (&plan.collective, plan.ranks);
    let number = |rank: u32, block: usize, at: usize| {
        1_000_003 * u64::from(rank + 1) + 1009 * block as u64 + at as u64
    };
    let input = |rank| {
        let blocks = collective.gives(rank, ranks) as usize;
        (0..blocks).flat_map(|block| (0..count).map(move |at| number(rank, block, at))).collect()
    };
    let inputs: Vec<Vec<u64>> = (0..ranks).map(input).collect();
    let cut = Cut::new(count, plan.chunks_per_block(), 4, 8);
    for &aliasing in &plan.aliasing {
        let (outputs, _) = oracle(plan, cut, aliasing, &inputs, |a, b| a + b);
        for (rank, output) in (0..).zip(&outputs) {
            for block in 0.. {
                let range = block * count..(block + 1) * count;
                let Some(found) = output.get(range).filter(|found| !found.is_empty()) else { break };
                let wanted: Option<Vec<_>> = (0..count)
                    .map(|at| expected(collective, ranks, rank, block, |from, block| number(from, block, at)))
                    .collect();
                assert_eq!(
                    Some(found),
                    wanted.as_deref(),
                    "{} {collective} {aliasing}, rank {rank}",
                    plan.name
                );
            }
            assert_eq!(output.len(), collective.gets(rank, ranks) as usize * count);
        }
    }
}

#[test]
fn all_are_proved_with_ll() {
    for ranks in [1, 2, 3, 5, 8, 9] {
        for collective in collectives(ranks) {
            for algorithm in Algorithm::ALL {
                let Ok(plan) = algorithm.flat_with(&collective, ranks, 1, Protocol::Ll) else { continue };
                let least = if ranks <= 8 { 32 } else { 8 };
                let deep = plan.channels.iter().all(|channel| channel.depth >= least);
                assert!(deep && plan.channels.iter().all(|channel| channel.protocol == Protocol::Ll));
                verify(plan)
                    .unwrap_or_else(|refusal| panic!("{algorithm} {collective} of {ranks}: {refusal}"));
            }
        }
    }
    let plain = Algorithm::Pairwise.flat_with(&Collective::AllToAll, 4, 1, Protocol::Simple);
    assert_eq!(plain, Algorithm::Pairwise.flat(&Collective::AllToAll, 4, 1));
}

#[test]
fn only_two_shot_writes_to_peers() {
    let samples = |algorithm: Algorithm| {
        let plans = Collective::KINDS.into_iter().filter_map(move |of| algorithm.flat(&of, 4, 2).ok());
        plans.filter(|plan| plan.groups.is_empty())
    };
    for algorithm in Algorithm::ALL {
        let writes: Vec<bool> = samples(algorithm).map(|plan| plan.writes_to_peers()).collect();
        let expected = algorithm == Algorithm::TwoShot;
        assert!(writes.iter().all(|writes| *writes == expected), "{algorithm}: {writes:?}");
    }
    let reaches = |algorithm| samples(algorithm).any(|plan| plan.needs_windows());
    assert!(reaches(Algorithm::Pull) && reaches(Algorithm::OneShot) && !reaches(Algorithm::Staged));
    // A multicast writes to all members of its group.
    assert!(Algorithm::Nvls.plan(4, 1).writes_to_peers());
}

/// Plans that reuse staging memory have no unnecessary waits: without any one of them they are refused.
#[test]
fn every_wait_for_staging_memory_is_needed() {
    let mut refused = 0;
    for algorithm in [Algorithm::Staged, Algorithm::Pull] {
        for collective in Collective::KINDS {
            let Ok(plan) = algorithm.flat(&collective, 3, 1) else { continue };
            for at in 0..plan.programs[1].lanes[0].nodes.len() {
                let mut hasty = plan.clone();
                let mut node = &mut hasty.programs[1].lanes[0].nodes[at];
                while let Node::Loop(inner) = node {
                    node = &mut inner.body[0];
                }
                let Node::Step(step) = node else { panic!("a loop holds a step") };
                let counters = step.waits.iter().filter(|wait| matches!(wait, Wait::Reached { .. })).count();
                if counters > 0 {
                    step.waits.pop();
                    hasty.symmetry = None;
                    assert!(
                        verify(hasty).is_err(),
                        "{algorithm} {collective}: step {at} needs its last wait"
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 15, "{refused}");
}
