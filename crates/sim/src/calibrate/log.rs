//! Reads the output of nccl-tests and rccl-tests, with or without what a launcher puts in front of its lines.
//!
//! A table is found by its heading, and its columns by their names, because both changed between versions; a row is found by its element
//! type, which follows size and count. Each row is checked against its own bandwidth. The collective is the one that the program printed;
//! without that, the one that the columns allow and the file's name says.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::library::parse_library;
use crate::published::BYTES_MAX;
use crate::setup::{Library, Operation, Version};

/// A table, with what the program said about the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The line of its heading.
    pub line: usize,
    /// The collective.
    pub operation: Operation,
    /// Sizes in bytes, and microseconds: those out of place, where they were measured.
    pub calls: Vec<(u64, f64)>,
    /// What a row says beside that, of each call.
    pub details: Vec<Detail>,
    /// The machine and library.
    pub machine: Machine,
}

/// What a row of a table says beside its size and first time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Detail {
    /// Its line.
    pub line: usize,
    /// Microseconds out of place, if they were measured.
    pub out_of_place_us: Option<f64>,
    /// Microseconds in place, if they were measured.
    pub in_place_us: Option<f64>,
    /// Wrong elements of both, if the heading names `#wrong` and the data was checked.
    pub wrong: Option<u64>,
}

/// What a program says about the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The library.
    pub library: Option<Library>,
    /// Its version.
    pub version: Option<Version>,
    /// The names of the hosts, sorted.
    pub hosts: Vec<String>,
    /// The number of ranks: of GPUs.
    pub ranks: Option<u32>,
    /// Whether one thread launches the kernels of several GPUs.
    pub one_thread: bool,
    /// The name of the GPUs, as their driver gives it.
    pub gpu: Option<String>,
}

/// A log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// Its tables.
    pub tables: Vec<Table>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// Why a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file is too long.
    #[error("the file has {bytes} bytes; the limit is {BYTES_MAX}: split it")]
    TooLong {
        /// Size of the file.
        bytes: usize,
    },
    /// There is no table.
    #[error(
        "no table of nccl-tests: a heading with size, type, time, algbw and busbw, and rows below it. The text that nccl-tests prints is read, and the \
         JSON of `weft bench`; CSV has a line with collective, size_bytes and time_us first{}",
        listed(notes)
    )]
    NoTable {
        /// What was left out.
        notes: Vec<String>,
    },
    /// The collective of a table is not clear.
    #[error(
        "line {line}: the table does not say which collective it is of; write it before the file, as in all-gather=FILE"
    )]
    Unclear {
        /// The line of its heading.
        line: usize,
    },
    /// A table has no times of calls.
    #[error(
        "line {line}: the column cputime (-C 1) is how long the CPU takes to launch a call, not how long the call takes; measure again without -C"
    )]
    CpuTime {
        /// The line of its heading.
        line: usize,
    },
    /// The columns of a table are not those of its collective.
    #[error("line {line}: the table is not of {named}: {why}")]
    Contradiction {
        /// The line of its heading.
        line: usize,
        /// The collective that was named.
        named: &'static str,
        /// What its columns say.
        why: &'static str,
    },
    /// A row's time is not that of its bandwidth.
    #[error("line {line}: {bytes} bytes in {time} at {algbw} GB/s do not fit together; is a column missing?")]
    Row {
        /// The line.
        line: usize,
        /// The size.
        bytes: u64,
        /// The time as printed.
        time: String,
        /// The bandwidth as printed.
        algbw: String,
    },
    /// The ranks form several communicators.
    #[error(
        "line {line}: the ranks are split into {groups} groups (NCCL_TESTS_SPLIT), which share links; measure one alone"
    )]
    Groups {
        /// The line of the heading.
        line: usize,
        /// The number of groups.
        groups: usize,
    },
}

fn listed(notes: &[String]) -> String {
    notes.iter().map(|note| format!("; {note}")).collect()
}

/// The element types of nccl-tests: the third column of a row.
const TYPES: [&str; 16] = [
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3",
    "f8e5m2", "fp8_e4m3", "fp8_e5m2", "char", "int",
];

/// The names of the columns after the element type.
struct Columns {
    line: usize,
    names: Vec<String>,
}

