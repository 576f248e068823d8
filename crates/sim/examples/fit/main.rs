//! Fits the constants of the model to published measurements, and computes its errors on machines outside the fit.
//!
//! ```text
//! cargo run -p weftlink-sim --example fit -- accuracy        errors of the shipped constants
//! cargo run -p weftlink-sim --example fit -- form            errors of the closed form
//! cargo run -p weftlink-sim --example fit -- fit             fits the constants; prints values for crates/plan/src/cost/constants/table.rs
//! cargo run -p weftlink-sim --example fit -- leave-one-out   fits without each site in turn and predicts that site;
//!                                                            writes testdata/measurements/left_out.csv, from which `make bless`
//!                                                            makes docs/accuracy.md and the intervals of predictions
//! cargo run -p weftlink-sim --example fit -- calibrate       fits without each site in turn, calibrates on some of the tables of a system
//!                                                            there, and predicts its other tables
//! cargo run -p weftlink-sim --example fit -- frozen          errors of the shipped constants on the frozen sites, which no other
//!                                                            command looks at; `frozen calibrate` calibrates there, and
//!                                                            `frozen names` lists them
//! cargo run -p weftlink-sim --example fit -- rows TABLE      prints every row of the tables with this prefix
//! ```
//!
//! A second argument (a third after `rows`) names another file. Everything is deterministic.
//!
//! Predictions are executed plans. A fit needs a million of them, so it multiplies the closed form by the ratio of execution to closed form
//! under the previous constants: close to one, and recomputed after each round.

mod report;
mod study;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

use weftlink_sim::accuracy::sites::{self, Sites};
use weftlink_sim::accuracy::{self, BANDS, band};
use weftlink_sim::calibrate::least_squares::{self, Aim, fitted_constants};
use weftlink_sim::estimate::Machine;
use weftlink_sim::library::predict_on;
use weftlink_sim::parallel::in_parallel;
use weftlink_sim::published::{self, Row, Use};
use weftlink_sim::{Constants, Setup};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/measurements/published.csv");

/// Maximum number of rows of a table and band in a fit.
const ROWS_MAX: usize = 20;

/// Number of rounds of fitting and execution.
const ROUNDS: usize = 2;

/// Errors above this part of sigma count by their absolute value.
const CLOSE: f64 = 0.25;

/// Scale of errors by band: the difference of the same setup between sites, and the accuracy required.
const SIGMA: [f64; 4] = [0.2, 0.2, 0.12, 0.05];

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
    let file = match command {
        "frozen" => None,
        "rows" => arguments.get(2),
        _ => arguments.get(1),
    };
    let file = file.map_or(FILE, String::as_str);
    let rows: Vec<Row> =
        published::read(&std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?)
            .map_err(|error| format!("{file}: {error}"))?
            .into_iter()
            .filter(|(_, purpose)| *purpose == Use::Score)
            .map(|(row, _)| row)
            .collect();
    let shipped = Constants::shipped();
    let sites = Sites::of(&rows);
    let (frozen, open): (Vec<usize>, Vec<usize>) =
        (0..rows.len()).partition(|index| sites.is_frozen(sites.of_row(*index)));
    if command == "frozen" {
        for (site, name) in sites.names().iter().enumerate().filter(|(site, _)| sites.is_frozen(*site)) {
            let count = frozen.iter().filter(|index| sites.of_row(**index) == site).count();
            println!("frozen: {name} ({count} rows)");
        }
        let rows: Vec<Row> = frozen.iter().map(|index| rows[*index].clone()).collect();
        match arguments.get(1).map(String::as_str) {
            Some("names") => {}
            Some("calibrate") => study::run(&rows, &[((0..rows.len()).collect(), shipped)]),
            _ => {
                let times = execute_all(&shipped, &rows);
                report::errors(&accuracy::by_table(&rows, &times), 0);
                report::coverage(&rows, &times);
            }
        }
        return Ok(());
    }
    let rows: Vec<Row> = open.into_iter().map(|index| rows[index].clone()).collect();
    match command {
        "accuracy" => report::errors(&accuracy::by_table(&rows, &execute_all(&shipped, &rows)), 40),
        "form" => report::errors(&accuracy::by_table(&rows, &predict_all(&shipped, &rows)), 12),
        "fit" => {
            let mut fitted = shipped;
            for round in 1..=ROUNDS {
                fitted = fit(&rows, &ratios(&fitted, &rows), None);
                println!("round {round}");
                report::constants(&fitted);
                report::errors(&accuracy::by_table(&rows, &execute_all(&fitted, &rows)), 12);
            }
        }
        "leave-one-out" => {
            let executed = execute_all(&shipped, &rows);
            let forms = predict_all(&shipped, &rows);
            let ratios: Vec<f64> =
                executed.iter().zip(forms).map(|(executed, form)| executed / form).collect();
            let left_out = predict_left_out(&rows, &leave_one_out(&rows, &ratios));
            report::errors(&accuracy::by_table(&rows, &executed), 0);
            report::errors(&accuracy::by_table(&rows, &left_out), 100);
            if file == FILE {
                report::write(&rows, &executed, &left_out)?;
            }
        }
        "calibrate" => {
            let ratios = ratios(&shipped, &rows);
            study::run(&rows, &leave_one_out(&rows, &ratios));
        }
        "rows" => {
            let start = arguments.get(1).map_or("", String::as_str);
            let rows: Vec<Row> = rows.into_iter().filter(|row| row.id.starts_with(start)).collect();
            report::rows(&shipped, &rows, &execute_all(&shipped, &rows));
        }
        _ => {
            return Err(format!(
                "unknown command {command:?}; use accuracy, form, fit, leave-one-out, calibrate, frozen or rows"
            )
            .into());
        }
    }
    Ok(())
}

