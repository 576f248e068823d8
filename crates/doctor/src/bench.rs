//! Output of nccl-tests and rccl-tests: is this right for this machine?
//!
//! Each measured call is compared with the prediction for the fabric and with the intervals in which half and nine of ten such machines
//! are expected. Without a fabric, the log is still compared with itself: wrong values, sizes at which the bandwidth drops, in place
//! against out of place; and several logs with each other.
//!
//! Deliberately absent: fitting constants to the machine, which `weft sim calibrate` does.

mod findings;
mod text;

use serde::Serialize;
use weftlink_fabric::Fabric;
use weftlink_plan::Kind;
use weftlink_sim::accuracy::intervals::Intervals;
use weftlink_sim::calibrate::log::{self, Machine, Table as Read};
use weftlink_sim::calibrate::outliers::{Run, outliers};
use weftlink_sim::library::LibrarySpec;
use weftlink_sim::predict::{Case, Options, kinds, operation};
use weftlink_sim::setup::{Launch, Operation};

use crate::finding::{Outcome, Report};

/// Rows of a table that are predicted; of more, some are left out evenly.
const ROWS_MAX: usize = 64;
/// Logs that are compared.
const LOGS_MAX: usize = 4096;

/// A log.
#[derive(Clone, Copy, Debug)]
pub struct Input<'t> {
    /// Its name, for messages. It also names the collective where an old log does not.
    pub name: &'t str,
    /// Its text.
    pub text: &'t str,
    /// The collective, if the caller knows it.
    pub collective: Option<Operation>,
}

/// What logs say, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explained {
    /// Their tables.
    pub tables: Vec<Table>,
    /// What is wrong.
    pub report: Report,
}

/// A table, measured and predicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// The log.
    pub log: String,
    /// The line of its heading.
    pub line: usize,
    /// The collective, as nccl-tests calls it.
    pub collective: &'static str,
    /// Hosts.
    pub hosts: Vec<String>,
    /// Ranks, if the log says how many.
    pub ranks: Option<u32>,
    /// The model of the GPUs, if the log names it.
    pub gpu: Option<String>,
    /// The library that the prediction is of: `nccl 2.21`.
    pub library: Option<String>,
    /// The fabric that was predicted.
    pub fabric: Option<String>,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Bands of sizes.
    pub bands: Vec<Band>,
}

/// A call, measured and predicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The line.
    pub line: usize,
    /// Size.
    pub bytes: u64,
    /// Measured microseconds: out of place, where they were measured.
    pub measured_us: f64,
    /// Bus bandwidth in GB/s.
    pub measured_gb_per_s: Option<f64>,
    /// Microseconds in place.
    pub in_place_us: Option<f64>,
    /// Wrong elements.
    pub wrong: Option<u64>,
    /// The prediction.
    pub predicted: Option<Predicted>,
}

/// The prediction of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Predicted {
    /// Microseconds.
    pub time_us: f64,
    /// Bus bandwidth in GB/s.
    pub gb_per_s: f64,
    /// Algorithm and protocol.
    pub choice: String,
    /// Half of all machines like this are expected between these times.
    pub half_us: Option<(f64, f64)>,
    /// Nine of ten.
    pub most_us: Option<(f64, f64)>,
}

/// Where measured times lie in a band of sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Band {
    /// Its name: `to 64 KiB`.
    pub name: &'static str,
    /// Rows.
    pub rows: usize,
    /// The median of measured over predicted time.
    pub ratio: f64,
    /// Rows within the interval of half of all machines.
    pub in_half: usize,
    /// Rows within the interval of nine of ten.
    pub in_most: usize,
    /// Rows that are slower than that.
    pub slower: usize,
    /// Rows that are faster than that.
    pub faster: usize,
}

