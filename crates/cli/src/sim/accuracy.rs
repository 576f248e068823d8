//! `weft sim accuracy FILE.csv`: predictions beside measurements.
//!
//! Threads predict the rows of one setup together; results do not depend on the number of threads. With `--out`, each row is
//! written as soon as all rows before it are known, so that an interrupted run keeps them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use weftlink_sim::accuracy::evidence;
use weftlink_sim::accuracy::intervals::Intervals;
use weftlink_sim::accuracy::{
    BANDS, Class, TableError, by_setup, by_table, error, predict_rows, quantile, summary,
};
use weftlink_sim::constants::COUNT;
use weftlink_sim::corrections::Calibrated;
use weftlink_sim::parallel::in_parallel;
use weftlink_sim::published::{self, Row, Use};

use super::calibrate_on::{self, CalibrateOn, calibrated};
use super::collective::create;
use crate::calibration::CalibrationArgs;
use crate::progress::Progress;
use crate::screen::{self, say};
use crate::table::Table;
use crate::{Failure, counted};

/// Compare predictions with a file of measurements
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft sim accuracy measured.csv
  weft sim accuracy measured.csv --out predicted.csv --worst 40
  weft sim accuracy measured.csv --calibrate-on all_reduce
  weft sim accuracy measured.csv --calibrate-on fewest-nodes

The first line names the columns, in any order: id, collective, size_bytes, time_us, gpu_id, intra, pcie_gen, gpus_per_node, \
nodes, net, nics_per_node, nic_gbps, library, library_version; optional are system, algo, proto and use (score, robustness or \
skip). id names the table of a row and system its machine; predictions use neither, nor any other column.

With --calibrate-on, each system is predicted with constants calibrated on a part of its own tables, and errors, and the rows of --out, are those of its \
other tables: of other collectives, or with more nodes.

The error of a row is |predicted / measured - 1|. A table (the rows with one id) counts once in each band of sizes, with the \
median of its rows.")]
pub(super) struct Args {
    /// A CSV file with a row for each measurement; the columns are listed below
    file: PathBuf,
    /// Write the predictions of every row that is not skipped as CSV: id, collective, size_bytes, predicted_us, low50_us, high50_us,
    /// low90_us, high90_us
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Calibrate each system on its tables of this collective, or on those with the `fewest-nodes`, and predict its other tables
    #[arg(long, value_name = "COLLECTIVE|fewest-nodes", value_parser = CalibrateOn::read, conflicts_with = "calibration")]
    calibrate_on: Option<CalibrateOn>,
    /// Print the ROWS rows with the largest errors
    #[arg(long, value_name = "ROWS", default_value_t = 20)]
    worst: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    calibration: CalibrationArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {name}"))
        .map_err(Failure::Misuse)?;
    let rows = published::read(&text).with_context(|| name.to_string()).map_err(Failure::Misuse)?;
    if rows.is_empty() {
        return Err(Failure::misuse(anyhow!("{name} has no row with enough columns filled to predict it")));
    }
    let (mut all, mut uses): (Vec<Row>, Vec<Use>) = rows.into_iter().unzip();
    let one = Arc::new(args.calibration.calibrated());
    let mut models = vec![Arc::clone(&one); all.len()];
    let mut uncalibrated = None;
    if let Some(on) = args.calibrate_on {
        let rows = all.into_iter().zip(uses).filter(|(_, purpose)| *purpose == Use::Score);
        let rows: Vec<Row> = rows.map(|(row, _)| row).collect();
        (all, models) = calibrated(&rows, on, &one.constants);
        uses = vec![Use::Score; all.len()];
        if all.is_empty() {
            return Err(Failure::misuse(anyhow!(
                "{name} has no system (column system) with tables to calibrate on and others"
            )));
        }
        uncalibrated = Some(predict(&vec![one; all.len()], &all, None)?);
    }
    let out = match &args.out {
        Some(path) => Some((create(path)?, path)),
        None => None,
    };
    let predicted = predict(&models, &all, out)?;
    let scored: Vec<usize> = (0..all.len()).filter(|index| uses[*index] == Use::Score).collect();
    let of_scored = |times: &[f64]| scored.iter().map(|index| times[*index]).collect::<Vec<_>>();
    let times = of_scored(&predicted);
    let uncalibrated = uncalibrated.map(|times| of_scored(&times));
    let scored: Vec<Row> = scored.iter().map(|index| all[*index].clone()).collect();
    let tables = by_table(&scored, &times);
    let before = uncalibrated.map(|times| by_table(&scored, &times));
    if args.json {
        let mut value = document(&scored, &times, &tables);
        if let Some(before) = before {
            value["uncalibrated"] = bands(&before, None);
        }
        return Ok(crate::print_json(&value)?);
    }
    if let Some(before) = &before {
        calibrate_on::print(&mut screen::stdout(), before, &tables)?;
    }
    Ok(print(args.worst, &scored, &times, &tables)?)
}

