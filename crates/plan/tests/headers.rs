//! Compares headers with plans: hops and bytes are counted on the algorithms' plans and must match the formulas in their files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use weftlink_plan::algorithms::header::{Amount, Row};
use weftlink_plan::domain::hops::hops;
use weftlink_plan::formula::Values;
use weftlink_plan::{Algorithm, Collective, Layout, Ratio, Traffic, WellFormed};

/// Islands and ranks in each.
fn shapes() -> impl Iterator<Item = (u32, u32)> {
    (1..=17).map(|ranks| (1, ranks)).chain([
        (2, 1),
        (5, 1),
        (8, 1),
        (2, 2),
        (2, 4),
        (4, 2),
        (3, 3),
        (2, 8),
        (4, 8),
    ])
}

/// Every collective, with its root at rank 0, on a torus of islands, or with a message from each rank to the next.
fn collectives(islands: u32, per_island: u32) -> impl Iterator<Item = Collective> {
    let ranks = islands * per_island;
    let messages = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
    let others =
        [Collective::SendReceive { messages }, Collective::Neighbours { torus: [1, islands, per_island] }];
    Collective::KINDS.into_iter().chain(others)
}

#[test]
fn headers_match_the_plans() {
    let mut wrong = Vec::new();
    let mut done = BTreeSet::new();
    for (islands, per_island) in shapes() {
        let layout = Layout::grid(islands, per_island, 1);
        for algorithm in Algorithm::ALL {
            for collective in collectives(islands, per_island) {
                let Ok(recipe) = algorithm.recipe(&collective, &layout) else { continue };
                let what = format!("{algorithm} {} on {islands} x {per_island}", collective.name());
                let Some(row) = algorithm.header().row(&collective) else {
                    wrong.push(format!("{what}: {} has no such row", algorithm.source().0));
                    continue;
                };
                done.insert((algorithm, row.collective));
                let plan = recipe.plan();
                let checked = WellFormed::check(&plan).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
                wrong.extend(
                    differences(row, checked, &layout).into_iter().map(|line| format!("{what}: {line}")),
                );
            }
        }
    }
    for algorithm in Algorithm::ALL {
        for row in &algorithm.header().rows {
            if !done.contains(&(algorithm, row.collective)) {
                wrong.push(format!("{algorithm} {}: no layout lets it, but there is a row", row.collective));
            }
        }
    }
    assert!(wrong.is_empty(), "{} numbers differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The differences between a row and the plan. Bytes are shares of a buffer of one.
fn differences(row: &Row, plan: WellFormed<'_>, layout: &Layout) -> Vec<String> {
    let islands: Vec<u32> = layout.places().into_iter().map(|(island, _)| island).collect();
    let Some(counted) = hops(plan, &islands) else { return vec!["does not run to its end".to_owned()] };
    let traffic = Traffic::of(plan);
    let values =
        Values { islands: layout.islands.len() as u32, per_island: layout.per_island().unwrap(), bytes: 1 };
    let numbers: [(&str, &Amount, Ratio); 4] = [
        ("inside", &row.inside, counted.inside.into()),
        ("across", &row.across, counted.across.into()),
        ("rank", &row.rank, traffic.most_inside(&islands)),
        ("island", &row.island, traffic.most_across(&islands)),
    ];
    let differs = |(column, amount, counted): (&str, &Amount, Ratio)| {
        let text = amount.formula.text();
        match amount.formula.value(values) {
            Ok(value) if value == counted || (amount.is_bound && value > counted) => None,
            Ok(value) => Some(format!("{column} is {counted}, not {text} = {value}")),
            Err(error) => Some(format!("{column} is {counted}, and {text}: {error}")),
        }
    };
    numbers.into_iter().filter_map(differs).collect()
}

#[test]
fn headers_are_complete() {
    for algorithm in Algorithm::ALL {
        let (header, file) = (algorithm.header(), algorithm.source().0);
        assert!(!header.title.is_empty() && !header.idea.is_empty(), "{file}: a title and the idea");
        assert!(!header.rows.is_empty(), "{file}: a table");
        for section in ["Steps", "Bytes on the wire", "Possible", "When it wins", "Paper"] {
            assert!(header.section(section).is_some_and(|text| !text.is_empty()), "{file}: **{section}.**");
        }
    }
}

#[test]
fn work_is_rounded_up() {
    let work = Algorithm::Ring.work(&Collective::AllReduce, 2, 4, 1 << 20).unwrap();
    assert_eq!((work.hops_inside, work.hops_across), (10, 4));
    assert_eq!((work.rank_bytes, work.island_bytes), (2 * 7 * (1 << 17), 2 * 7 * (1 << 17)));
    assert_eq!(Algorithm::Ring.work(&Collective::AllReduce, 1, 3, 1).unwrap().rank_bytes, 2);
    assert_eq!(Algorithm::Ring.work(&Collective::AllToAll, 1, 3, 1), None);
    // A hundred thousand ranks and a huge buffer.
    assert!(Algorithm::TwoShot.work(&Collective::AllReduce, 12_500, 8, u64::MAX >> 20).is_some());
}

#[test]
fn traffic_by_kind_of_link() {
    let kinds = |system: &str, algorithm: Algorithm, ranks: u32| {
        let fabric = weftlink_fabric::resolve(system).unwrap();
        let plan = algorithm.plan(ranks, 1);
        let traffic = Traffic::of(WellFormed::check(&plan).unwrap()).by_link_kind(&fabric).unwrap();
        let lines: Vec<String> = traffic.iter().map(|(kind, share)| format!("{kind}: {share}")).collect();
        lines.join(", ")
    };
    // Eight ranks send 7/4 of the buffer each, up to the switch and down again.
    assert_eq!(kinds("hgx-h100", Algorithm::Ring, 8), "NVLink 4: 28");
    // Two of sixteen ranks send 15/8 of the buffer out of their host: four stretches from NIC to NIC, by a spine.
    assert!(kinds("2x hgx-h100 + 8x ndr", Algorithm::Ring, 16).contains("InfiniBand NDR: 15"));
}
