//! `weft plan --list`: the algorithms, and which collectives each does.

use std::io::{self, Write};

use serde_json::{Value, json};
use weftlink_plan::{Algorithm, Aliasing, Collective, Layout, Plan};

use crate::screen::{self, say};
use crate::table::Table;

/// Ranks to try algorithms on: one island, and several.
const RANKS: u32 = 8;
const LAYOUTS: [(u32, u32); 2] = [(1, RANKS), (2, RANKS / 2)];

pub(super) fn print(as_json: bool) -> io::Result<()> {
    if as_json {
        let algorithms: Vec<Value> = Algorithm::ALL.into_iter().map(json).collect();
        return crate::print_json(&json!({ "algorithms": algorithms }));
    }
    let mut table = Table::new(["algorithm", "buffers", "what it does", "collectives"]);
    for algorithm in Algorithm::ALL {
        let samples = samples(algorithm);
        let names: Vec<&str> = samples.iter().map(|(collective, _)| collective.name()).collect();
        let is_symmetric = samples.iter().any(|(_, plan)| plan.needs_windows());
        table.row([
            algorithm.name().to_owned(),
            if is_symmetric { "symmetric" } else { "any" }.to_owned(),
            algorithm.about().to_owned(),
            names.join(", "),
        ]);
    }
    let mut out = screen::stdout();
    writeln!(out, "{table}")?;
    say!(out, "To see which is fastest on a fabric, and why: `weft plan all-reduce hgx-h100 --size 64MiB`.")
}

fn json(algorithm: Algorithm) -> Value {
    let collectives = samples(algorithm).into_iter().map(|(collective, plan)| {
        json!({
            "name": collective.name(),
            "needs_symmetric_buffers": plan.needs_windows(),
            "in_place": plan.aliasing.contains(&Aliasing::InPlace),
            "uneven": plan.uneven,
        })
    });
    json!({
        "name": algorithm.name(),
        "about": algorithm.about(),
        "collectives": collectives.collect::<Vec<_>>(),
    })
}

/// A plan for each collective that it does at all. What holds for eight ranks holds for more.
fn samples(algorithm: Algorithm) -> Vec<(Collective, Plan)> {
    let messages = (0..RANKS).map(|rank| (rank, (rank + 1) % RANKS)).collect();
    let others = [Collective::Neighbours { torus: [1, 1, RANKS] }, Collective::SendReceive { messages }];
    let sample = |collective: Collective| {
        let plan = LAYOUTS.into_iter().find_map(|(islands, each)| {
            Some(algorithm.recipe(&collective, &Layout::grid(islands, each, 1)).ok()?.plan())
        });
        Some((collective, plan?))
    };
    Collective::KINDS.into_iter().chain(others).filter_map(sample).collect()
}