/// Rows to predict together: of one setup, with the same calibration.
fn by_setup_and_model(rows: &[Row], models: &[Arc<Calibrated>]) -> Vec<Vec<usize>> {
    let mut groups = Vec::new();
    for group in by_setup(rows) {
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for index in group {
            match parts.iter_mut().find(|part| Arc::ptr_eq(&models[part[0]], &models[index])) {
                Some(part) => part.push(index),
                None => parts.push(vec![index]),
            }
        }
        groups.extend(parts);
    }
    groups
}

/// The first line of the file of predictions.
const HEADING: &str = "id,collective,size_bytes,predicted_us,low50_us,high50_us,low90_us,high90_us";

/// What is predicted, in microseconds, with the file that it is written to.
struct Predicted<'r> {
    rows: &'r [Row],
    times: Vec<Option<f64>>,
    written: usize,
    out: Option<BufWriter<File>>,
    progress: Progress,
    failure: Option<anyhow::Error>,
}

impl Predicted<'_> {
    fn add(&mut self, group: &[usize], times: Vec<f64>) {
        for (index, time) in group.iter().zip(times) {
            self.times[*index] = Some(time);
        }
        let known = self.times.iter().flatten().count();
        self.progress.show(&format!("{known} of {} rows predicted", self.rows.len()));
        let Some(out) = &mut self.out else { return };
        let mut text = String::new();
        while let Some(Some(time)) = self.times.get(self.written) {
            let row = &self.rows[self.written];
            let outside = evidence::outside(&row.setup, row.operation);
            let bounds = match evidence::intervals(&row.setup, row.bytes, *time, &outside) {
                Some(Intervals { half_us, most_us }) => {
                    format!("{:.3},{:.3},{:.3},{:.3}", half_us.0, half_us.1, most_us.0, most_us.1)
                }
                None => ",,,".to_owned(),
            };
            let (id, collective) = (quoted(&row.id), row.operation.name());
            text += &format!("{id},{collective},{},{time:.3},{bounds}\n", row.size);
            self.written += 1;
        }
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            self.failure.get_or_insert(error.into());
        }
    }
}

fn predict(
    models: &[Arc<Calibrated>],
    rows: &[Row],
    out: Option<(File, &PathBuf)>,
) -> Result<Vec<f64>, Failure> {
    let path = out.as_ref().map(|(_, path)| path.display().to_string()).unwrap_or_default();
    let mut out = out.map(|(file, _)| BufWriter::new(file));
    let heading = out.as_mut().map_or(Ok(()), |out| writeln!(out, "{HEADING}"));
    heading.with_context(|| format!("cannot write {path}")).map_err(Failure::Finding)?;
    let groups = by_setup_and_model(rows, models);
    let predicted = Mutex::new(Predicted {
        rows,
        times: vec![None; rows.len()],
        written: 0,
        out,
        progress: Progress::new(),
        failure: None,
    });
    in_parallel(&groups, |group| {
        let of_setup: Vec<Row> = group.iter().map(|index| rows[*index].clone()).collect();
        let times = predict_rows(&models[group[0]], &of_setup, &mut |_| {});
        predicted.lock().unwrap_or_else(PoisonError::into_inner).add(group, times);
    });
    let mut predicted = predicted.into_inner().unwrap_or_else(PoisonError::into_inner);
    predicted.progress.clear();
    if let Some(error) = predicted.failure {
        return Err(Failure::Finding(error));
    }
    Ok(predicted.times.into_iter().flatten().collect())
}