/// Explains logs. The options are those of a prediction; a library that they do not name is the one that the log names.
pub fn explain(inputs: &[Input<'_>], fabric: Option<&Fabric>, options: &Options) -> Explained {
    let mut explained = Explained { report: Report::new(subject(inputs)), ..Explained::default() };
    let mut runs = Vec::new();
    for input in inputs.iter().take(LOGS_MAX) {
        let read = match log::read(input.text, input.collective, log::of_name(input.name)) {
            Ok(read) => read,
            Err(error) => {
                let what = format!("{} cannot be read: {error}", input.name);
                let needs = "the text that nccl-tests or rccl-tests prints".to_owned();
                explained.report.add("bench-log", vec![Outcome::Unknown { what, needs }]);
                continue;
            }
        };
        for note in read.notes {
            let what = format!("{}: {note}", input.name);
            explained
                .report
                .add("bench-log", vec![Outcome::Unknown { what, needs: "a complete table".to_owned() }]);
        }
        for table in read.tables {
            let calls = table.calls.iter().map(|(bytes, time_us)| (0, (table.operation, *bytes, *time_us)));
            let hosts = table.machine.hosts.clone();
            let named = if hosts.is_empty() { vec![input.name.to_owned()] } else { hosts };
            runs.push(Run { hosts: named, calls: calls.collect() });
            let mut found = of_table(input.name, &table);
            let outcomes = predict(&mut found, &table, fabric, options);
            explained.report.add("bench-prediction", outcomes);
            findings::of_table(&found, &mut explained.report);
            explained.tables.push(found);
        }
    }
    let enough = runs.len() > 2;
    findings::of_hosts(&outliers(&runs), runs.len(), enough, &mut explained.report);
    explained
}

fn subject(inputs: &[Input<'_>]) -> String {
    match inputs {
        [input] => input.name.to_owned(),
        inputs => format!("{} logs", inputs.len()),
    }
}

/// A table without its prediction.
fn of_table(name: &str, table: &Read) -> Table {
    let factor = table.machine.ranks.map(|ranks| table.operation.bus_factor(ranks));
    let row = |((bytes, time_us), detail): (&(u64, f64), &log::Detail)| Row {
        line: detail.line,
        bytes: *bytes,
        measured_us: *time_us,
        measured_gb_per_s: factor.map(|factor| *bytes as f64 / time_us / 1e3 * factor),
        in_place_us: detail.in_place_us,
        wrong: detail.wrong,
        predicted: None,
    };
    Table {
        log: name.to_owned(),
        line: table.line,
        collective: table.operation.name(),
        hosts: table.machine.hosts.clone(),
        ranks: table.machine.ranks,
        gpu: table.machine.gpu.clone(),
        rows: table.calls.iter().zip(&table.details).map(row).collect(),
        ..Table::default()
    }
}

/// The collective of an operation.
fn kind_of(wanted: Operation) -> Option<Kind> {
    kinds().find(|kind| operation(*kind) == Ok(wanted))
}

/// Adds the predictions of a table's calls, or says why there are none.
fn predict(found: &mut Table, table: &Read, fabric: Option<&Fabric>, options: &Options) -> Vec<Outcome> {
    let unknown = |what: String, needs: &str| vec![Outcome::Unknown { what, needs: needs.to_owned() }];
    let of = format!("whether {} of {} is as fast as it should be", found.collective, found.log);
    let Some(fabric) = fabric else {
        return unknown(of, "the machine: --expect MACHINE, such as hgx-h100");
    };
    let gpus = fabric.gpus().len();
    if let Some(ranks) = table.machine.ranks.filter(|ranks| *ranks as usize != gpus) {
        let what = format!("{of}: it has {ranks} ranks, and {} has {gpus} GPUs", fabric.name());
        return unknown(what, "a machine with as many GPUs: --expect \"2x hgx-h100 + 8x ndr\"");
    }
    let Some(kind) = kind_of(table.operation) else {
        return unknown(of, "a collective that is predicted");
    };
    let options = with_log(options, &table.machine);
    let rows = Case::new(kind, fabric, &options).and_then(|case| {
        let runner = case.runner()?;
        let step = found.rows.len().div_ceil(ROWS_MAX).max(1);
        let predicted: Vec<_> = (0..found.rows.len())
            .filter(|at| at % step == 0 || at + 1 == found.rows.len())
            .filter_map(|at| {
                case.check(found.rows[at].bytes).ok()?;
                Some((at, case.row(&runner, found.rows[at].bytes)))
            })
            .collect();
        let version = case.setup.version.map_or_else(String::new, |version| format!(" {version}"));
        Ok((format!("{}{version}", case.setup.library.name()), case.setup.ranks(), predicted))
    });
    let (library, ranks, rows) = match rows {
        Ok(rows) => rows,
        Err(error) => return unknown(format!("{of}: {error}"), "a machine and library that are modelled"),
    };
    (found.library, found.fabric) = (Some(library), Some(fabric.name().to_owned()));
    let factor = table.operation.bus_factor(ranks);
    for row in &mut found.rows {
        row.measured_gb_per_s = Some(row.bytes as f64 / row.measured_us / 1e3 * factor);
    }
    for (at, row) in rows {
        let Ok(row) = row else { continue };
        let Intervals { half_us, most_us } =
            row.intervals.unwrap_or(Intervals { half_us: (0.0, 0.0), most_us: (0.0, 0.0) });
        let has = row.intervals.is_some();
        found.rows[at].predicted = Some(Predicted {
            time_us: row.time_us(),
            gb_per_s: row.busbw_gb_per_s,
            choice: choice(&row),
            half_us: has.then_some(half_us),
            most_us: has.then_some(most_us),
        });
    }
    found.bands = findings::bands(&found.rows);
    if !found.rows.iter().any(|row| row.predicted.is_some()) {
        return unknown(of, "sizes that fit in the memory of a GPU");
    }
    Vec::new()
}

fn choice(row: &weftlink_sim::predict::Row) -> String {
    format!("{} {}", row.execution.algorithm, row.execution.chosen.protocol)
}

/// The options with the library and the launcher that a log names.
fn with_log(options: &Options, machine: &Machine) -> Options {
    let named =
        machine.library.map(|library| LibrarySpec { library, version: machine.version, program: None });
    let launch = machine.ranks.map(|_| match machine.one_thread {
        true => Launch::OneThread,
        false => Launch::ProcessPerGpu,
    });
    Options {
        library: options.library.clone().or(named),
        launch: options.launch.or(launch),
        ..options.clone()
    }
}
