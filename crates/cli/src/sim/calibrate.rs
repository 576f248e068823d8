//! `weft sim calibrate LOG...`: the constants of a machine from its own measurements.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::json;
use weftlink_fabric::Fabric;
use weftlink_plan::Kind;
use weftlink_plan::choose::measured::Memory;
use weftlink_sim::Constants;
use weftlink_sim::accuracy::{BANDS, band, error, quantile};
use weftlink_sim::calibrate::file::Calibration;
use weftlink_sim::calibrate::log::{self, Log};
use weftlink_sim::calibrate::outliers::{Run, outliers};
use weftlink_sim::calibrate::{Measured, Place, Trust, calibrate, predict};
use weftlink_sim::constants::TABLE;
use weftlink_sim::host::Hosts;
use weftlink_sim::library::{LibrarySpec, parse_library};
use weftlink_sim::predict::{Case, Options, operation};
use weftlink_sim::published::{self, Use};
use weftlink_sim::setup::{Launch, Library, Operation};

use super::text;
use crate::progress::Progress;
use crate::screen::{self, say};
use crate::table::Table as Lines;
use crate::{Failure, counted};

/// Calibrate the model with measurements of your own machine
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft sim calibrate all_reduce.log --fabric hgx-h100 -o mine.toml
  weft sim calibrate all_gather=job.out allreduce.out --fabric \"2x hgx-h100 + 8x ndr\" -o mine.toml
  weft sim calibrate 1node.log 2nodes.log --fabric hgx-h100 --fabric \"2x hgx-h100 + 8x ndr\" -o mine.toml
  weft bench all-reduce -n 4 --json > bench.json; weft sim calibrate bench.json -o cores.toml
  weft sim all-gather hgx-h100 --calibration mine.toml

A LOG is the output of nccl-tests or rccl-tests (any version, several programs in one file), the JSON of `weft bench`, or CSV: \
with the columns of `weft sim accuracy`, or with collective, size_bytes and time_us for --fabric.