/// A row of a table.
struct Row {
    line: usize,
    bytes: u64,
    time: f64,
    algbw: f64,
    busbw: f64,
    has_reduction: Option<bool>,
    has_root: Option<bool>,
    /// Out of place and in place, in the table's unit.
    times: [Option<f64>; 2],
    wrong: Option<u64>,
}

/// The collective that a program's name means, if it is predicted.
#[derive(Clone)]
struct Named {
    name: String,
    operation: Option<Operation>,
}

/// The output of a program so far.
#[derive(Default)]
struct Program {
    machine: Machine,
    named: Option<Named>,
    /// GPUs of each thread, if the program says so (`nGpus`).
    gpus_per_thread: Option<u32>,
    /// The process of each rank.
    ranks: BTreeMap<u32, String>,
    groups: BTreeSet<String>,
    columns: Option<Columns>,
    rows: Vec<Row>,
    /// Lines that look like rows and have too many or too few cells, and how many.
    odd: Vec<(usize, usize)>,
    /// The program that a line below a table names: the next one.
    next: Option<Named>,
    /// Whether a table has begun.
    has_table: bool,
}

/// Reads a log. `given` is the collective of its tables, if they do not say it; otherwise the file's name may.
pub fn read(text: &str, given: Option<Operation>, by_name: Option<Operation>) -> Result<Log, LogError> {
    if text.len() > BYTES_MAX {
        return Err(LogError::TooLong { bytes: text.len() });
    }
    let mut log = Log::default();
    let mut program = Program::default();
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        if is_cpu_time(line) {
            return Err(LogError::CpuTime { line: number });
        }
        if let Some(columns) = Columns::of(number, line) {
            program.finish(&mut log, given, by_name)?;
            (program.columns, program.has_table) = (Some(columns), true);
        } else if let Some(cells) = program.columns.as_ref().and_then(|_| cells(line)) {
            program.row(number, &cells);
        } else if starts_a_program(line) && program.has_table {
            program.finish(&mut log, given, by_name)?;
            program = Program { named: program.next.take(), ..Program::default() };
            program.fact(line);
        } else {
            program.fact(line);
        }
    }
    program.finish(&mut log, given, by_name)?;
    if log.tables.is_empty() {
        return Err(LogError::NoTable { notes: log.notes });
    }
    Ok(log)
}

fn starts_a_program(line: &str) -> bool {
    line.contains("Collective test starting") || line.contains("Using devices") || line.contains("# nThread")
}

/// Whether a heading has CPU times where others have times.
fn is_cpu_time(line: &str) -> bool {
    line.to_ascii_lowercase().contains("cputime") && Columns::with(0, line, "cputime").is_some()
}

impl Columns {
    /// The columns of a heading.
    fn of(line: usize, text: &str) -> Option<Self> {
        Self::with(line, text, "time")
    }

    /// The columns of a heading whose column of times has this name.
    fn with(line: usize, text: &str, time: &str) -> Option<Self> {
        let words: Vec<String> =
            text.split_whitespace().map(|word| word.trim_start_matches('#').to_ascii_lowercase()).collect();
        let place = |wanted: &str| words.iter().position(|word| word == wanted);
        let at = place("type")?;
        let is_heading =
            [time, "algbw", "busbw"].iter().all(|wanted| place(wanted).is_some_and(|found| found > at));
        is_heading.then(|| Self { line, names: words[at + 1..].to_vec() })
    }

    fn place(&self, wanted: &[&str]) -> Option<usize> {
        self.names.iter().position(|name| wanted.contains(&name.as_str()))
    }
}

/// The size of a row, and its cells after the element type.
fn cells(line: &str) -> Option<(u64, Vec<&str>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_number = |at: usize| words[at].parse::<u64>().is_ok();
    let at =
        (2..words.len()).find(|at| TYPES.contains(&words[*at]) && is_number(at - 1) && is_number(at - 2))?;
    Some((words[at - 2].parse().ok()?, words[at + 1..].to_vec()))
}

