//! Executes published calls and compares them with the closed form and the measurement.
//!
//! ```text
//! cargo run -p weftlink-sim --example executed -- FILE [ROWS [SKIPPED]]
//! ```
//!
//! Executes at most `ROWS` rows of each table and band (0: all). Skips tables whose names start with one of the comma-separated prefixes
//! in `SKIPPED`.
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weftlink_sim::execute::Runner;
use weftlink_sim::published::{self, Row, Use};
use weftlink_sim::{Constants, accuracy};

struct Done {
    kind: String,
    engine_us: f64,
    form_us: f64,
    took: Duration,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = std::fs::read_to_string(&arguments[0]).expect("readable");
    let rows_max: usize = arguments.get(1).map_or(0, |text| text.parse().expect("a number"));
    let skipped: Vec<&str> = arguments.get(2).map_or(Vec::new(), |text| text.split(',').collect());
    let mut tables: BTreeMap<(String, usize), Vec<Row>> = BTreeMap::new();
    for (row, purpose) in published::read(&text).expect("rows") {
        if purpose == Use::Score && !skipped.iter().any(|start| row.id.starts_with(start)) {
            tables.entry((row.id.clone(), accuracy::band(row.bytes))).or_default().push(row);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for table in tables.into_values() {
        let step = if rows_max == 0 { 1 } else { table.len().div_ceil(rows_max) };
        rows.extend(table.into_iter().step_by(step));
    }
    let mut setups: Vec<Vec<usize>> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        match setups.iter_mut().find(|other| rows[other[0]].setup == row.setup) {
            Some(same) => same.push(index),
            None => setups.push(vec![index]),
        }
    }
    let constants = Constants::shipped();
    let done: Mutex<Vec<Option<Done>>> = Mutex::new(rows.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(of_setup) = setups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let runner = Runner::new(&constants, &rows[of_setup[0]].setup).expect("a fabric");
                    for &index in of_setup {
                        let row = &rows[index];
                        let start = Instant::now();
                        let executed = match runner.execute(&[(row.operation, row.bytes)]) {
                            Ok(executed) => executed,
                            Err(error) => {
                                println!("{} {}: {error}", row.id, row.bytes);
                                continue;
                            }
                        };
                        let chosen = &executed[0].chosen;
                        done.lock().expect("unpoisoned")[index] = Some(Done {
                            kind: format!(
                                "{:<14} {:<13} {:<7} {}",
                                row.operation.name(),
                                chosen.algorithm.name(),
                                chosen.protocol.to_string(),
                                if row.setup.nodes > 1 { "many" } else { "one" }
                            ),
                            engine_us: executed[0].time.us(),
                            form_us: chosen.estimate.total_us(),
                            took: start.elapsed(),
                        });
                        if start.elapsed().as_secs_f64() > 2.0 {
                            println!("{} {} took {:?}", row.id, row.bytes, start.elapsed());
                        }
                    }
                }
            });
        }
    });
    let done = done.into_inner().expect("unpoisoned");
    let (mut kept, mut by_engine, mut by_form) = (Vec::new(), Vec::new(), Vec::new());
    let mut ratios: BTreeMap<&str, Vec<(f64, String)>> = BTreeMap::new();
    let mut took = Duration::ZERO;
    for (row, done) in rows.iter().zip(&done) {
        let Some(done) = done else { continue };
        let what = format!(
            "{} {} engine {:.1} form {:.1} measured {:.1}",
            row.id, row.bytes, done.engine_us, done.form_us, row.measured_us
        );
        ratios.entry(&done.kind).or_default().push((done.engine_us / done.form_us, what));
        kept.push(row.clone());
        by_engine.push(done.engine_us);
        by_form.push(done.form_us);
        took += done.took;
    }
    for (kind, mut list) in ratios {
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = |part: f64| list[((list.len() - 1) as f64 * part).round() as usize].0;
        println!(
            "{kind}: {:>4} rows, engine/form {:.2} {:.2} {:.2}",
            list.len(),
            at(0.05),
            at(0.5),
            at(0.95)
        );
        for extreme in [&list[0], &list[list.len() - 1]] {
            if (extreme.0 - 1.0).abs() > 0.05 {
                println!("      {}", extreme.1);
            }
        }
    }
    for (name, predicted) in [("engine", by_engine), ("closed form", by_form)] {
        let errors = accuracy::by_table(&kept, &predicted);
        println!("{name}");
        for (band, (name, _)) in accuracy::BANDS.iter().enumerate() {
            let found = accuracy::summary(&errors, band, None);
            println!(
                "  {name:<12} {:.1} % ({:.1} %) of {} tables",
                found.median * 1e2,
                found.ninetieth * 1e2,
                found.tables
            );
        }
    }
    println!("{} rows in {took:?}", kept.len());
}
