//! What a running or finished job does with communication: `weft doctor --job`.
//!
//! A [`Job`] has the calls of each rank, from one of three sources: Weft's flight recorder ([`records`]), traces of torch.profiler
//! ([`torch`]), and the kernels that Nsight Systems lists ([`nsys`]). [`Job::add_trace`] recognises the file. [`explain`] returns tables of
//! the calls and the findings.
//!
//! Times of different ranks are compared by durations, not by clocks: a collective ends on all ranks at about the same time, so that the
//! rank whose kernel took the least time came last, and the others waited for it. That holds between hosts, too.
//!
//! Deliberately absent: opening files, and decompressing them.

pub mod collective;
mod error;
mod findings;
mod matching;
pub mod nsys;
pub mod records;
mod spans;
mod summary;
pub mod torch;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use serde::Serialize;
use weftlink_fabric::Fabric;
use weftlink_plan::Kind;

pub use error::JobError;
pub use matching::{Matched, Matching, matched};
pub use spans::Spans;
pub use summary::{CollectiveSummary, RankSummary, SizeClass, SizeRate, Summary};

use crate::finding::Report;

/// Bytes of one trace.
pub const BYTES_MAX: u64 = 2 << 30;
/// Calls that are kept of one trace. A longer trace is an error: record fewer steps.
pub const CALLS_MAX: usize = 4_000_000;
/// Ranks of a job; devices of a trace.
pub const RANKS_MAX: usize = 65_536;

/// Where a job was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Weft's flight recorder.
    Recorder,
    /// A trace of torch.profiler.
    Torch,
    /// A list of kernels of Nsight Systems.
    Nsys,
}

impl Source {
    /// Its name in sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorder => "Weft's flight recorder",
            Self::Torch => "torch.profiler",
            Self::Nsys => "Nsight Systems",
        }
    }
}

/// The calls of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Where they were read from.
    pub sources: Vec<Source>,
    /// The ranks whose calls are known, in the order of their numbers.
    pub ranks: Vec<Rank>,
    /// How often the functions of `nn.DataParallel` ran, by name; None if no source shows functions of the host.
    pub data_parallel: Option<BTreeMap<&'static str, u64>>,
    /// Remarks on what was read: what is missing, what was assumed.
    pub notes: Vec<String>,
}

/// What one rank did; in a process that uses several devices, what one device did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rank {
    /// `rank 3`, or `GPU 1` where the source does not know ranks.
    pub name: String,
    /// Its number, for the order.
    pub number: u32,
    /// Its host, where known.
    pub host: Option<String>,
    /// Its communication, by start.
    pub calls: Vec<Call>,
    /// When its device did something else; empty if the source does not show it.
    pub other_work: Spans,
    /// How long its steps took, in nanoseconds.
    pub steps_ns: Vec<u64>,
    /// Whether starts of its calls compare with those of other ranks on the same host.
    pub shares_clock: bool,
}

/// One collective, or one message, of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What it is, where known.
    pub kind: Option<Kind>,
    /// Its bytes as nccl-tests counts them: of the larger of the rank's two buffers.
    pub bytes: Option<u64>,
    /// The ranks of its group.
    pub ranks: Option<u32>,
    /// The name of its group; calls of other groups are other sequences.
    pub group: Option<Arc<str>>,
    /// Its number in its group, where the source has one.
    pub sequence: Option<u64>,
    /// When it started, by a clock of the rank's host.
    pub start_ns: i64,
    /// How long it took; for a kernel, from its start to its end on the device, which includes waiting for other ranks.
    pub duration_ns: Option<u64>,
}

impl Call {
    /// The name of the collective.
    pub fn name(&self) -> &'static str {
        self.kind.map_or("unknown", Kind::name)
    }
}

impl Job {
    /// Adds a trace of torch.profiler or a list of kernels of Nsight Systems, whichever it is. `name` is the name of the file, which may
    /// contain the rank: `rank3.json`.
    pub fn add_trace(&mut self, name: &str, trace: impl Read) -> Result<(), JobError> {
        let mut trace = BufReader::with_capacity(1 << 16, trace);
        let head = trace.fill_buf().map_err(|error| JobError::Unreadable(error.to_string()))?;
        let first = head.iter().find(|byte| !byte.is_ascii_whitespace() && !UTF8_MARK.contains(byte));
        let head_text = String::from_utf8_lossy(&head[..head.len().min(64)]).into_owned();
        match first {
            _ if head.starts_with(b"SQLite format 3\0") => Err(JobError::Sqlite),
            _ if head.starts_with(&[0x1f, 0x8b]) => Err(JobError::Compressed),
            None => Err(JobError::Empty),
            Some(b'{' | b'[') => torch::add(self, name, trace),
            Some(_) if head.contains(&0) => Err(JobError::Unknown(head_text)),
            Some(_) => nsys::add(self, name, trace),
        }
    }

    /// Adds a rank, under a number of its own: the given one if no other rank has it.
    pub(crate) fn add_rank(&mut self, mut rank: Rank) -> Result<(), JobError> {
        if self.ranks.len() >= RANKS_MAX {
            return Err(JobError::TooMany { what: "ranks", limit: RANKS_MAX });
        }
        if self.ranks.iter().any(|known| known.name == rank.name) {
            let next = self.ranks.iter().map(|known| known.number).max().unwrap_or(0).saturating_add(1);
            rank.name = format!("{} (trace {next})", rank.name);
            rank.number = next;
        }
        rank.calls.sort_by_key(|call| call.start_ns);
        rank.other_work.merge();
        let at = self.ranks.partition_point(|known| known.number <= rank.number);
        self.ranks.insert(at, rank);
        Ok(())
    }

    pub(crate) fn add_source(&mut self, source: Source) {
        if let Err(at) = self.sources.binary_search(&source) {
            self.sources.insert(at, source);
        }
    }

    /// The calls of all ranks.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.ranks.iter().flat_map(|rank| &rank.calls)
    }

    /// The sources in words.
    pub fn subject(&self) -> String {
        let sources: Vec<&str> = self.sources.iter().map(|source| source.name()).collect();
        format!("job of {} ({})", counted(self.ranks.len() as u64, "rank"), sources.join(", "))
    }
}

/// The bytes of a mark that may precede text.
const UTF8_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Tables of a job's calls and the findings. With the fabric that it ran on, calls are compared with their predictions.
pub fn explain(job: &Job, fabric: Option<&Fabric>) -> (Summary, Report) {
    let matched = matched(job);
    let summary = Summary::of(job, &matched, fabric);
    let mut report = Report::new(job.subject());
    for finding in findings::ALL {
        report.add(finding.id, (finding.run)(&findings::Case { job, matched: &matched, summary: &summary }));
    }
    (summary, report)
}

/// `1 call`, `2 calls`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// A size in powers of 1024, as those of buckets and messages are: `100 KiB`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(units.len() as u32) as usize;
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    match unit.checked_sub(1) {
        None => counted(bytes, "byte"),
        Some(at) if value < 9.95 && value.fract() >= 0.05 => format!("{value:.1} {}", units[at]),
        Some(at) => format!("{value:.0} {}", units[at]),
    }
}

/// The sum, or the largest number if that is above it: files may have any.
pub(crate) fn total(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}

/// The value in the middle; the lower of two.
pub(crate) fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests;