A constant that no measurement depends on keeps its shipped value. Give logs of several hosts to find one that is slower than the others; \
its logs are left out.")]
pub(super) struct Args {
    /// Files of measurements; COLLECTIVE=FILE for a log that does not say what it measured
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<String>,
    /// The machine that was measured, as for `weft topo`. Several for logs with different numbers of GPUs
    #[arg(long, value_name = "FABRIC")]
    fabric: Vec<String>,
    /// The GPU model, which the output of `nvidia-smi topo -m` does not contain
    #[arg(long, value_name = "MODEL")]
    gpu: Option<String>,
    /// The library that was measured [default: as the log says, or the newest]
    #[arg(long, value_name = "NAME[:VERSION]")]
    library: Option<String>,
    /// Write the constants to FILE
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was read from the files.
#[derive(Default)]
struct Source {
    /// The machines and libraries, with their names.
    places: Vec<Place>,
    names: Vec<(String, String)>,
    /// The tables, in words.
    tables: Vec<String>,
    calls: Vec<Measured>,
    /// Per file, for the search for slow hosts, with the tables that are its.
    runs: Vec<(Run, Vec<usize>)>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let library = args.library.as_deref().map(parse_library).transpose().map_err(Failure::misuse)?;
    let fabrics: Vec<Fabric> = args
        .fabric
        .iter()
        .map(|target| crate::topo::resolve(Some(target), args.gpu.as_deref()))
        .collect::<Result<_, _>>()?;
    let out =
        args.out.as_ref().map(|path| super::collective::create(path).map(|file| (file, path))).transpose()?;
    let mut source = Source::default();
    for text in &args.logs {
        source.add(text, &fabrics, library.as_ref())?;
    }
    let slow = outliers(&source.runs.iter().map(|(run, _)| run.clone()).collect::<Vec<_>>());
    for outlier in &slow {
        for number in &outlier.runs {
            let tables = &source.runs[*number].1;
            source.calls.retain(|call| !tables.contains(&call.table));
        }
    }
    if source.calls.is_empty() {
        return Err(Failure::misuse(anyhow!("the files have no measurements to calibrate with")));
    }
    let shipped = Constants::shipped();
    let mut progress = Progress::new();
    progress.show(&format!("fitting the constants to {}", counted(source.calls.len(), "call")));
    let (fit, free) = calibrate(&shipped, &source.places, &source.calls, &Trust::BEST);
    let before = predict(&shipped, &source.places, &source.calls);
    let after = predict(&fit.constants, &source.places, &source.calls);
    progress.clear();
    let calibration = Calibration::of(&fit, &free, source.title(), source.calls.len());
    if let Some((mut file, path)) = out {
        write!(file, "{calibration}")
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Failure::Finding)?;
    }
    let errors = source.errors(&before, &after);
    if args.json {
        let constants: Vec<_> = calibration
            .found
            .iter()
            .map(|found| {
                let constant = &TABLE[found.index];
                json!({
                    "name": constant.name, "unit": constant.unit, "shipped": constant.value,
                    "value": calibration.constants.at(found.index), "before": found.before, "now": found.now,
                    "determined": found.is_determined(),
                })
            })
            .collect();
        let errors: Vec<_> = errors
            .iter()
            .map(|row| json!({ "table": row.table, "band": BANDS[row.band].0, "calls": row.calls, "before": row.before, "after": row.after }))
            .collect();
        let outliers: Vec<_> = slow
            .iter()
            .map(|slow| json!({ "host": slow.host, "slower": slow.slower, "logs": slow.runs.len() }))
            .collect();
        return Ok(crate::print_json(&json!({
            "machine": calibration.machine, "library": calibration.library, "calls": calibration.calls,
            "constants": constants, "errors": errors, "outliers": outliers,
        }))?);
    }
    let mut out = screen::stdout();
    say!(out, "{} on {}: {}", calibration.library, calibration.machine, counted(calibration.calls, "call"))?;
    for slow in &slow {
        say!(
            out,
            "{} is {:.2} times slower than the median host, in {}; left out",
            slow.host,
            slow.slower,
            counted(slow.runs.len(), "log")
        )?;
    }
    writeln!(out)?;
    let mut lines = Lines::new(["constant", "shipped", "now", "unit", "+-", "of"]);
    for found in calibration.determined() {
        let constant = &TABLE[found.index];
        lines.row([
            constant.name.to_owned(),
            number(constant.value),
            number(calibration.constants.at(found.index)),
            constant.unit.to_owned(),
            format!("{:.0}%", found.now * 1e2),
            constant.belongs_to.to_owned(),
        ]);
    }
    write!(out, "{lines}")?;
    let open = calibration.found.len() - calibration.determined().len();
    say!(
        out,
        "{} little or not determined by these calls{}; the others of {} play no part in them\n",
        counted(open, "constant"),
        if open == 0 { "" } else { " (in the file, with their uncertainty)" },
        TABLE.len()
    )?;
    let mut lines = Lines::new(["table", "sizes", "calls", "error before", "after"]);
    for row in errors {
        lines.row([
            row.table,
            BANDS[row.band].0.to_owned(),
            row.calls.to_string(),
            format!("{:.1}%", row.before * 1e2),
            format!("{:.1}%", row.after * 1e2),
        ]);
    }
    write!(out, "{lines}")?;
    match &args.out {
        Some(path) => say!(out, "\nUse it with --calibration {}", path.display())?,
        None => say!(out, "\nNothing is written without -o FILE")?,
    }
    Ok(())
}

