//! The seeds of the fuzzer, the JSON files in `fuzz/corpus/plan`, cover every field and every collective. `make bless` adds the current plans.
//! Older plans remain useful seeds, so the test checks only the coverage of all files together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weftlink_plan::plan::Agreement;
use weftlink_plan::{Algorithm, Collective, Layout, Plan, verify};
use weftlink_testkit::{catalogue, plans};

/// Whether a plan has a feature.
type Has = fn(&Plan) -> bool;

#[test]
fn fuzz_seeds_cover_every_kind_of_plan() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/plan");
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, plan) in written() {
            std::fs::write(folder.join(name), plan.to_json() + "\n").unwrap();
        }
    }
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let named = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    let plan = |file: PathBuf| {
        let plan = Plan::from_json(&std::fs::read_to_string(&file).unwrap()).unwrap();
        verify(plan).unwrap_or_else(|refusal| panic!("{}: {refusal}", file.display()))
    };
    let seeds: Vec<_> = named.map(plan).collect();
    for collective in catalogue::collectives(2) {
        let name = collective.name();
        assert!(seeds.iter().any(|plan| plan.collective.name() == name), "there is no seed of a {name}");
    }
    let uses: [(&str, Has); 5] = [
        ("groups", |plan| !plan.groups.is_empty()),
        ("a symmetry", |plan| plan.symmetry.is_some()),
        ("uneven blocks", |plan| plan.uneven),
        ("ranks that agree up to rounding", |plan| plan.agreement == Agreement::UpToRounding),
        ("scratch", |plan| plan.chunks.scratch > 0),
    ];
    for (what, has) in uses {
        assert!(seeds.iter().any(|plan| has(plan)), "there is no seed with {what}");
    }
}

/// A plan of two ranks of each kind, and a few larger ones.
fn written() -> BTreeMap<String, Plan> {
    let mut seeds = BTreeMap::new();
    for plan in plans::all(2).into_iter().chain([plans::switched(3), plans::barrier(3)]) {
        seeds.insert(format!("{}-{}-{}.json", plan.name, plan.collective.name(), plan.ranks), plan);
    }
    for collective in catalogue::collectives(2) {
        // One algorithm per collective is enough for the fuzzer.
        let done = |plan: &Plan| plan.collective.name() == collective.name();
        let mut doing =
            Algorithm::ALL.into_iter().filter_map(|algorithm| algorithm.flat(&collective, 2, 1).ok());
        if let (false, Some(plan)) = (seeds.values().any(done), doing.next()) {
            seeds.insert(format!("{}-{}-2.json", plan.name, collective.name()), shallow(plan));
        }
    }
    // Classes of several ranks each.
    let islands = Layout::grid(2, 2, 1);
    let ring = Algorithm::Ring.recipe(&Collective::AllReduce, &islands).unwrap().plan();
    seeds.insert("ring-all-reduce-4.json".to_owned(), ring);
    seeds
}

/// The plan with FIFOs shallow enough for the fuzz target to prove.
fn shallow(mut plan: Plan) -> Plan {
    plan.channels.iter_mut().for_each(|channel| channel.depth = channel.depth.min(2));
    plan
}
