//! Reads the output of nccl-tests and rccl-tests, of any version, with or without what a launcher puts in front of its lines.
//!
//! A table is found by its heading, and its columns by their names, because both changed between versions. The collective is that of a
//! line that names the program, of the file's name, or follows from the columns: which of reduction and root are given, and the ratio of
//! busbw to algbw.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::published::BYTES_MAX;
use crate::setup::{Library, Operation, Version};

/// The output of one or more programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// The library, if the log names it.
    pub library: Option<Library>,
    /// Its version.
    pub version: Option<Version>,
    /// The names of the hosts, sorted.
    pub hosts: Vec<String>,
    /// The number of ranks: of GPUs.
    pub ranks: Option<u32>,
    /// Whether a process has several GPUs, whose kernels one thread launches.
    pub one_thread: bool,
    /// The name of the GPUs, as their driver gives it.
    pub gpu: Option<String>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// A table of one collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The line of its heading.
    pub line: usize,
    /// The collective.
    pub operation: Operation,
    /// Sizes in bytes, and microseconds: those out of place, where they were measured.
    pub calls: Vec<(u64, f64)>,
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
    #[error("no table of nccl-tests: a heading with size, time, algbw and busbw, and rows of numbers")]
    NoTable,
    /// The collective of a table is not clear.
    #[error(
        "line {line}: the table does not say which collective it is of; write it before the file, as in all_gather=FILE (all_reduce, \
         all_gather, reduce_scatter, broadcast, reduce, alltoall, sendrecv, gather, scatter)"
    )]
    Unclear {
        /// The line of its heading.
        line: usize,
    },
}

/// The columns of a table, counted from the last: launchers and schedulers put words in front of lines.
struct Columns {
    count: usize,
    size: usize,
    reduction: Option<usize>,
    root: Option<usize>,
    times: Vec<usize>,
    algbw: usize,
    busbw: usize,
}

/// What a row shows beside size and time.
struct Row {
    bytes: u64,
    time: f64,
    algbw: f64,
    busbw: f64,
    has_reduction: Option<bool>,
    has_root: Option<bool>,
}

/// Reads a log. Its collective is the given one, or that of a program it names, or of its file's name, or of its columns.
pub fn read(text: &str, given: Option<Operation>, by_name: Option<Operation>) -> Result<Log, LogError> {
    if text.len() > BYTES_MAX {
        return Err(LogError::TooLong { bytes: text.len() });
    }
    let mut log = Log::default();
    let mut columns: Option<(usize, Columns)> = None;
    let mut rows: Vec<Row> = Vec::new();
    let mut named: Option<Operation> = None;
    let mut ranks: BTreeMap<u32, String> = BTreeMap::new();
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        if let Some(found) = Columns::of(line) {
            finish(&mut log, columns.take(), &mut rows, given.or(named).or(by_name))?;
            columns = Some((number, found));
            continue;
        }
        if let Some(row) = columns.as_ref().and_then(|(_, columns)| columns.row(line)) {
            rows.push(row);
            continue;
        }
        if let Some(operation) = program(line) {
            finish(&mut log, columns.take(), &mut rows, given.or(named).or(by_name))?;
            named = Some(operation);
        }
        facts(line, &mut log, &mut ranks);
    }
    finish(&mut log, columns, &mut rows, given.or(named).or(by_name))?;
    if log.tables.is_empty() {
        return Err(LogError::NoTable);
    }
    log.ranks = u32::try_from(ranks.len()).ok().filter(|ranks| *ranks > 0);
    let processes: BTreeSet<&String> = ranks.values().collect();
    log.one_thread = processes.len() < ranks.len();
    log.hosts.sort_unstable();
    log.hosts.dedup();
    if log.gpu.as_deref().is_some_and(|gpu| gpu.contains("AMD") || gpu.contains("Instinct")) {
        log.library = Some(Library::Rccl);
    }
    Ok(log)
}

/// Ends a table.
fn finish(
    log: &mut Log,
    columns: Option<(usize, Columns)>,
    rows: &mut Vec<Row>,
    named: Option<Operation>,
) -> Result<(), LogError> {
    let rows = std::mem::take(rows);
    let Some((line, _)) = columns.filter(|_| !rows.is_empty()) else { return Ok(()) };
    let operation = named.or_else(|| by_columns(&rows)).ok_or(LogError::Unclear { line })?;
    let unit = unit(&rows);
    let calls = rows.iter().map(|row| (row.bytes, row.time * unit)).collect();
    log.tables.push(Table { line, operation, calls });
    Ok(())
}

impl Columns {
    /// The columns of a heading.
    fn of(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let start = words.iter().position(|word| matches!(*word, "size" | "bytes" | "#size" | "#bytes"))?;
        let names: Vec<String> =
            words[start..].iter().map(|word| word.trim_start_matches('#').to_ascii_lowercase()).collect();
        let place = |wanted: &[&str]| names.iter().position(|name| wanted.contains(&name.as_str()));
        let times: Vec<usize> = (0..names.len()).filter(|at| names[*at] == "time").collect();
        (!times.is_empty()).then_some(())?;
        Some(Self {
            count: names.len(),
            size: place(&["size", "bytes"])?,
            reduction: place(&["redop", "op"]),
            root: place(&["root"]),
            times,
            algbw: place(&["algbw"])?,
            busbw: place(&["busbw"])?,
        })
    }