/// Three significant digits.
fn number(value: f64) -> String {
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The median errors of a table in a band of sizes.
struct Errors {
    table: String,
    band: usize,
    calls: usize,
    before: f64,
    after: f64,
}

/// What `weft bench --json` prints, as far as it is needed here.
#[derive(Deserialize)]
struct Bench {
    ranks: u32,
    buffers: String,
    gpu: Option<serde_json::Value>,
    hosts: Vec<u32>,
    environment: Environment,
    rows: Vec<BenchRow>,
}

#[derive(Deserialize)]
struct Environment {
    cores_allowed: u32,
    #[serde(default)]
    reads_peers: bool,
}

#[derive(Deserialize)]
struct BenchRow {
    collective: String,
    bytes: u64,
    out_of_place: Option<BenchTime>,
    in_place: Option<BenchTime>,
}

#[derive(Deserialize)]
struct BenchTime {
    time_us: f64,
}

impl Source {
    fn add(&mut self, text: &str, fabrics: &[Fabric], library: Option<&LibrarySpec>) -> Result<(), Failure> {
        let (given, path) = match text.split_once('=') {
            Some((name, path)) if !Path::new(text).exists() => {
                let operation = Kind::from_name(name).and_then(|kind| operation(kind).ok());
                let known = operation.ok_or_else(|| {
                    Failure::misuse(anyhow!(
                        "`{name}` in `{text}` is no collective that is predicted; write COLLECTIVE=FILE"
                    ))
                })?;
                (Some(known), path)
            }
            _ => (None, text),
        };
        let content = match path {
            "-" => std::io::read_to_string(std::io::stdin()).context("cannot read standard input"),
            path => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}")),
        };
        let content = content.map_err(Failure::Misuse)?;
        let start = self.tables.len();
        let hosts = match content.trim_start().chars().next() {
            Some('{') => self.add_bench(path, &content, fabrics),
            _ if is_csv(&content) => self.add_csv(&content, fabrics, library),
            _ => self.add_log(path, &content, given, fabrics, library),
        };
        let hosts = hosts.with_context(|| path.to_owned()).map_err(Failure::Misuse)?;
        let tables: Vec<usize> = (start..self.tables.len()).collect();
        let calls = self.calls.iter().filter(|call| tables.contains(&call.table));
        let calls = calls.map(|call| (call.operation, call.bytes, call.time_us)).collect();
        self.runs.push((Run { hosts, calls }, tables));
        Ok(())
    }

    /// Adds the tables of a log; returns its hosts.
    fn add_log(
        &mut self,
        path: &str,
        content: &str,
        given: Option<Operation>,
        fabrics: &[Fabric],
        library: Option<&LibrarySpec>,
    ) -> anyhow::Result<Vec<String>> {
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let log = log::read(content, given, log::of_name(name))?;
        let said = log.library.map(|library| LibrarySpec { library, version: log.version, program: None });
        let launch = log.one_thread.then_some(Launch::OneThread).or(log.ranks.map(|_| Launch::ProcessPerGpu));
        let fabric = of_size(fabrics, log.ranks, &log)?;
        for table in &log.tables {
            let place = self.gpus(fabric, library.or(said.as_ref()), launch, table.operation)?;
            self.add_table(place, table.operation, name, &table.calls);
        }
        Ok(log.hosts)
    }

    fn add_bench(&mut self, path: &str, content: &str, fabrics: &[Fabric]) -> anyhow::Result<Vec<String>> {
        let bench: Bench = serde_json::from_str(content).context("not the JSON of `weft bench`")?;
        let mut tables: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
        for row in &bench.rows {
            if let Some(time) = row.out_of_place.as_ref().or(row.in_place.as_ref()) {
                tables.entry(row.collective.clone()).or_default().push((row.bytes, time.time_us));
            }
        }
        for (collective, calls) in tables {
            let kind =
                Kind::from_name(&collective).ok_or_else(|| anyhow!("unknown collective `{collective}`"))?;
            let operation = operation(kind)?;
            let place = if bench.gpu.is_some() {
                let spec = LibrarySpec { library: Library::Weft, version: None, program: None };
                let fabric = of_size(fabrics, Some(bench.ranks), &Log::default())?;
                self.gpus(fabric, Some(&spec), None, operation)?
            } else {
                self.cores(&bench)?
            };
            self.add_table(place, operation, path, &calls);
        }
        Ok(Vec::new())
    }

    fn add_csv(
        &mut self,
        content: &str,
        fabrics: &[Fabric],
        library: Option<&LibrarySpec>,
    ) -> anyhow::Result<Vec<String>> {
        if let Some(calls) = published::read_calls(content)? {
            let [fabric] = fabrics else {
                return Err(anyhow!("the file does not describe a machine; name it with one --fabric"));
            };
            let mut tables: BTreeMap<&str, Vec<(u64, f64)>> = BTreeMap::new();
            for (operation, bytes, time_us) in calls {
                tables.entry(operation.name()).or_default().push((bytes, time_us));
            }
            for (name, calls) in tables {
                let Some(operation) = Operation::from_name(name) else { continue };
                let place = self.gpus(fabric, library, None, operation)?;
                self.add_table(place, operation, "CSV", &calls);
            }
            return Ok(Vec::new());
        }
        let mut tables: BTreeMap<String, usize> = BTreeMap::new();
        for (row, purpose) in published::read(content)? {
            if purpose != Use::Score || row.operation.is_copy() {
                continue;
            }
            let place = Place::of_row(&row.setup)?;
            let machine = (format!("{} ({})", row.system, row.setup.name()), text::library(&row.setup));
            let place = self.place(place, machine);
            let next = self.tables.len();
            let table = *tables.entry(row.id.clone()).or_insert(next);
            if table == next {
                self.tables.push(row.id.clone());
            }
            let Some(call) = measured(place, table, row.operation, (row.bytes, row.measured_us)) else {
                continue;
            };
            self.calls.push(call);
        }
        Ok(Vec::new())
    }

    fn add_table(&mut self, place: usize, operation: Operation, file: &str, calls: &[(u64, f64)]) {
        let table = self.tables.len();
        self.tables.push(format!("{} of {file}", operation.name()));
        self.calls.extend(calls.iter().filter_map(|call| measured(place, table, operation, *call)));
    }

    /// The place of a library on a fabric.
    fn gpus(
        &mut self,
        fabric: &Fabric,
        library: Option<&LibrarySpec>,
        launch: Option<Launch>,
        operation: Operation,
    ) -> anyhow::Result<usize> {
        let kind = weftlink_sim::predict::kinds()
            .find(|kind| weftlink_sim::predict::operation(*kind) == Ok(operation));
        let kind = kind.ok_or_else(|| anyhow!("{} is not predicted", operation.name()))?;
        let case =
            Case::new(kind, fabric, &Options { library: library.cloned(), launch, ..Options::default() })?;
        let names = (case.name.clone(), text::library(&case.setup));
        Ok(self.place(Place::Gpus(Box::new((case.setup, case.fabric))), names))
    }

    fn cores(&mut self, bench: &Bench) -> anyhow::Result<usize> {
        let cores = bench.environment.cores_allowed;
        if bench.hosts.iter().any(|host| *host != 0) {
            return Err(anyhow!("ranks on the cores of several hosts are not predicted"));
        }
        if bench.ranks > cores {
            return Err(anyhow!(
                "{} ranks shared {cores} cores: the scheduler determined the times",
                bench.ranks
            ));
        }
        let memory = match (bench.buffers.as_str(), bench.environment.reads_peers) {
            ("symmetric", _) => Memory::Symmetric,
            (_, true) => Memory::Readable,
            (_, false) => Memory::Ordinary,
        };
        let hosts = Hosts { memory, ..Hosts::one(Library::Weft, cores, bench.ranks) };
        let names = (format!("{} cores of one host", bench.ranks), "weft".to_owned());
        Ok(self.place(Place::Cores(hosts), names))
    }

    fn place(&mut self, place: Place, names: (String, String)) -> usize {
        self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            self.names.push(names);
            self.places.len() - 1
        })
    }

    /// The machines and libraries, in words.
    fn title(&self) -> (String, String) {
        let joined = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.dedup();
            names.join(", ")
        };
        let machines = self.names.iter().map(|(machine, _)| machine.as_str()).collect();
        (joined(machines), joined(self.names.iter().map(|(_, library)| library.as_str()).collect()))
    }

    fn errors(&self, before: &[f64], after: &[f64]) -> Vec<Errors> {
        let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (at, call) in self.calls.iter().enumerate() {
            groups.entry((call.table, band(call.bytes))).or_default().push(at);
        }
        let each = groups.into_iter().map(|((table, band), at)| {
            let median = |times: &[f64]| {
                quantile(at.iter().map(|at| error(times[*at], self.calls[*at].time_us)).collect(), 0.5)
            };
            let table = self.tables[table].clone();
            Errors { table, band, calls: at.len(), before: median(before), after: median(after) }
        });
        each.collect()
    }
}