impl Program {
    /// Adds a row.
    fn row(&mut self, line: usize, (bytes, cells): &(u64, Vec<&str>)) {
        let Some(columns) = &self.columns else { return };
        let reduction = columns.place(&["redop", "op"]);
        let mut cells = cells.clone();
        // Versions 2.7 to 2.10 print nothing for the reduction of an all-to-all; the time of day has two words.
        let wanted = columns.names.len() + usize::from(columns.place(&["timestamp"]).is_some());
        if let Some(at) = reduction.filter(|_| cells.len() + 1 == wanted) {
            cells.insert(at, "none");
        }
        if cells.len() != wanted {
            self.odd.push((line, cells.len()));
            return;
        }
        let number = |at: usize| cells[at].parse::<f64>().ok().filter(|value| TIMES.contains(value));
        let times: Vec<usize> = (0..columns.names.len()).filter(|at| columns.names[*at] == "time").collect();
        let Some(at) = times.iter().copied().find(|at| number(*at).is_some()) else { return };
        // The bandwidths of a time come after it, in the same order as after the first.
        let beside = |name: &str| {
            let place = columns.place(&[name])? + at - times[0];
            cells.get(place)?.parse::<f64>().ok()
        };
        let (Some(time), Some(algbw), Some(busbw)) = (number(at), beside("algbw"), beside("busbw")) else {
            return;
        };
        if !(1..=1 << 50).contains(bytes) {
            return;
        }
        let root = columns.place(&["root"]);
        let wrong = times.iter().filter_map(|at| {
            let place = columns.place(&["wrong"])? + at - times[0];
            cells.get(place)?.parse::<u64>().ok()
        });
        let wrong = wrong.fold(None, |sum: Option<u64>, count| Some(sum.unwrap_or(0).saturating_add(count)));
        self.rows.push(Row {
            times: [0, 1].map(|at| times.get(at).and_then(|at| number(*at))),
            wrong,
            line,
            bytes: *bytes,
            time,
            algbw,
            busbw,
            has_reduction: reduction.map(|at| cells[at] != "none"),
            has_root: root.map(|at| cells[at].parse::<i64>().is_ok_and(|root| root >= 0)),
        });
    }

    /// Ends a table.
    fn finish(
        &mut self,
        log: &mut Log,
        given: Option<Operation>,
        by_name: Option<Operation>,
    ) -> Result<(), LogError> {
        let (rows, odd) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.odd));
        let Some(Columns { line, names }) = self.columns.take() else { return Ok(()) };
        if let Some((first, cells)) = odd.first() {
            let (count, named) = (odd.len(), names.len());
            log.notes.push(format!(
                "line {first}: {cells} cells after the type, and the heading in line {line} names {named} ({count} such lines)"
            ));
        }
        if rows.is_empty() {
            return Ok(());
        }
        if self.groups.len() > 1 {
            return Err(LogError::Groups { line, groups: self.groups.len() });
        }
        let unit = unit(&rows)?;
        let named = self.named.clone();
        let operation = match (named, given) {
            (Some(Named { operation: None, name }), _) => {
                log.notes.push(format!("line {line}: {name} is not predicted"));
                return Ok(());
            }
            (Some(Named { operation: Some(operation), .. }), _) | (None, Some(operation)) => operation,
            (None, None) => by_columns(&rows)
                .or_else(|| by_name.filter(|operation| contradiction(&rows, *operation).is_none()))
                .ok_or(LogError::Unclear { line })?,
        };
        for named in [Some(operation), given].into_iter().flatten() {
            if named != operation {
                return Err(LogError::Contradiction {
                    line,
                    named: named.name(),
                    why: "the program names another",
                });
            }
            if let Some(why) = contradiction(&rows, named) {
                return Err(LogError::Contradiction { line, named: named.name(), why });
            }
        }
        let calls = rows.iter().map(|row| (row.bytes, row.time * unit)).collect();
        let detail = |row: &Row| {
            let [out_of_place_us, in_place_us] = row.times.map(|time| time.map(|time| time * unit));
            Detail { line: row.line, out_of_place_us, in_place_us, wrong: row.wrong }
        };
        let details = rows.iter().map(detail).collect();
        log.tables.push(Table { line, operation, calls, details, machine: self.machine() });
        Ok(())
    }

    fn machine(&self) -> Machine {
        let mut machine = self.machine.clone();
        machine.ranks = u32::try_from(self.ranks.len()).ok().filter(|ranks| *ranks > 0);
        let processes: BTreeSet<&String> = self.ranks.values().collect();
        machine.one_thread = match self.gpus_per_thread {
            Some(gpus) => gpus > 1,
            None => processes.len() < self.ranks.len(),
        };
        machine.hosts.sort_unstable();
        machine.hosts.dedup();
        if machine.gpu.as_deref().is_some_and(|gpu| gpu.contains("AMD") || gpu.contains("Instinct")) {
            machine.library = Some(Library::Rccl);
        }
        machine
    }

    /// What a line says about the program, its ranks, GPUs and library.
    fn fact(&mut self, line: &str) {
        // A name within a table may be that of a process that warns of something.
        let named = program(line).filter(|_| !line.contains("concluded"));
        let place = if self.has_table { &mut self.next } else { &mut self.named };
        *place = named.or(place.take());
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| {
            words.iter().position(|found| *found == word).and_then(|at| words.get(at + 1)).copied()
        };
        let gpus = after("nGpus").and_then(|gpus| gpus.parse().ok());
        self.gpus_per_thread = gpus.or(self.gpus_per_thread);
        if let (Some(rank), Some(host), Some(process)) = (after("Rank"), after("on"), after("Pid")) {
            if let Ok(rank) = rank.parse() {
                self.ranks.insert(rank, format!("{host} {process}"));
                self.groups.extend(after("Group").map(str::to_owned));
                self.machine.hosts.push(host.to_owned());
            }
            let gpu = line.split_once(" device ").and_then(|(_, rest)| rest.split_once("] "));
            if let Some((_, name)) = gpu {
                self.machine.gpu.get_or_insert_with(|| name.trim().to_owned());
            }
        }
        // `RCCL version` contains no `NCCL version`.
        for (library, name) in [(Library::Nccl, "NCCL version"), (Library::Rccl, "RCCL version")] {
            if let Some((_, rest)) = line.split_once(name) {
                self.machine.library = Some(library);
                self.machine.version =
                    self.machine.version.or(version(library, rest.trim_start_matches([' ', ':'])));
            }
        }
        let coded = line.split_once("nccl-library=").map(|(_, rest)| rest);
        let digits = coded
            .and_then(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok());
        if let Some(code) = digits {
            // Two digits for each of minor and patch since 2.9, one before.
            let (major, minor) = if code >= 10_000 {
                (code / 10_000, code / 100 % 100)
            } else {
                (code / 1000, code / 100 % 10)
            };
            self.machine.library.get_or_insert(Library::Nccl);
            self.machine.version =
                self.machine.version.or(version(Library::Nccl, &format!("{major}.{minor}")));
        }
    }
}

