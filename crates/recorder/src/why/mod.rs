//! What was everybody waiting for: the records of all ranks, merged into sentences and a table.
//!
//! Pure: records in, findings out. Who reads them from a folder and who asks ranks that still run do the same with them.
//!
//! Ranks number their calls alike, so the same number is the same call. From there: ranks whose calls of one number
//! differ are the first thing to be told; then processes that are gone, errors, who fell behind, who waits for whom and
//! where that ends; and who usually comes last, which is not wrong but costs the others time.

mod late;
mod sentences;

use std::collections::BTreeMap;

use serde::Serialize;
use weftlink_bootstrap::Blame;
use weftlink_shm::line::distance;

pub use late::Lateness;
pub use sentences::named as ranks_in_words;

use crate::recorder::{CallRecord, CallState, Process, RankState, Record};

/// What was found, of every job there were records of.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    /// Each job, those in which something is wrong first.
    pub jobs: Vec<Job>,
}

/// What was found of one communicator.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// Its number.
    pub job: String,
    /// How many ranks it has.
    pub size: u32,
    /// Whether something is wrong: a rank failed, is gone or missing, differs, or everybody waits for somebody.
    pub is_wrong: bool,
    /// What is to be said, the most important first.
    pub sentences: Vec<String>,
    /// Each rank there is a record of.
    pub ranks: Vec<RankLine>,
    /// Ranks there is no record of.
    pub missing: Vec<u32>,
    /// How late each rank usually is, where several ranks' times can be compared.
    pub late: Vec<Lateness>,
}

/// A rank in the table.
#[derive(Clone, Debug, Serialize)]
pub struct RankLine {
    /// The rank.
    pub rank: u32,
    /// Where it runs.
    pub host: String,
    /// In which process.
    pub pid: u32,
    /// `running`, `stopped`, `failed`, `left`, `gone`.
    pub state: &'static str,
    /// The number of its last call.
    pub call: Option<u32>,
    /// What that is.
    pub what: String,
    /// The plan it took.
    pub plan: String,
    /// How far that is: `running`, `done`, `failed`.
    pub call_state: &'static str,
    /// What it waits for, or waited for last.
    pub waiting: String,
    /// For how long, if it is known when the record was taken.
    pub waited_s: Option<f64>,
    /// Its error.
    pub error: Option<String>,
    /// The ranks that the error blames.
    pub blamed: Vec<Blame>,
}

/// Merges records, of one job or of several.
pub fn explain(records: &[Record]) -> Why {
    let mut by_job: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        by_job.entry(&record.job).or_default().push(record);
    }
    let mut jobs: Vec<Job> = by_job.into_values().map(job).collect();
    jobs.sort_by_key(|job| !job.is_wrong);
    Why { jobs }
}

fn job(mut records: Vec<&Record>) -> Job {
    records.sort_by_key(|record| record.rank);
    records.dedup_by_key(|record| record.rank);
    let size = records.iter().map(|record| record.size).max().unwrap_or(0);
    let mut there = records.iter().map(|record| record.rank).peekable();
    let missing: Vec<u32> =
        (0..size).filter(|rank| there.next_if_eq(rank).is_none()).take(MISSING_MAX).collect();
    let late = late::lateness(&records);
    let picture = Picture { records: &records, size, missing: &missing };
    let (sentences, is_wrong) = picture.sentences(&late);
    let ranks = records.iter().map(|record| line(record)).collect();
    Job { job: records[0].job.clone(), size, is_wrong, sentences, ranks, missing, late }
}

/// No more missing ranks than this are counted out.
const MISSING_MAX: usize = 10_000;

/// The records of one job, in the order of ranks.
struct Picture<'a> {
    records: &'a [&'a Record],
    size: u32,
    missing: &'a [u32],
}

/// The same call, of those that a record holds.
fn call_of(record: &Record, number: u32) -> Option<&CallRecord> {
    let newest = record.last_number()?;
    let back = usize::try_from(newest.wrapping_sub(number)).ok()?;
    // Numbers follow each other, but a call that was being written when it was read is not there.
    let near = record.calls.len().checked_sub(1)?.checked_sub(back);
    let near = near.and_then(|at| record.calls.get(at)).filter(|call| call.number == number);
    near.or_else(|| record.calls.iter().find(|call| call.number == number))
}

/// The number of the call that the first of the ranks is in.
fn furthest(records: &[&Record]) -> Option<u32> {
    let numbers = records.iter().filter_map(|record| record.last_number());
    numbers.reduce(|one, other| if distance(one, other) > 0 { one } else { other })
}

fn is_gone(record: &Record) -> bool {
    record.state == RankState::Running && record.process == Some(Process::Gone)
}

fn line(record: &Record) -> RankLine {
    let last = record.calls.last();
    let state = match record.state {
        RankState::Running if is_gone(record) => "gone",
        RankState::Running if record.process == Some(Process::Stopped) => "stopped",
        RankState::Running => "running",
        RankState::Failed => "failed",
        RankState::Left => "left",
    };
    let waiting = record.waiting.as_ref().map_or_else(String::new, |waiting| {
        let rank = waiting.rank.map_or_else(String::new, |rank| format!("rank {rank} "));
        let step = waiting.lane.zip(waiting.step);
        let step = step.map_or_else(String::new, |(lane, step)| format!(" (lane {lane}, step {step})"));
        match waiting.what.as_str() {
            "a message" | "a signal" => format!("{} from {}{step}", waiting.what, rank.trim_end()),
            what => format!("{rank}{what}{step}"),
        }
    });
    let waited = |since_ns: u64| record.taken_ns.map(|taken| taken.saturating_sub(since_ns) as f64 / 1e9);
    RankLine {
        rank: record.rank,
        host: record.host.clone(),
        pid: record.pid,
        state,
        call: last.map(|call| call.number),
        what: last.map_or_else(String::new, |call| call.what.clone()),
        plan: last.map_or_else(String::new, |call| call.plan.clone()),
        call_state: last.map_or("", |call| match call.state {
            CallState::Running => "running",
            CallState::Done => "done",
            CallState::Failed => "failed",
        }),
        waiting,
        waited_s: record.waiting.as_ref().and_then(|waiting| waited(waiting.since_ns)),
        error: record.error.clone(),
        blamed: record.blamed.clone(),
    }
}

#[cfg(test)]
mod tests;