fn measured(
    place: usize,
    table: usize,
    operation: Operation,
    (bytes, time_us): (u64, f64),
) -> Option<Measured> {
    (time_us > 0.0).then_some(Measured { place, table, operation, bytes, time_us })
}

fn is_csv(content: &str) -> bool {
    content.lines().next().is_some_and(|line| line.contains("time_us") && line.contains(','))
}

/// The fabric with as many GPUs as a log has ranks.
fn of_size<'f>(fabrics: &'f [Fabric], ranks: Option<u32>, log: &Log) -> anyhow::Result<&'f Fabric> {
    let seen = match (ranks, &log.gpu) {
        (Some(ranks), Some(gpu)) => {
            format!(" ({ranks} ranks on {} of {gpu})", counted(log.hosts.len(), "host"))
        }
        (Some(ranks), None) => format!(" ({})", counted(ranks, "rank")),
        (None, _) => String::new(),
    };
    match (fabrics, ranks) {
        ([], _) => Err(anyhow!(
            "name the machine that was measured{seen} with --fabric; `weft topo --list` prints systems"
        )),
        ([one], None) => Ok(one),
        (_, None) => Err(anyhow!("the log does not say how many GPUs it used; give one --fabric")),
        (all, Some(ranks)) => all
            .iter()
            .find(|fabric| fabric.gpus().len() == ranks as usize)
            .ok_or_else(|| anyhow!("no --fabric has {ranks} GPUs, which the log used{seen}")),
    }
}
