//! Compares predictions between cores with the committed runs, and fits the constants to them.
//!
//!     cargo run -p weftlink-sim --example hosts [-- fit [machines]]

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an example ends by panicking")]

use weftlink_sim::Constants;
use weftlink_sim::accuracy::quantile;
use weftlink_sim::constants::{COUNT, Name, TABLE};
use weftlink_sim::host::execute;
use weftlink_sim::host::runs::{Measured, read};

/// Width of the prior of each constant.
const SPREAD: f64 = 0.3;
/// The runs with a core per rank, and the number of cores of each machine.
const RUNS: [(&str, u32); 5] = [
    ("all-reduce-16-core-vm", 16),
    ("all-reduce-2-core-vm", 2),
    ("collectives-16-core-vm", 16),
    ("collectives-2-core-vm", 2),
    ("long-messages-2-core-vm", 2),
];

fn rows(names: &[(&str, u32)]) -> Vec<Measured> {
    let text = |name: &str| {
        let path = format!("{}/../../bench/runs/2026-11-15-peers-{name}/raw.csv", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("runs are committed")
    };
    names.iter().flat_map(|(name, cores)| read(&text(name), *cores)).collect()
}

fn log_ratio(constants: &Constants, row: &Measured) -> f64 {
    let call = execute(constants, &row.hosts, row.operation, row.bytes).expect("it was measured");
    libm::log(call.time.us() / row.time_us)
}

fn loss(constants: &Constants, rows: &[Measured]) -> f64 {
    let errors = rows.iter().map(|row| log_ratio(constants, row).abs().min(1.5)).sum::<f64>();
    // The prior keeps constants near their shipped values.
    let away = (Name::HostMemoryGBps as usize..COUNT)
        .map(|at| (libm::log(constants.at(at) / TABLE[at].value) / SPREAD).powi(2) * 0.05);
    errors + away.sum::<f64>()
}

fn main() {
    // Fits every second call of every run and checks the others; or fits the larger machine and checks the other.
    let (mut fitted, mut checked) = (Vec::new(), Vec::new());
    let by_machine = std::env::args().nth(2).as_deref() == Some("machines");
    for (at, row) in rows(&RUNS).into_iter().enumerate() {
        let is_fitted = if by_machine { row.hosts.cores_per_host == 16 } else { at % 2 == 0 };
        if is_fitted { fitted.push(row) } else { checked.push(row) }
    }
    let mut constants = Constants::shipped();
    if std::env::args().nth(1).as_deref() == Some("fit") {
        let mut least = loss(&constants, &fitted);
        for step in [0.2_f64, 0.07, 0.03] {
            for _ in 0..3 {
                for at in Name::HostMemoryGBps as usize..COUNT {
                    for factor in [1.0 + step, 1.0 / (1.0 + step)] {
                        let mut other = constants.clone();
                        *other.at_mut(at) *= factor;
                        let found = loss(&other, &fitted);
                        if found < least {
                            (least, constants) = (found, other);
                        }
                    }
                }
            }
        }
        for (at, constant) in TABLE.iter().enumerate().skip(Name::HostMemoryGBps as usize) {
            println!("{} = {:.3}", constant.name, constants.at(at));
        }
    }
    for (what, rows) in [("fitted", &fitted), ("checked", &checked)] {
        for program in ["weft symmetric", "weft ordinary", "open-mpi", "gloo"] {
            for (band, least, most) in
                [("to 4 KiB", 0, 4096), ("to 64 KiB", 4097, 65536), ("above", 65537, u64::MAX)]
            {
                let of: Vec<f64> = rows
                    .iter()
                    .filter(|row| row.program == program && (least..=most).contains(&row.bytes))
                    .map(|row| (libm::exp(log_ratio(&constants, row)) - 1.0).abs())
                    .collect();
                let (median, ninetieth) = (quantile(of.clone(), 0.5), quantile(of.clone(), 0.9));
                println!(
                    "{what:8} {program:15} {band:10} {:5.1} % ({:5.1} %) of {}",
                    median * 1e2,
                    ninetieth * 1e2,
                    of.len()
                );
            }
        }
        for row in rows {
            let call = execute(&constants, &row.hosts, row.operation, row.bytes).expect("it was measured");
            let us = call.time.us();
            println!(
                "  {:5.2} {:15} {:14} {:2} ranks {:8} B {:10.2} us, measured {:10.2} by {}",
                us / row.time_us,
                row.program,
                row.operation.name(),
                row.hosts.ranks(),
                row.bytes,
                us,
                row.time_us,
                call.algorithm
            );
        }
    }
}
