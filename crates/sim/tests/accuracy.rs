//! The shipped constants against the published measurements, and checks of what predictions must not depend on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use weftlink_sim::Constants;
use weftlink_sim::accuracy::sites::Sites;
use weftlink_sim::accuracy::{TableError, band, by_table, execute_rows, summary};
use weftlink_sim::corrections::Calibrated;
use weftlink_sim::gpu::Gpu;
use weftlink_sim::library::predict;
use weftlink_sim::published::{Row, Use, read};
use weftlink_sim::setup::{Intra, Library, Network, Operation, Setup};
use weftlink_sim::what_if::WhatIf;

const PUBLISHED: &str = include_str!("../../../testdata/measurements/published.csv");

fn scored(text: &str) -> Vec<Row> {
    let rows = read(text).unwrap();
    rows.into_iter().filter(|(_, purpose)| *purpose == Use::Score).map(|(row, _)| row).collect()
}

/// The rows of the sites that are not frozen.
fn open() -> Vec<Row> {
    let rows = scored(PUBLISHED);
    let sites = Sites::of(&rows);
    let mut number = 0..;
    rows.into_iter().filter(|_| !number.next().is_some_and(|at| sites.is_frozen(sites.of_row(at)))).collect()
}

fn predicted(rows: &[Row]) -> Vec<f64> {
    let constants = Constants::shipped();
    rows.iter()
        .map(|row| predict(&constants, &row.setup, row.operation, row.bytes).unwrap().estimate.total_us())
        .collect()
}

/// Limits in percent by band: median and 90th percentile over tables.
const LIMITS: [(f64, f64); 4] = [(20.0, 60.0), (20.0, 60.0), (12.0, 36.0), (5.0, 18.0)];

fn assert_within_limits(errors: &[TableError]) {
    for (band, (median, ninetieth)) in LIMITS.into_iter().enumerate() {
        let found = summary(errors, band, None);
        assert!(found.median * 1e2 <= median && found.ninetieth * 1e2 <= ninetieth, "band {band}: {found:?}");
    }
}

#[test]
fn errors_of_the_closed_form_are_within_limits() {
    let rows = open();
    assert_within_limits(&by_table(&rows, &predicted(&rows)));
}

/// A few rows of each table and band, of small machines: `fit -- accuracy` executes all rows.
#[test]
fn errors_of_executed_plans_are_within_limits() {
    const ROWS_MAX: usize = 3;
    let mut tables: BTreeMap<(String, usize), Vec<Row>> = BTreeMap::new();
    for row in open().into_iter().filter(|row| row.setup.ranks() <= 16) {
        tables.entry((row.id.clone(), band(row.bytes))).or_default().push(row);
    }
    let few = |table: Vec<Row>| table.clone().into_iter().step_by(table.len().div_ceil(ROWS_MAX));
    let rows: Vec<Row> = tables.into_values().flat_map(few).collect();
    assert!(rows.len() > 500, "{} rows", rows.len());
    let executed: Vec<f64> =
        execute_rows(&Calibrated::default(), &rows, &mut |_| {}).into_iter().map(Result::unwrap).collect();
    assert_within_limits(&by_table(&rows, &executed));
}

/// Names, sources and notes of the whole file are moved to other rows; predictions stay the same.
#[test]
fn names_sources_and_notes_do_not_matter() {
    let mut records: Vec<Vec<String>> = PUBLISHED.lines().map(fields).collect();
    let names = records.remove(0);
    for (column, by) in [("id", 997), ("system", 101), ("source", 1009), ("notes", 13)] {
        let at = names.iter().position(|name| name == column).unwrap();
        let mut values: Vec<String> = records.iter().map(|record| record[at].clone()).collect();
        values.rotate_left(by);
        for (record, value) in records.iter_mut().zip(values) {
            record[at] = value;
        }
    }
    let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
    let line = |record: &Vec<String>| record.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    let text: String = std::iter::once(&names).chain(&records).map(line).collect();
    let (before, after) = (scored(PUBLISHED), scored(&text));
    assert!(before.iter().zip(&after).filter(|(one, other)| one.id != other.id).count() > 1000);
    let bits = |rows: &[Row]| predicted(rows).into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(&before), bits(&after));
    // Execution depends on these alone.
    let known = |rows: &[Row]| {
        rows.iter().map(|row| (row.setup.clone(), row.operation, row.bytes)).collect::<Vec<_>>()
    };
    assert!(known(&before) == known(&after));
}

/// The fields of a line; fields must not span lines.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => all.push(std::mem::take(&mut field)),
            _ => field.push(letter),
        }
    }
    all.push(field);
    all
}

/// Every combination of columns has a prediction.
#[test]
fn every_machine_has_a_prediction() {
    let constants = Constants::shipped();
    for gpu in Gpu::all() {
        for &intra in Intra::ALL {
            for &network in Network::ALL {
                for &operation in Operation::ALL.iter().filter(|operation| operation.is_measured()) {
                    let none = network == Network::None;
                    let setup = Setup {
                        gpu,
                        intra,
                        rack_gpus: 72,
                        links_share: 1.0,
                        pcie_generation: 5,
                        slot_share: 1.0,
                        missing_gpus: 0,
                        gpus_per_node: if intra == Intra::None { 1 } else { 4 },
                        nodes: if none { 1 } else { 4 },
                        network,
                        nics_per_node: u32::from(!none),
                        nic_gbits_per_second: if none { 0.0 } else { 200.0 },
                        library: if intra == Intra::Xgmi { Library::Rccl } else { Library::Nccl },
                        version: None,
                        algorithm: None,
                        protocol: None,
                        launch: None,
                        what_if: WhatIf::default(),
                    };
                    let links = !matches!(intra, Intra::None | Intra::PciePeers | Intra::PcieHost);
                    if (links && gpu.port_line_gbytes_per_second() == 0.0) || setup.ranks() == 1 {
                        continue;
                    }
                    for power in 3..36 {
                        let time =
                            predict(&constants, &setup, operation, 1 << power).unwrap().estimate.total_us();
                        assert!(time.is_finite() && time > 1.0, "{setup:?} {operation:?} 2^{power}: {time}");
                    }
                }
            }
        }
    }
}