/// Times that a benchmark may print, in microseconds or milliseconds.
const TIMES: std::ops::RangeInclusive<f64> = 1e-3..=1e12;

/// Microseconds per unit of the time column, which bandwidths tell: version 1 prints milliseconds.
fn unit(rows: &[Row]) -> Result<f64, LogError> {
    let us = |row: &Row| row.bytes as f64 / row.algbw / 1e3;
    let exact: Vec<&Row> = rows.iter().filter(|row| row.algbw >= 1.0).collect();
    let in_ms = exact.iter().filter(|row| us(row) / row.time > 30.0).count();
    let unit = if 2 * in_ms > exact.len() { 1e3 } else { 1.0 };
    match exact.iter().find(|row| (us(row) / (row.time * unit) - 1.0).abs() > 0.05) {
        None => Ok(unit),
        Some(row) => Err(LogError::Row {
            line: row.line,
            bytes: row.bytes,
            time: row.time.to_string(),
            algbw: row.algbw.to_string(),
        }),
    }
}

/// The row whose bandwidths have the most digits.
fn fastest(rows: &[Row]) -> Option<&Row> {
    rows.iter().max_by(|one, other| one.algbw.total_cmp(&other.algbw))
}

/// The ratio of busbw to algbw, if they have enough digits.
fn factor(rows: &[Row]) -> Option<f64> {
    fastest(rows).filter(|row| row.algbw >= 1.0).map(|row| row.busbw / row.algbw)
}

/// The collective, if the columns leave only one: an all-gather looks like an all-to-all.
fn by_columns(rows: &[Row]) -> Option<Operation> {
    let row = fastest(rows)?;
    let factor = factor(rows)?;
    let is_one = (factor - 1.0).abs() < 0.02;
    match (row.has_reduction?, row.has_root?) {
        (true, true) => Some(Operation::Reduce),
        (false, true) if is_one => Some(Operation::Broadcast),
        (true, false) if factor > 0.98 => Some(Operation::AllReduce),
        (true, false) => Some(Operation::ReduceScatter),
        (false, false) if is_one => Some(Operation::SendReceive),
        _ => None,
    }
}

