//! `weft plan --list`: the algorithms.

use std::io::{self, Write};

use serde_json::{Value, json};
use weftlink_plan::{Algorithm, Aliasing, Collective, Plan};

use crate::table::Table;

pub(super) fn print(as_json: bool) -> io::Result<()> {
    if as_json {
        let algorithms: Vec<Value> = Algorithm::doing(&Collective::AllReduce).map(json).collect();
        return crate::print_json(&json!({ "algorithms": algorithms }));
    }
    let mut table = Table::new(["algorithm", "buffers", "in place", "what it does"]);
    for algorithm in Algorithm::doing(&Collective::AllReduce) {
        let plan = sample(algorithm);
        table.row([
            algorithm.name().to_owned(),
            if plan.needs_windows() { "symmetric" } else { "any" }.to_owned(),
            if plan.aliasing.contains(&Aliasing::InPlace) { "yes" } else { "no" }.to_owned(),
            algorithm.about().to_owned(),
        ]);
    }
    writeln!(io::stdout(), "{table}")?;
    writeln!(io::stdout(), "All of them compute all-reduce: `weft plan all-reduce -n 4 --algorithm ring`.")
}

fn json(algorithm: Algorithm) -> Value {
    let plan = sample(algorithm);
    json!({
        "name": algorithm.name(),
        "collective": plan.collective.to_string(),
        "about": algorithm.about(),
        "needs_symmetric_buffers": plan.needs_windows(),
        "in_place": plan.aliasing.contains(&Aliasing::InPlace),
    })
}

/// What holds for two ranks holds for more.
fn sample(algorithm: Algorithm) -> Plan {
    algorithm.plan(2, 1)
}
