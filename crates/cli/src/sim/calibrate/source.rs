//! Measured calls from logs of nccl-tests, JSON of `weft bench` and CSV, with the machines they were measured on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::Value;
use weftlink_fabric::Fabric;
use weftlink_plan::Kind;
use weftlink_plan::choose::measured::Memory;
use weftlink_sim::Constants;
use weftlink_sim::accuracy::{band, error, quantile};
use weftlink_sim::calibrate::log::{self, Log, Machine};
use weftlink_sim::calibrate::outliers::{Outlier, Run};
use weftlink_sim::calibrate::{Measured, Place, of_rows, predict};
use weftlink_sim::gpu::Gpu;
use weftlink_sim::host::Hosts;
use weftlink_sim::library::LibrarySpec;
use weftlink_sim::predict::{Case, Options, kinds, operation};
use weftlink_sim::published::{self, Use};
use weftlink_sim::setup::{Launch, Library, Operation};

use crate::sim::text;
use crate::{Failure, counted};

/// Calls to fit to; of more, some are left out evenly.
const CALLS_MAX: usize = 600;

/// Sizes and times that a benchmark may have measured.
const BYTES: std::ops::RangeInclusive<u64> = 1..=1 << 50;
const TIMES_US: std::ops::RangeInclusive<f64> = 1e-3..=1e12;

/// What was read from the files.
pub(super) struct Source<'a> {
    fabrics: &'a [Fabric],
    /// Whether each was measured.
    used: Vec<bool>,
    library: Option<&'a LibrarySpec>,
    /// The machines and libraries.
    pub(super) places: Vec<Place>,
    /// Their names.
    names: Vec<(String, String)>,
    /// The tables, in words, and the hosts of each.
    tables: Vec<(String, Vec<String>)>,
    pub(super) calls: Vec<Measured>,
    /// What was left out, and why.
    pub(super) notes: Vec<String>,
}

/// The median errors of a table in a band of sizes.
pub(super) struct Errors {
    pub(super) table: String,
    pub(super) band: usize,
    pub(super) calls: usize,
    pub(super) before: f64,
    pub(super) after: f64,
}