    /// The numbers of a row; nothing for a line that is not a row.
    fn row(&self, line: &str) -> Option<Row> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let cells = &words[words.len().checked_sub(self.count)?..];
        let number =
            |at: usize| cells[at].parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
        let bytes = cells[self.size].parse().ok().filter(|bytes| (1..=1 << 50).contains(bytes))?;
        let at = self.times.iter().copied().find(|at| number(*at).is_some_and(|time| time > 0.0))?;
        // The bandwidths of a time come after it, in the same order as after the first.
        let shift = at - self.times[0];
        let beside = |column: usize| cells.get(column + shift).and_then(|cell| cell.parse::<f64>().ok());
        Some(Row {
            bytes,
            time: number(at)?,
            algbw: beside(self.algbw)?,
            busbw: beside(self.busbw)?,
            has_reduction: self.reduction.map(|at| cells[at] != "none"),
            has_root: self.root.map(|at| cells[at].parse::<i64>().is_ok_and(|root| root >= 0)),
        })
    }
}

/// Microseconds per unit of the time column: version 1 prints milliseconds.
fn unit(rows: &[Row]) -> f64 {
    let largest = rows.iter().filter(|row| row.algbw > 0.5).max_by_key(|row| row.bytes);
    largest.map_or(1.0, |row| {
        let us = row.bytes as f64 / row.algbw / 1e3;
        if us / row.time > 30.0 { 1e3 } else { 1.0 }
    })
}

/// The collective as far as the columns tell: an all-gather looks like an all-to-all.
fn by_columns(rows: &[Row]) -> Option<Operation> {
    let largest =
        rows.iter().max_by(|one, other| one.algbw.total_cmp(&other.algbw)).filter(|row| row.algbw > 0.5)?;
    let factor = largest.busbw / largest.algbw;
    let is_one = (factor - 1.0).abs() < 0.02;
    match (largest.has_reduction?, largest.has_root?) {
        (true, true) => Some(Operation::Reduce),
        (false, true) if is_one => Some(Operation::Broadcast),
        (true, false) if factor > 0.98 => Some(Operation::AllReduce),
        (true, false) => Some(Operation::ReduceScatter),
        (false, false) if is_one => Some(Operation::SendReceive),
        _ => None,
    }
}

/// The collective of a program that a text names, such as `all_reduce_perf`.
pub fn program(text: &str) -> Option<Operation> {
    let at = text.find("_perf")?;
    let start = text[..at]
        .rfind(|letter: char| letter != '_' && !letter.is_ascii_lowercase())
        .map_or(0, |before| before + 1);
    let name = text.get(start..at)?;
    Operation::from_name(name).filter(|operation| !operation.is_copy())
}

/// The collective that a file's name contains.
pub fn of_name(name: &str) -> Option<Operation> {
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    let mut found = Operation::ALL
        .iter()
        .copied()
        .filter(|operation| !operation.is_copy() && name.contains(&operation.name().replace('_', "")));
    // `reduce` and `gather` are parts of other names.
    let longest = found.next()?;
    Some(
        found.fold(
            longest,
            |longest, next| if next.name().len() > longest.name().len() { next } else { longest },
        ),
    )
}

/// What a line says about ranks, GPUs and the library.
fn facts(line: &str, log: &mut Log, ranks: &mut BTreeMap<u32, String>) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after =
        |word: &str| words.iter().position(|found| *found == word).and_then(|at| words.get(at + 1)).copied();
    if let (Some(rank), Some(host), Some(process)) = (after("Rank"), after("on"), after("Pid")) {
        if let Ok(rank) = rank.parse() {
            ranks.insert(rank, format!("{host} {process}"));
            log.hosts.push(host.to_owned());
        }
        if let Some((_, name)) = line.split_once("] ") {
            log.gpu.get_or_insert_with(|| name.trim().to_owned());
        }
    }
    for (library, name) in [(Library::Nccl, "NCCL"), (Library::Rccl, "RCCL")] {
        if after(name) == Some("version") {
            let number = words.iter().position(|word| *word == name).and_then(|at| words.get(at + 2));
            set(log, library, number.and_then(|number| version(number)));
        }
    }
    let coded = line.split_once("nccl-library=").map(|(_, rest)| rest);
    if let Some(code) =
        coded.and_then(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok())
    {
        // Two digits for each of minor and patch since 2.9, one before.
        let (major, minor) =
            if code >= 10_000 { (code / 10_000, code / 100 % 100) } else { (code / 1000, code / 100 % 10) };
        set(log, Library::Nccl, Some(Version { major, minor }));
    }
}

fn set(log: &mut Log, library: Library, version: Option<Version>) {
    log.library.get_or_insert(library);
    if log.version.is_none() {
        log.version = version;
    }
}

fn version(text: &str) -> Option<Version> {
    let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit()).unwrap_or(text.len());
    Version::parse(&text[..end]).ok().flatten()
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
        assert_eq!((log.library, log.version), (Some(Library::Nccl), Some(Version { major: 2, minor: 28 })));
        assert_eq!(
            (log.hosts.len(), log.ranks, log.gpu.as_deref()),
            (2, Some(2), Some("NVIDIA H100 80GB HBM3"))
        );
        let table = &log.tables[0];
        assert_eq!((table.operation, table.line), (Operation::AllGather, 10));
        assert_eq!(table.calls, [(1024, 13.37), (2048, 14.25)]);
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
            let head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
            let row = format!("33554432 1 float {redop} {root} 1000.0 33.55 {busbw} 0 N/A N/A N/A N/A");
            read(&format!("{head}\n{row}\n"), None, None).map(|log| log.tables[0].operation)
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

    #[test]
    fn other_texts_have_no_table() {
        assert_eq!(read("", None, None), Err(LogError::NoTable));
        assert_eq!(read("# size time algbw busbw\nno row\n", None, None), Err(LogError::NoTable));
    }
}
