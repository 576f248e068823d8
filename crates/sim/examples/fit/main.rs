//! Fits the constants of the model to published measurements, and says how right it is on machines it has not seen.
//!
//! ```text
//! cargo run -p weftlink-sim --example fit -- accuracy        how right the shipped constants are
//! cargo run -p weftlink-sim --example fit -- fit             fits them: prints values to put in src/constants/table.rs
//! cargo run -p weftlink-sim --example fit -- leave-one-out   fits once for each system, without it, and predicts it
//! cargo run -p weftlink-sim --example fit -- rows TABLE      every row of the tables whose names start so
//! ```
//!
//! A second argument (a third after `rows`) names another file. Everything is deterministic.

mod least;
mod report;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use weftlink_sim::accuracy::{self, BANDS, band};
use weftlink_sim::estimate::Machine;
use weftlink_sim::library::predict_on;
use weftlink_sim::published::{self, Row, Use};
use weftlink_sim::{Constants, Setup};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/measurements/published.csv");

/// Rows of a table in a band that a fit looks at: more say nothing new.
const ROWS_MAX: usize = 20;

/// How far off is far, by band: what the same setup differs by between sites, and what is asked for.
const SIGMA: [f64; 4] = [0.2, 0.2, 0.12, 0.05];

/// Systems whose names differ and whose machines do not.
const SAME: [(&str, &str); 17] = [
    ("AWS p5.48xlarge", "AWS p5"),
    ("AWS Batch", "AWS p5"),
    ("AWS p5en", "AWS p5en"),
    ("AWS p3dn", "AWS p3dn"),
    ("Azure ND", "Azure ND A100"),
    ("A100-40GB NVSwitch node (Azure", "Azure ND A100"),
    ("CoreWeave GB200", "CoreWeave GB200"),
    ("OCI BM.GPU.MI300X", "OCI MI300X"),
    ("AMD Accelerator Cloud", "AMD Accelerator Cloud"),
    ("GCP a3-highgpu", "GCP a3-highgpu"),
    ("GCP A4 B200", "GCP A4"),
    ("Together AI B200", "Together AI B200"),
    ("8x H200 node", "8x H200 node"),
    ("8x B200 node", "8x B200 node"),
    ("8x MI300X node", "8x MI300X node"),
    ("8x RTX 4090", "8x RTX 4090"),
    ("2x RTX 2080 Ti", "2x RTX 2080 Ti"),
];

/// The machine that a system's name stands for.
fn machine_name(system: &str) -> &str {
    SAME.iter().find(|(start, _)| system.starts_with(start)).map_or(system, |(_, name)| name)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fit: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = arguments.first().map_or("accuracy", String::as_str);
    let file = arguments.get(if command == "rows" { 2 } else { 1 }).map_or(FILE, String::as_str);
    let rows: Vec<Row> =
        published::read(&std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?)
            .map_err(|error| format!("{file}: {error}"))?
            .into_iter()
            .filter(|(_, purpose)| *purpose == Use::Score)
            .map(|(row, _)| row)
            .collect();
    match command {
        "accuracy" => {
            let predicted = predict_all(&Constants::shipped(), &rows);
            report::errors(&accuracy::by_table(&rows, &predicted), 12);
        }
        "fit" => {
            let fitted = fit(&rows, None);
            report::constants(&fitted);
            report::errors(&accuracy::by_table(&rows, &predict_all(&fitted, &rows)), 12);
        }
        "leave-one-out" => {
            let predicted = leave_one_out(&rows);
            report::errors(&accuracy::by_table(&rows, &predicted), 100);
        }
        "rows" => {
            let start = arguments.get(1).map_or("", String::as_str);
            report::rows(&fit(&rows, None), rows.iter().filter(|row| row.id.starts_with(start)));
        }
        _ => return Err(format!("{command:?}: known are accuracy, fit, leave-one-out and rows").into()),
    }
    Ok(())
}

/// What the model says of each row.
fn predict_all(constants: &Constants, rows: &[Row]) -> Vec<f64> {
    let mut last: Option<(&Setup, Machine)> = None;
    let predicted = rows.iter().map(|row| {
        if last.as_ref().is_none_or(|(setup, _)| **setup != row.setup) {
            last = Some((&row.setup, Machine::new(constants, &row.setup)));
        }
        let machine = last.as_ref().map(|(_, machine)| machine)?;
        predict_on(constants, machine, &row.setup, row.operation, row.bytes)
    });
    predicted
        .map(|prediction| prediction.map_or(f64::NAN, |prediction| prediction.estimate.total_us()))
        .collect()
}

/// Fits all constants that may be fitted, on all rows but those of one system.
fn fit(rows: &[Row], without: Option<&str>) -> Constants {
    let chosen = thin(rows, without);
    let weights = weigh(&chosen);
    least::fit(&weights, |constants| {
        predict_all(constants, &chosen)
            .into_iter()
            .zip(&chosen)
            .map(|(predicted, row)| (predicted / row.measured_us).ln() / SIGMA[band(row.bytes)])
            .collect()
    })
}

/// The rows to fit on.
fn thin(rows: &[Row], without: Option<&str>) -> Vec<Row> {
    let mut tables: BTreeMap<(&str, usize), Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| without != Some(machine_name(&row.system))) {
        tables.entry((&row.id, band(row.bytes))).or_default().push(row);
    }
    let mut chosen = Vec::new();
    for rows in tables.values() {
        let step = rows.len().div_ceil(ROWS_MAX);
        chosen.extend(rows.iter().step_by(step).map(|row| (*row).clone()));
    }
    chosen
}

/// What each row counts: a system's tables in a band count as the root of their number, and rows of a table share.
fn weigh(rows: &[Row]) -> Vec<f64> {
    let mut table_rows: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for row in rows {
        *table_rows.entry((&row.id, band(row.bytes))).or_default() += 1.0;
    }
    let mut tables: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for row in rows {
        let share = 1.0 / table_rows[&(row.id.as_str(), band(row.bytes))];
        *tables.entry((machine_name(&row.system), band(row.bytes))).or_default() += share;
    }
    rows.iter()
        .map(|row| {
            let band = band(row.bytes);
            1.0 / table_rows[&(row.id.as_str(), band)] / tables[&(machine_name(&row.system), band)].sqrt()
        })
        .collect()
}

/// Each row as constants predict it that were fitted without its system.
fn leave_one_out(rows: &[Row]) -> Vec<f64> {
    let mut systems: Vec<&str> = rows.iter().map(|row| machine_name(&row.system)).collect();
    systems.sort_unstable();
    systems.dedup();
    println!("{} systems, {} bands", systems.len(), BANDS.len());
    let next = AtomicUsize::new(0);
    let predicted = Mutex::new(vec![f64::NAN; rows.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(system) = systems.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let constants = fit(rows, Some(system));
                    let all = predict_all(&constants, rows);
                    let mut predicted = predicted.lock().expect("no thread panics while it holds the lock");
                    for (index, row) in rows.iter().enumerate() {
                        if machine_name(&row.system) == *system {
                            predicted[index] = all[index];
                        }
                    }
                }
            });
        }
    });
    predicted.into_inner().expect("all threads have ended well")
}