/// Time of each row by the closed form.
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

/// Time of each row by execution.
fn execute_all(constants: &Constants, rows: &[Row]) -> Vec<f64> {
    let groups = accuracy::by_setup(rows);
    let mut times = vec![f64::NAN; rows.len()];
    let each = in_parallel(&groups, |group| {
        let of_group: Vec<Row> = group.iter().map(|index| rows[*index].clone()).collect();
        accuracy::predict_rows(&constants.clone().into(), &of_group, &mut |_| {})
    });
    for (group, of_group) in groups.iter().zip(each) {
        for (index, time) in group.iter().zip(of_group) {
            times[*index] = time;
        }
    }
    times
}

/// Ratio of execution to closed form of each row.
fn ratios(constants: &Constants, rows: &[Row]) -> Vec<f64> {
    let forms = predict_all(constants, rows);
    execute_all(constants, rows).into_iter().zip(forms).map(|(executed, form)| executed / form).collect()
}

/// Fits the free constants on all rows but those of one site.
fn fit(rows: &[Row], ratios: &[f64], without: Option<&[usize]>) -> Constants {
    let chosen = thin(rows, without.unwrap_or_default());
    let ratios: Vec<f64> = chosen.iter().map(|index| ratios[*index]).collect();
    let chosen: Vec<Row> = chosen.into_iter().map(|index| rows[index].clone()).collect();
    let weights = weigh(&chosen);
    let aim = Aim { weights: &weights, close: CLOSE, searches: least_squares::ITERATIONS_MAX };
    least_squares::fit(&Constants::start(), &fitted_constants(), aim, |constants| {
        predict_all(constants, &chosen)
            .into_iter()
            .zip(&ratios)
            .zip(&chosen)
            .map(|((form, ratio), row)| libm::log(form * ratio / row.measured_us) / SIGMA[band(row.bytes)])
            .collect()
    })
}

/// The rows to fit on; `without` are the indices of rows to leave out, in order.
fn thin(rows: &[Row], without: &[usize]) -> Vec<usize> {
    let mut tables: BTreeMap<(&str, usize), Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        if without.binary_search(&index).is_err() {
            tables.entry((&row.id, band(row.bytes))).or_default().push(index);
        }
    }
    let mut chosen = Vec::new();
    for rows in tables.values() {
        chosen.extend(rows.iter().step_by(rows.len().div_ceil(ROWS_MAX)));
    }
    chosen
}

/// Weight of each row: a system's tables in a band weigh as the square root of their number, and the rows of a table share its weight.
fn weigh(rows: &[Row]) -> Vec<f64> {
    let mut table_rows: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for row in rows {
        *table_rows.entry((&row.id, band(row.bytes))).or_default() += 1.0;
    }
    let mut tables: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for row in rows {
        let share = 1.0 / table_rows[&(row.id.as_str(), band(row.bytes))];
        *tables.entry((sites::machine(&row.system), band(row.bytes))).or_default() += share;
    }
    rows.iter()
        .map(|row| {
            let band = band(row.bytes);
            1.0 / table_rows[&(row.id.as_str(), band)] / tables[&(sites::machine(&row.system), band)].sqrt()
        })
        .collect()
}

/// The rows of each site, and the constants fitted without them.
fn leave_one_out(rows: &[Row], ratios: &[f64]) -> Vec<(Vec<usize>, Constants)> {
    let sites = Sites::of(rows);
    println!("{} sites, {} bands", sites.names().len(), BANDS.len());
    let of_sites: Vec<Vec<usize>> = (0..sites.names().len())
        .map(|site| (0..rows.len()).filter(|index| sites.of_row(*index) == site).collect())
        .collect();
    let constants = in_parallel(&of_sites, |of_site: &Vec<usize>| fit(rows, ratios, Some(of_site)));
    of_sites.into_iter().zip(constants).collect()
}

/// Time of each row by execution with the constants of its site.
fn predict_left_out(rows: &[Row], sites: &[(Vec<usize>, Constants)]) -> Vec<f64> {
    let each = in_parallel(sites, |(of_site, constants)| {
        let left_out: Vec<Row> = of_site.iter().map(|index| rows[*index].clone()).collect();
        accuracy::predict_rows(&constants.clone().into(), &left_out, &mut |_| {})
    });
    let mut predicted = vec![f64::NAN; rows.len()];
    for ((of_site, _), times) in sites.iter().zip(each) {
        for (index, time) in of_site.iter().zip(times) {
            predicted[*index] = time;
        }
    }
    predicted
}
