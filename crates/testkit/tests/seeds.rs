//! The fuzzer starts from plans that use every field and every collective: `fuzz/corpus/plan` holds what is written here.
//! `make bless` writes the files afresh.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use weftlink_plan::{Algorithm, Collective, Layout, Plan};
use weftlink_testkit::{catalogue, plans};

/// Whether a plan has something.
type Has = fn(&Plan) -> bool;

#[test]
fn the_fuzzer_starts_from_every_kind_of_plan() {
    let mut seeds = BTreeMap::new();
    for plan in plans::all(2).into_iter().chain([plans::switched(3), plans::barrier(3)]) {
        seeds.insert(format!("{}-{}-{}.json", plan.name, plan.collective.name(), plan.ranks), plan);
    }
    for case in catalogue::all(2).into_iter().filter(|case| case.layout == Layout::flat(2, 1)) {
        let plan = shallow(case.plan());
        seeds.entry(format!("{}-{}-2.json", case.algorithm, case.collective.name())).or_insert(plan);
    }
    // Classes of several ranks each.
    let islands = Layout::grid(2, 2, 1);
    let ring = Algorithm::Ring.recipe(&Collective::AllReduce, &islands).unwrap().plan();
    seeds.insert("ring-all-reduce-4.json".to_owned(), ring);
    for collective in catalogue::collectives(2) {
        let name = collective.name();
        assert!(seeds.values().any(|plan| plan.collective.name() == name), "there is no seed of a {name}");
    }
    let uses: [(&str, Has); 4] = [
        ("groups", |plan| !plan.groups.is_empty()),
        ("a symmetry", |plan| plan.symmetry.is_some()),
        ("uneven blocks", |plan| plan.uneven),
        ("scratch", |plan| plan.chunks.scratch > 0),
    ];
    for (what, has) in uses {
        assert!(seeds.values().any(has), "there is no seed with {what}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/plan");
    for (name, plan) in seeds {
        let (file, text) = (folder.join(name), plan.to_json() + "\n");
        if std::env::var_os("WEFT_BLESS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        let stored = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(stored, text, "{} is not that plan; `make bless` writes it", file.display());
    }
}

/// The plan with FIFOs that the fuzzer's target thinks worth proving.
fn shallow(mut plan: Plan) -> Plan {
    plan.channels.iter_mut().for_each(|channel| channel.depth = channel.depth.min(2));
    plan
}