/// Why the rows are not of a collective, if they are not.
fn contradiction(rows: &[Row], operation: Operation) -> Option<&'static str> {
    use Operation::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendReceive,
    };
    let row = fastest(rows)?;
    let reduces = matches!(operation, AllReduce | Reduce | ReduceScatter);
    let has_root = matches!(operation, Broadcast | Reduce | Gather | Scatter);
    if row.has_reduction.is_some_and(|found| found != reduces) {
        return Some(if reduces { "it has no reduction" } else { "it has a reduction" });
    }
    if row.has_root.is_some_and(|found| found != has_root) {
        return Some(if has_root { "it has no root" } else { "it has a root" });
    }
    let factor = factor(rows)?;
    let fits = match operation {
        AllReduce => factor > 0.98,
        AllGather | AllToAll | ReduceScatter | Gather | Scatter => factor < 1.01,
        Broadcast | Reduce | SendReceive => (factor - 1.0).abs() < 0.02,
        _ => true,
    };
    (!fits).then_some("its busbw is another multiple of its algbw")
}

/// The program that a text names last, such as `all_reduce_perf`.
fn program(text: &str) -> Option<Named> {
    let at = text.rfind("_perf")?;
    let before = |letter: char| letter != '_' && !letter.is_ascii_lowercase();
    let start = text[..at].rfind(before).map_or(0, |before| before + 1);
    let name = text.get(start..at).filter(|name| !name.is_empty())?;
    let operation = Operation::from_name(name).filter(|operation| !operation.is_copy());
    Some(Named { name: format!("{name}_perf"), operation })
}

/// The collective that a file's name contains.
pub fn of_name(name: &str) -> Option<Operation> {
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    let found = Operation::ALL
        .iter()
        .copied()
        .filter(|operation| !operation.is_copy() && name.contains(&operation.name().replace('_', "")));
    // `reduce` and `gather` are parts of other names.
    found.max_by_key(|operation| operation.name().len())
}

/// A known version at the start of a text.
fn version(library: Library, text: &str) -> Option<Version> {
    let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit()).unwrap_or(text.len());
    parse_library(&format!("{}:{}", library.name(), &text[..end])).ok()?.version
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1001 on  node-a device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   2001 on  node-b device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           128     float    none      -1    13.37    0.08    0.04       0    13.61    0.08    0.04       0
        2048           256     float    none      -1    14.25    0.14    0.07       0    13.90    0.15    0.07       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.05