/// A field of a CSV file.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn print(worst: usize, rows: &[Row], times: &[f64], tables: &[TableError]) -> io::Result<()> {
    let mut out = screen::stdout();
    say!(
        out,
        "{} of {} tables, {COUNT} constants; median (90th percentile) of tables' errors in percent",
        counted(rows.len(), "row"),
        tables.iter().map(|table| &table.id).collect::<std::collections::BTreeSet<_>>().len(),
    )?;
    let [first, second, third, fourth] = BANDS.map(|(name, _)| name);
    let mut table = Table::new(["class", first, second, third, fourth]);
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        let cell = |band| {
            let found = summary(tables, band, class);
            match found.tables {
                0 => "-".to_owned(),
                tables => {
                    format!("{:.1} ({:.0}) of {tables}", found.median * 1e2, found.ninetieth * 1e2)
                }
            }
        };
        table.row([class.map_or("all", Class::name).to_owned(), cell(0), cell(1), cell(2), cell(3)]);
    }
    writeln!(out, "{table}")?;
    let within = within(rows, times);
    if let Some((rows, [half, most])) = within {
        let percent = |held: usize| 100.0 * held as f64 / rows as f64;
        say!(
            out,
            "of {}, {:.0}% are in their 50% interval and {:.0}% in their 90% interval",
            counted(rows, "row"),
            percent(half),
            percent(most)
        )?;
        writeln!(out)?;
    }
    writeln!(out, "systems, worst first")?;
    let mut table = Table::new(["system", "tables", "median", "worst"]);
    for (system, errors) in systems(tables) {
        let worst = errors.iter().copied().fold(0.0, f64::max);
        let count = errors.len().to_string();
        table.row([
            system.to_owned(),
            count,
            format!("{:.1}", quantile(errors, 0.5) * 1e2),
            format!("{:.1}", worst * 1e2),
        ]);
    }
    writeln!(out, "{table}")?;
    writeln!(out, "rows, worst first")?;
    let mut table = Table::new(["id", "collective", "bytes", "measured us", "predicted us", "error"]);
    for index in worst_rows(rows, times).into_iter().take(worst) {
        let (row, time) = (&rows[index], times[index]);
        table.row([
            row.id.clone(),
            row.operation.name().to_owned(),
            row.bytes.to_string(),
            format!("{:.2}", row.measured_us),
            format!("{time:.2}"),
            format!("{:.1}", error(time, row.measured_us) * 1e2),
        ]);
    }
    write!(out, "{table}")
}

/// The rows with intervals, and how many are in each.
fn within(rows: &[Row], times: &[f64]) -> Option<(usize, [usize; 2])> {
    let (mut all, mut held) = (0, [0; 2]);
    for (row, time) in rows.iter().zip(times) {
        let outside = evidence::outside(&row.setup, row.operation);
        let Some(of) = evidence::intervals(&row.setup, row.bytes, *time, &outside) else { continue };
        all += 1;
        for (held, (low, high)) in held.iter_mut().zip([of.half_us, of.most_us]) {
            *held += usize::from((low..=high).contains(&row.measured_us));
        }
    }
    (all > 0).then_some((all, held))
}

/// The errors of each system's tables, the worst median first.
fn systems(tables: &[TableError]) -> Vec<(&str, Vec<f64>)> {
    let mut systems: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for table in tables {
        systems.entry(&table.system).or_default().push(table.error);
    }
    let mut systems: Vec<_> = systems.into_iter().collect();
    systems.sort_by(|(_, a), (_, b)| quantile(b.clone(), 0.5).total_cmp(&quantile(a.clone(), 0.5)));
    systems
}

fn worst_rows(rows: &[Row], times: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let off = |index: usize| error(times[index], rows[index].measured_us);
    order.sort_by(|a, b| off(*b).total_cmp(&off(*a)));
    order
}

/// The errors of tables in each band.
fn bands(tables: &[TableError], class: Option<Class>) -> Value {
    let each = (0..BANDS.len()).map(|band| {
        let found = summary(tables, band, class);
        json!({
            "band": BANDS[band].0,
            "tables": found.tables,
            "median": found.median,
            "ninetieth_percentile": found.ninetieth,
        })
    });
    each.collect()
}

fn document(rows: &[Row], times: &[f64], tables: &[TableError]) -> Value {
    let classes: serde_json::Map<String, Value> =
        Class::ALL.into_iter().map(|class| (class.name().to_owned(), bands(tables, Some(class)))).collect();
    let systems: Vec<Value> = systems(tables)
        .into_iter()
        .map(|(system, errors)| {
            json!({ "system": system, "tables": errors.len(), "median": quantile(errors, 0.5) })
        })
        .collect();
    let worst: Vec<Value> = worst_rows(rows, times)
        .into_iter()
        .map(|index| {
            json!({
                "id": rows[index].id,
                "collective": rows[index].operation.name(),
                "bytes": rows[index].bytes,
                "measured_us": rows[index].measured_us,
                "predicted_us": times[index],
            })
        })
        .collect();
    let within = within(rows, times);
    let within = within.map(|(rows, [half, most])| json!({ "rows": rows, "in_50": half, "in_90": most }));
    json!({
        "constants": COUNT,
        "all": bands(tables, None),
        "classes": classes,
        "systems": systems,
        "rows": worst,
        "intervals": within,
    })
}