/// What `weft bench --json` prints, as far as it is needed here.
#[derive(Deserialize)]
struct Bench {
    ranks: u32,
    /// Of all rows, if they have the same.
    buffers: Option<String>,
    /// One that was forced or given.
    plan: Option<Value>,
    gpu: Option<Value>,
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

/// The file of a `LOG` or `COLLECTIVE=LOG`.
pub(super) fn file_of(text: &str) -> &str {
    match text.split_once('=') {
        Some((_, path)) if !Path::new(text).exists() => path,
        _ => text,
    }
}

fn is_csv(content: &str) -> bool {
    content.lines().next().is_some_and(|line| line.contains("time_us") && line.contains(','))
}

impl<'a> Source<'a> {
    pub(super) fn new(fabrics: &'a [Fabric], library: Option<&'a LibrarySpec>) -> Self {
        Self {
            fabrics,
            used: vec![false; fabrics.len()],
            library,
            places: Vec::new(),
            names: Vec::new(),
            tables: Vec::new(),
            calls: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads a `LOG` or `COLLECTIVE=LOG`.
    pub(super) fn add(&mut self, text: &str) -> Result<(), Failure> {
        let path = file_of(text);
        let given = match text.strip_suffix(path).and_then(|start| start.strip_suffix('=')) {
            Some(name) => {
                let operation = Kind::from_name(name).and_then(|kind| operation(kind).ok());
                Some(operation.ok_or_else(|| {
                    Failure::misuse(anyhow!(
                        "`{name}` in `{text}` is no collective that is predicted; write COLLECTIVE=FILE, as in all-gather={path}"
                    ))
                })?)
            }
            None => None,
        };
        let mut content = Vec::new();
        match path {
            "-" => io::stdin().read_to_end(&mut content).map(|_| ()).context("cannot read standard input"),
            path => {
                std::fs::read(path).map(|read| content = read).with_context(|| format!("cannot read {path}"))
            }
        }
        .map_err(Failure::Misuse)?;
        let content = String::from_utf8_lossy(&content);
        let added = match content.trim_start().chars().next() {
            Some('{') => self.add_bench(path, &content, given),
            _ if is_csv(&content) => self.add_csv(path, &content, given),
            _ => self.add_log(path, &content, given),
        };
        added.with_context(|| path.to_owned()).map_err(Failure::Misuse)
    }

    fn add_log(&mut self, path: &str, content: &str, given: Option<Operation>) -> anyhow::Result<()> {
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Log { tables, notes } = log::read(content, given, log::of_name(name))?;
        self.notes.extend(notes.into_iter().map(|note| format!("{path}: {note}; left out")));
        for log::Table { operation, calls, machine, .. } in tables {
            let said = machine.library.map(|library| LibrarySpec {
                library,
                version: machine.version,
                program: None,
            });
            let launch = machine.ranks.map(|_| match machine.one_thread {
                true => Launch::OneThread,
                false => Launch::ProcessPerGpu,
            });
            let fabric = self.fabric(&machine)?;
            let place = self.gpus(fabric, self.library.or(said.as_ref()), launch, operation)?;
            self.compare_gpus(path, machine.gpu.as_deref(), place);
            self.add_table(place, operation, path, &calls, machine.hosts);
        }
        Ok(())
    }

    /// Notes a log whose GPUs are another model than those of the fabric.
    fn compare_gpus(&mut self, path: &str, name: Option<&str>, place: usize) {
        let (Some(name), Place::Gpus(on)) = (name, &self.places[place]) else { return };
        let model = on.0.gpu.model();
        let plain = |text: &str| {
            text.to_ascii_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "")
        };
        let (said, own) = (plain(name), plain(model.id));
        // The longest name, because an H200 is no H20.
        let ids = Gpu::all().map(|gpu| plain(gpu.id())).filter(|id| said.contains(id));
        let Some(found) = ids.max_by_key(String::len) else { return };
        if !own.starts_with(&found) && !found.starts_with(&own) {
            let note =
                format!("{path}: it was measured on {name}, and {} has {}", self.names[place].0, model.name);
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    fn add_bench(&mut self, path: &str, content: &str, given: Option<Operation>) -> anyhow::Result<()> {
        let bench: Bench = serde_json::from_str(content).context(
            "not the JSON of `weft bench` with collectives; of nccl-tests, give the text that it prints",
        )?;
        let is_gpu = bench.gpu.is_some();
        if given.is_some() || self.library.is_some() || (!is_gpu && !self.fabrics.is_empty()) {
            return Err(anyhow!(
                "the JSON of `weft bench` says the collective, the library and the cores; leave them out"
            ));
        }
        if bench.plan.is_some() {
            return Err(anyhow!(
                "it measured one plan, not what Weft chooses; measure without --algorithm and --plan"
            ));
        }
        let mut tables: BTreeMap<&str, Vec<(u64, f64)>> = BTreeMap::new();
        for row in &bench.rows {
            let Some(time) = row.out_of_place.as_ref().or(row.in_place.as_ref()) else { continue };
            if !BYTES.contains(&row.bytes) || !TIMES_US.contains(&time.time_us) {
                let (bytes, time) = (row.bytes, time.time_us);
                return Err(anyhow!(
                    "{bytes} bytes in {time} us: expected 1 to 2^50 bytes and 0.001 to 1e12 us"
                ));
            }
            tables.entry(&row.collective).or_default().push((row.bytes, time.time_us));
        }
        for (collective, calls) in tables {
            let kind =
                Kind::from_name(collective).ok_or_else(|| anyhow!("unknown collective `{collective}`"))?;
            let operation = operation(kind)?;
            let place = if is_gpu {
                let spec = LibrarySpec { library: Library::Weft, version: None, program: None };
                let fabric = self.fabric(&Machine { ranks: Some(bench.ranks), ..Machine::default() })?;
                self.gpus(fabric, Some(&spec), None, operation)?
            } else {
                self.cores(&bench)?
            };
            self.add_table(place, operation, path, &calls, Vec::new());
        }
        Ok(())
    }

    fn add_csv(&mut self, path: &str, content: &str, given: Option<Operation>) -> anyhow::Result<()> {
        if given.is_some() {
            return Err(anyhow!("CSV has a column for the collective; leave it out"));
        }
        if let Some(calls) = published::read_calls(content)? {
            let fabric = self.fabric(&Machine::default())?;
            for operation in Operation::ALL.iter().copied() {
                let of_operation = calls.iter().filter(|(found, ..)| *found == operation);
                let calls: Vec<_> = of_operation.map(|(_, bytes, time_us)| (*bytes, *time_us)).collect();
                if calls.is_empty() {
                    continue;
                }
                let place = self.gpus(fabric, self.library, None, operation)?;
                self.add_table(place, operation, path, &calls, Vec::new());
            }
            return Ok(());
        }
        if !self.fabrics.is_empty() || self.library.is_some() {
            return Err(anyhow!("the file describes machine and library; leave out --fabric and --library"));
        }
        let rows = published::read(content)?.into_iter().filter(|(_, purpose)| *purpose == Use::Score);
        let rows: Vec<_> = rows.map(|(row, _)| row).collect();
        let systems: BTreeSet<&str> = rows.iter().map(|row| row.system.as_str()).collect();
        if systems.len() > 1 {
            return Err(anyhow!(
                "the rows are of {} systems, and a calibration is of one; keep the rows of one (`weft sim accuracy --calibrate-on` \
                 calibrates each)",
                systems.len()
            ));
        }
        let (places, calls) = of_rows(rows.iter());
        let (place, table) = (self.places.len(), self.tables.len());
        let tables = calls.iter().map(|call| call.table + 1).max().unwrap_or(0);
        self.tables.extend((1..=tables).map(|number| (format!("table {number} of {path}"), Vec::new())));
        let moved =
            |call: Measured| Measured { place: place + call.place, table: table + call.table, ..call };
        self.calls.extend(calls.into_iter().map(moved));
        for place in places {
            if let Place::Gpus(on) = &place {
                self.names.push((on.0.name(), text::library(&on.0)));
            }
            self.places.push(place);
        }
        Ok(())
    }

    fn add_table(
        &mut self,
        place: usize,
        operation: Operation,
        file: &str,
        calls: &[(u64, f64)],
        hosts: Vec<String>,
    ) {
        let table = self.tables.len();
        self.tables.push((format!("{} of {file}", operation.name()), hosts));
        let measured = |(bytes, time_us): &(u64, f64)| Measured {
            place,
            table,
            operation,
            bytes: *bytes,
            time_us: *time_us,
        };
        self.calls.extend(calls.iter().map(measured));
    }

    /// The fabric that a table was measured on: with as many GPUs and hosts.
    fn fabric(&mut self, machine: &Machine) -> anyhow::Result<usize> {
        let hosts = machine.hosts.len();
        let seen = match (machine.ranks, &machine.gpu) {
            (Some(ranks), Some(gpu)) => format!(" ({ranks} ranks on {} of {gpu})", counted(hosts, "host")),
            (Some(ranks), None) => format!(" ({})", counted(ranks, "rank")),
            (None, _) => String::new(),
        };
        let fits = |fabric: &Fabric| {
            machine.ranks.is_none_or(|ranks| fabric.gpus().len() == ranks as usize)
                && (hosts == 0 || fabric.hosts().len() == hosts)
        };
        let fitting: Vec<usize> = (0..self.fabrics.len()).filter(|at| fits(&self.fabrics[*at])).collect();
        match fitting[..] {
            [one] => {
                self.used[one] = true;
                Ok(one)
            }
            [] if self.fabrics.is_empty() => Err(anyhow!(
                "name the machine that was measured{seen} with --fabric; `weft topo --list` prints systems"
            )),
            [] => Err(anyhow!("no --fabric has the GPUs and hosts that were measured{seen}")),
            _ => Err(anyhow!(
                "several --fabric could have been measured{seen}; calibrate each machine on its own"
            )),
        }
    }

    /// A fabric that nothing was measured on.
    pub(super) fn unused_fabric(&self) -> Option<usize> {
        self.used.iter().position(|is_used| !is_used)
    }

    /// The place of a library on a fabric.
    fn gpus(
        &mut self,
        fabric: usize,
        library: Option<&LibrarySpec>,
        launch: Option<Launch>,
        wanted: Operation,
    ) -> anyhow::Result<usize> {
        let kind = kinds().find(|kind| operation(*kind) == Ok(wanted));
        let kind = kind.ok_or_else(|| anyhow!("{} is not predicted", wanted.name()))?;
        let options = Options { library: library.cloned(), launch, ..Options::default() };
        let case = Case::new(kind, &self.fabrics[fabric], &options)?;
        let names = (case.name.clone(), text::library(&case.setup));
        Ok(self.place(Place::Gpus(Box::new((case.setup, case.fabric))), names))
    }

    fn cores(&mut self, bench: &Bench) -> anyhow::Result<usize> {
        let (ranks, cores) = (bench.ranks, bench.environment.cores_allowed);
        if bench.hosts.iter().any(|host| *host != 0) {
            return Err(anyhow!("ranks on the cores of several hosts are not predicted"));
        }
        if !(2..=1024).contains(&ranks) || ranks > cores {
            return Err(anyhow!(
                "{ranks} ranks on {cores} cores are not predicted; 2 to 1024 ranks with a core each are"
            ));
        }
        let memory = match (bench.buffers.as_deref(), bench.environment.reads_peers) {
            (Some("symmetric"), _) => Memory::Symmetric,
            (Some(_), true) => Memory::Readable,
            (Some(_), false) => Memory::Ordinary,
            (None, _) => return Err(anyhow!("it measured several kinds of buffers; measure one at a time")),
        };
        let hosts = Hosts { memory, ..Hosts::one(Library::Weft, cores, ranks) };
        Ok(self.place(Place::Cores(hosts), (format!("{ranks} cores of one host"), "weft".to_owned())))
    }

    fn place(&mut self, place: Place, names: (String, String)) -> usize {
        self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            self.names.push(names);
            self.places.len() - 1
        })
    }

    /// The tables, for the search for slow hosts.
    pub(super) fn runs(&self) -> Vec<Run> {
        let empty = |(_, hosts): &(String, Vec<String>)| Run { hosts: hosts.clone(), calls: Vec::new() };
        let mut runs: Vec<Run> = self.tables.iter().map(empty).collect();
        for call in &self.calls {
            runs[call.table].calls.push((call.place, (call.operation, call.bytes, call.time_us)));
        }
        runs
    }

    /// Leaves out the tables of slow hosts.
    pub(super) fn leave_out(&mut self, slow: &[Outlier]) {
        let tables: BTreeSet<usize> = slow.iter().flat_map(|outlier| outlier.runs.iter().copied()).collect();
        self.calls.retain(|call| !tables.contains(&call.table));
    }

    /// Leaves out calls that cannot be predicted, and, of very many, some.
    pub(super) fn keep_predicted(&mut self, shipped: &Constants) -> Result<(), Failure> {
        let all = self.calls.len();
        let step = all.div_ceil(CALLS_MAX);
        if step > 1 {
            self.notes.push(format!("of {all} calls, one in {step} is used"));
            self.calls = std::mem::take(&mut self.calls).into_iter().step_by(step).collect();
        }
        let chosen = self.calls.len();
        let mut times = predict(shipped, &self.places, &self.calls).into_iter();
        self.calls.retain(|_| times.next().is_some_and(f64::is_finite));
        let lost = chosen - self.calls.len();
        if lost == chosen {
            return Err(Failure::misuse(anyhow!(
                "the files have no calls that can be predicted on this machine"
            )));
        }
        if lost > 0 {
            let calls = counted(lost, "call");
            self.notes.push(format!("{calls} that the library cannot run on this machine; left out"));
        }
        Ok(())
    }

    /// The machines and libraries of the calls, in words.
    pub(super) fn title(&self) -> (String, String) {
        let used: BTreeSet<usize> = self.calls.iter().map(|call| call.place).collect();
        let joined = |name: &dyn Fn(&(String, String)) -> String| {
            let names: BTreeSet<String> = used.iter().map(|place| name(&self.names[*place])).collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        };
        (joined(&|(machine, _)| machine.clone()), joined(&|(_, library)| library.clone()))
    }

    /// The errors of each table and band.
    pub(super) fn errors(&self, before: &[f64], after: &[f64]) -> Vec<Errors> {
        let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (at, call) in self.calls.iter().enumerate() {
            groups.entry((call.table, band(call.bytes))).or_default().push(at);
        }
        let each = groups.into_iter().map(|((table, band), at)| {
            let median = |times: &[f64]| {
                quantile(at.iter().map(|at| error(times[*at], self.calls[*at].time_us)).collect(), 0.5)
            };
            let table = self.tables[table].0.clone();
            Errors { table, band, calls: at.len(), before: median(before), after: median(after) }
        });
        each.collect()
    }
}
