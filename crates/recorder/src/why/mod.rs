//! Why a job hangs or failed: merges the records of all ranks into sentences and a table.
//!
//! Pure: records in, findings out, whether the records come from a folder or from running ranks.
//!
//! All ranks number their calls alike, so the same number is the same call. The findings, most important first: calls of one number that
//! differ, processes that are gone, errors, ranks that fell behind, chains of waits and where they end, and a rank that usually comes
//! last, which is no error but costs the others time.

mod kernels;
mod late;
mod sentences;

use std::collections::BTreeMap;

use serde::Serialize;
use weftlink_bootstrap::Blame;
use weftlink_shm::line::distance;

pub use late::Lateness;
pub use sentences::named as ranks_in_words;

use crate::recorder::{CallRecord, CallState, Process, RankState, Record};

/// The findings for every job with records.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    /// The jobs, those with a problem first.
    pub jobs: Vec<Job>,
}

/// The findings for one communicator.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// Its number.
    pub job: String,
    /// Its number of ranks.
    pub size: u32,
    /// Whether there is a problem: a rank failed, is gone or missing, makes another call, or all wait for one.
    pub is_wrong: bool,
    /// The findings in words, most important first.
    pub sentences: Vec<String>,
    /// The ranks with a record.
    pub ranks: Vec<RankLine>,
    /// The ranks without a record.
    pub missing: Vec<u32>,
    /// How late each rank usually is, if ranks have calls in common.
    pub late: Vec<Lateness>,
}

/// A rank in the table.
#[derive(Clone, Debug, Serialize)]
pub struct RankLine {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// `running`, `stopped`, `failed`, `left`, `gone`.
    pub state: &'static str,
    /// The number of its last call; on a GPU, of the call in which a kernel waits, if one does.
    pub call: Option<u32>,
    /// A description of that call.
    pub what: String,
    /// The plan of that call.
    pub plan: String,
    /// The state of that call: `running`, `done`, `failed`, `enqueued`, `captured`.
    pub call_state: &'static str,
    /// Its current wait, or the wait in which it failed.
    pub waiting: String,
    /// The time of the wait, if the time of the record is known.
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

/// The most missing ranks that are listed.
const MISSING_MAX: usize = 10_000;

/// The records of one job, in the order of ranks.
struct Picture<'a> {
    records: &'a [&'a Record],
    size: u32,
    missing: &'a [u32],
}

/// The call of this number in a record.
fn call_of(record: &Record, number: u32) -> Option<&CallRecord> {
    let newest = record.last_number()?;
    let back = usize::try_from(newest.wrapping_sub(number)).ok()?;
    // Numbers are consecutive, except for a call that was being written when it was read.
    let near = record.calls.len().checked_sub(1)?.checked_sub(back);
    let near = near.and_then(|at| record.calls.get(at)).filter(|call| call.number == number);
    near.or_else(|| record.calls.iter().find(|call| call.number == number))
}

/// The number of the call that a rank is in: on a GPU, that in which a kernel waits, if one does.
fn position(record: &Record) -> Option<u32> {
    kernels::kernel_wait(record).map(|waiting| waiting.call).or_else(|| record.last_number())
}

/// The highest of these numbers of calls.
fn furthest(numbers: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    numbers.flatten().reduce(|one, other| if distance(one, other) > 0 { one } else { other })
}

fn is_gone(record: &Record) -> bool {
    record.state == RankState::Running && record.process == Some(Process::Gone)
}

fn line(record: &Record) -> RankLine {
    let number = position(record);
    let last = number.and_then(|number| call_of(record, number));
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
        let blocks = waiting.blocks.map_or_else(String::new, |[these, all]| match all {
            1 => "; one block waits".to_owned(),
            _ => format!("; {these} of {all} waiting blocks"),
        });
        let step =
            step.map_or_else(String::new, |(lane, step)| format!(" (lane {lane}, step {step}{blocks})"));
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
        call: number,
        what: last.map_or_else(String::new, |call| call.what.clone()),
        plan: last.map_or_else(String::new, |call| call.plan.clone()),
        call_state: last.map_or("", |call| match kernels::kernel_wait(record) {
            Some(_) if record.state == RankState::Running => CallState::Running.name(),
            _ => call.state.name(),
        }),
        waiting,
        waited_s: record.waiting.as_ref().and_then(|waiting| waited(waiting.since_ns)),
        error: record.error.clone(),
        blamed: record.blamed.clone(),
    }
}

#[cfg(test)]
mod tests;
