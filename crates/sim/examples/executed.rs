//! Executes every published call and holds it against the closed form and the measurement.
use std::collections::BTreeMap;
use weftlink_sim::execute::Site;
use weftlink_sim::published::{self, Use};
use weftlink_sim::{Constants, accuracy};

fn main() {
    let text = std::fs::read_to_string(std::env::args().nth(1).expect("a file")).expect("readable");
    let rows: Vec<_> = published::read(&text)
        .expect("rows")
        .into_iter()
        .filter(|(_, purpose)| *purpose == Use::Score)
        .map(|(row, _)| row)
        .collect();
    let constants = Constants::shipped();
    let mut tables: BTreeMap<String, Vec<&published::Row>> = BTreeMap::new();
    for row in &rows {
        tables.entry(row.id.clone()).or_default().push(row);
    }
    let mut ratios: BTreeMap<String, Vec<(f64, String)>> = BTreeMap::new();
    let (mut by_engine, mut by_form) = (Vec::new(), Vec::new());
    for (id, rows) in &tables {
        let start = std::time::Instant::now();
        for row in rows {
            let site = Site::new(&constants, &row.setup).expect("a fabric");
            match site.execute(&[(row.operation, row.bytes)]) {
                Ok(done) => {
                    let (time, form) = (done[0].time.0 as f64 / 1e6, done[0].chosen.estimate.total_us());
                    let islands = if row.setup.nodes > 1 { "many" } else { "one" };
                    let key = format!(
                        "{:<14} {:<13} {:<7} {islands}",
                        row.operation.name(),
                        done[0].chosen.algorithm.name(),
                        done[0].chosen.protocol.to_string()
                    );
                    let what = format!(
                        "{id} {} engine {time:.1} form {form:.1} measured {:.1}",
                        row.bytes, row.measured_us
                    );
                    ratios.entry(key).or_default().push((time / form, what));
                    by_engine.push(((*row).clone(), time));
                    by_form.push(((*row).clone(), form));
                }
                Err(error) => println!("{id} {}: {error}", row.bytes),
            }
        }
        if start.elapsed().as_secs() > 2 {
            println!("{id}: {:?}", start.elapsed());
        }
    }
    for (key, mut list) in ratios {
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = |part: f64| list[((list.len() - 1) as f64 * part) as usize].0;
        println!("{key}: {:>4} rows, engine/form {:.2} {:.2} {:.2}", list.len(), at(0.05), at(0.5), at(0.95));
        if (at(0.05) - 1.0).abs() > 0.05 {
            println!("      {}", list[0].1);
        }
        if (at(0.95) - 1.0).abs() > 0.05 {
            println!("      {}", list[list.len() - 1].1);
        }
    }
    for (name, predicted) in [("engine", by_engine), ("closed form", by_form)] {
        println!("{name}");
        let mut errors: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
        for (row, time) in predicted {
            errors
                .entry((accuracy::band(row.bytes), row.id.clone()))
                .or_default()
                .push(accuracy::error(time, row.measured_us));
        }
        for band in 0..4 {
            let mut medians: Vec<f64> = errors
                .iter()
                .filter(|((of, _), _)| *of == band)
                .map(|(_, list)| {
                    let mut list = list.clone();
                    list.sort_by(f64::total_cmp);
                    list[list.len() / 2]
                })
                .collect();
            medians.sort_by(f64::total_cmp);
            println!(
                "  {:<12} median {:.1} % p90 {:.1} % of {} tables",
                accuracy::BANDS[band].0,
                medians[medians.len() / 2] * 100.0,
                medians[medians.len() * 9 / 10] * 100.0,
                medians.len()
            );
        }
    }
}