# Collective test concluded: all_gather_perf
";

    const OLD: &str = "\
# Using devices
#   Rank  0 Pid  20001 on    node07 device  0 [0x06] Tesla V100-SXM2-32GB
#   Rank  1 Pid  20001 on    node07 device  1 [0x07] Tesla V100-SXM2-32GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    33554432       8388608   float     sum   1520.1   22.07   22.07  5e-07   1519.8   22.08   22.08  5e-07
";

    #[test]
    fn a_new_log_names_everything() {
        let log = read(NEW, None, None).unwrap();
        let machine = &log.tables[0].machine;
        assert_eq!(
            (machine.library, machine.version),
            (Some(Library::Nccl), Some(Version { major: 2, minor: 28 }))
        );
        assert_eq!((machine.hosts.len(), machine.ranks, machine.one_thread), (2, Some(2), false));
        assert_eq!(machine.gpu.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        let table = &log.tables[0];
        assert_eq!((table.operation, table.line), (Operation::AllGather, 10));
        assert_eq!(table.calls, [(1024, 13.37), (2048, 14.25)]);
        let detail =
            Detail { line: 12, out_of_place_us: Some(13.37), in_place_us: Some(13.61), wrong: Some(0) };
        assert_eq!(table.details[0], detail);
        let damaged =
            read(&NEW.replace("0.04       0    13.61", "0.04      96    13.61"), None, None).unwrap();
        assert_eq!(damaged.tables[0].details[0].wrong, Some(96));
    }

    #[test]
    fn launchers_put_words_in_front_of_lines() {
        for front in ["[1,0]<stdout>: ", "0: ", "2026-03-01T10:00:00Z  "] {
            let text: String = NEW.lines().map(|line| format!("{front}{line}\n")).collect();
            assert_eq!(read(&text, None, None).unwrap(), read(NEW, None, None).unwrap(), "{front}");
        }
    }

    #[test]
    fn a_file_or_its_name_says_the_collective_of_an_old_log() {
        let log = read(OLD, None, of_name("results/all-reduce_v100.log")).unwrap();
        assert_eq!(log.tables[0].operation, Operation::AllReduce);
        assert_eq!(log.tables[0].calls, [(33_554_432, 1520.1)]);
        assert_eq!(read(OLD, None, None), Err(LogError::Unclear { line: 6 }));
        assert_eq!(of_name("reduce-scatter.log"), Some(Operation::ReduceScatter));
        assert_eq!(of_name("allreduce.out"), Some(Operation::AllReduce));
        assert_eq!(of_name("job-1234.out"), None);
    }

    #[test]
    fn columns_tell_most_collectives() {
        let of = |redop: &str, root: &str, busbw: &str| {
            let row = format!("33554432 1 float {redop} {root} 1000.0 33.55 {busbw} 0 N/A N/A N/A N/A");
            read(&format!("{HEAD}\n{row}\n"), None, None).map(|log| log.tables[0].operation)
        };
        assert_eq!(of("sum", "-1", "58.72"), Ok(Operation::AllReduce));
        assert_eq!(of("sum", "-1", "29.36"), Ok(Operation::ReduceScatter));
        assert_eq!(of("sum", "0", "33.55"), Ok(Operation::Reduce));
        assert_eq!(of("none", "0", "33.55"), Ok(Operation::Broadcast));
        assert_eq!(of("none", "-1", "33.55"), Ok(Operation::SendReceive));
        assert_eq!(of("none", "-1", "29.36"), Err(LogError::Unclear { line: 1 }));
    }

    #[test]
    fn version_1_prints_milliseconds() {
        let text = "all_reduce_perf\n# bytes N type op time algbw busbw res time algbw busbw res\n\
                    10000000 10000000 char sum 0.950 10.53 10.53 0e+00 0.940 10.64 10.64 0e+00\n";
        let log = read(text, None, None).unwrap();
        assert_eq!(log.tables[0].calls, [(10_000_000, 950.0)]);
    }

    const HEAD: &str = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";

    /// A program's output: its name, its ranks, and a row.
    fn program_of(name: &str, ranks: u32, row: &str) -> String {
        let ranks: String = (0..ranks)
            .map(|rank| format!("# Rank {rank} Group 0 Pid 7 on n1 device {rank} [0x1b] Tesla V100\n"))
            .collect();
        format!(
            "+ ./build/{name} -b 8\n# nThread 1 nGpus 8 minBytes 8\n# Using devices\n{ranks}{HEAD}\n{row}\n"
        )
    }

    #[test]
    fn every_program_of_a_file_has_its_own_machine() {
        let row = "33554432 1 float sum -1 1000.0 33.55 58.72 0 1000.0 33.55 58.72 0";
        let gather = "33554432 1 float none -1 1000.0 33.55 25.17 0 1000.0 33.55 25.17 0";
        let text = program_of("all_reduce_perf", 4, row)
            + &program_of("nccl_perf/all_gather_perf", 8, gather)
            + &program_of("hypercube_perf", 8, gather)
            + &program_of("all_reduce_perf", 2, row);
        let log = read(&text, None, None).unwrap();
        let found: Vec<_> = log.tables.iter().map(|table| (table.operation, table.machine.ranks)).collect();
        assert_eq!(
            found,
            [
                (Operation::AllReduce, Some(4)),
                (Operation::AllGather, Some(8)),
                (Operation::AllReduce, Some(2))
            ]
        );
        assert!(log.tables[0].machine.one_thread);
        let threads = text.replace("nThread 1 nGpus 8", "nThread 8 nGpus 1");
        assert!(!read(&threads, None, None).unwrap().tables[0].machine.one_thread);
        assert_eq!(log.notes.len(), 1, "{:?}", log.notes);
        assert!(log.notes[0].contains("hypercube_perf is not predicted"));
    }

    #[test]
    fn columns_are_counted_from_the_type() {
        let calls = |head: &str, row: &str| {
            read(&format!("{head}\n{row}\n"), Some(Operation::AllToAll), None)
                .map(|log| log.tables[0].calls.clone())
        };
        let expected = Ok(vec![(33_554_432, 1000.0)]);
        // Nothing where the reduction was, the time of day, and no number out of place.
        assert_eq!(calls(HEAD, "33554432 1 float -1 1000.0 33.55 25.17 0 1000.0 33.55 25.17 N/A"), expected);
        let timestamp = format!("{HEAD} timestamp");
        assert_eq!(
            calls(
                &timestamp,
                "33554432 1 float none -1 1000.0 33.55 25.17 0 1.0 2.0 3.0 0 2026-03-01 10:00:00"
            ),
            expected
        );
        assert_eq!(calls(HEAD, "33554432 1 float none -1 N/A N/A N/A N/A 1000.0 33.55 25.17 0"), expected);
        let more = read(
            &format!("{HEAD}\n33554432 1 float none -1 1000.0 33.55 25.17 0 1000.0 33.55 25.17 0 OK\n"),
            None,
            None,
        );
        assert!(
            more.unwrap_err()
                .to_string()
                .contains("11 cells after the type, and the heading in line 1 names 10")
        );
        let wrong = calls(HEAD, "33554432 1 float none -1 33.55 25.17 0 0 1000.0 33.55 25.17 0");
        assert!(wrong.unwrap_err().to_string().contains("do not fit together"));
    }

    #[test]
    fn a_table_is_not_of_another_collective() {
        let row = "33554432 1 float sum -1 1000.0 33.55 58.72 0 1000.0 33.55 58.72 0";
        let named = program_of("all_reduce_perf", 8, row);
        assert!(
            read(&named, Some(Operation::AllGather), None).unwrap_err().to_string().contains("names another")
        );
        let unnamed = format!("{HEAD}\n{row}\n");
        assert!(
            read(&unnamed, Some(Operation::AllGather), None)
                .unwrap_err()
                .to_string()
                .contains("it has a reduction")
        );
        assert_eq!(
            read(&unnamed, None, of_name("gathered.log")).unwrap().tables[0].operation,
            Operation::AllReduce
        );
        let split = named.replace("Rank 3 Group 0", "Rank 3 Group 1");
        assert!(read(&split, None, None).unwrap_err().to_string().contains("NCCL_TESTS_SPLIT"));
    }

    #[test]
    fn versions_are_found() {
        for (line, library, minor) in [
            ("[1,0]<stdout>:NCCL version 2.21.5+cuda12.4", Library::Nccl, 21),
            ("RCCL version : 2.22.3-HEAD:9c2b0b1", Library::Rccl, 22),
            ("# nccl-tests version 2.13 nccl-library=2804", Library::Nccl, 8),
        ] {
            let log = read(&format!("{line}\n{NEW}"), None, None).unwrap();
            let machine = &log.tables[0].machine;
            assert_eq!(
                (machine.library, machine.version),
                (Some(library), Some(Version { major: 2, minor })),
                "{line}"
            );
        }
    }

    #[test]
    fn times_of_the_cpu_are_refused() {
        let text = "\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root  cputime   algbw   busbw  #wrong  cputime   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1     4.21   31.02   31.02       0     4.18   31.15   31.15       0
     2097152        524288     float     sum      -1     4.35   48.77   48.77       0     4.30   48.90   48.90       0
# Out of bounds values : 0 OK
";
        for front in ["", "[1,0]<stdout>: "] {
            let text: String = text.lines().map(|line| format!("{front}{line}\n")).collect();
            let refused = read(&text, None, None).unwrap_err();
            assert_eq!(refused, LogError::CpuTime { line: 4 });
            assert!(refused.to_string().contains("measure again without -C"), "{refused}");
        }
        // A line of options that mentions it is no heading.
        assert_eq!(read(&format!("# -C,--report_cputime <0/1>\n{NEW}"), None, None).unwrap().tables.len(), 1);
    }

    #[test]
    fn other_texts_have_no_table() {
        for text in ["", "# type time algbw busbw\nno row\n", "a;b\n1;2\n"] {
            assert!(matches!(read(text, None, None), Err(LogError::NoTable { .. })), "{text}");
        }
    }
}
