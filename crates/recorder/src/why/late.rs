//! Stragglers: how long after the first rank each rank begins its calls.

use serde::Serialize;

use super::call_of;
use crate::recorder::Record;

/// How late a rank is, over the calls that all records have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lateness {
    /// The rank.
    pub rank: u32,
    /// The median delay after the first rank.
    pub median_ns: u64,
    /// The largest delay.
    pub most_ns: u64,
    /// The number of calls in which it was last.
    pub was_last: usize,
    /// The number of calls.
    pub calls: usize,
}

/// With fewer calls, a median means nothing.
const CALLS_MIN: usize = 5;
/// Older calls are ignored.
const CALLS_MAX: usize = 4096;

/// The latest rank first; empty unless two ranks have enough calls in common. On GPUs, records have the times at which calls were enqueued,
/// which says nothing about when they ran.
pub(super) fn lateness(records: &[&Record]) -> Vec<Lateness> {
    if records.iter().any(|record| record.is_on_gpu()) {
        return Vec::new();
    }
    let records: Vec<&Record> = records.iter().copied().filter(|record| !record.calls.is_empty()).collect();
    let [first, _, ..] = records[..] else { return Vec::new() };
    // Ranks on one host share a monotonic clock. Between hosts, compare the time of day, as far as the clocks agree.
    let one_host = records.iter().all(|record| record.host == first.host);
    let start_ns = |record: &Record, ns: u64| match one_host {
        true => i128::from(ns),
        false => i128::from(ns) + i128::from(record.realtime_offset_ns),
    };
    let mut late: Vec<Vec<u64>> = vec![Vec::new(); records.len()];
    let mut was_last = vec![0; records.len()];
    for call in first.calls.iter().rev().take(CALLS_MAX) {
        let start = |record: &&Record| Some(start_ns(record, call_of(record, call.number)?.start_ns));
        let Some(starts) = records.iter().map(start).collect::<Option<Vec<i128>>>() else { continue };
        let earliest = starts.iter().min().copied().unwrap_or(0);
        let latest = starts.iter().enumerate().max_by_key(|(_, start)| **start).map_or(0, |(at, _)| at);
        was_last[latest] += 1;
        for (late, start) in late.iter_mut().zip(starts) {
            late.push(u64::try_from(start - earliest).unwrap_or(u64::MAX));
        }
    }
    if late[0].len() < CALLS_MIN {
        return Vec::new();
    }
    let summary = |((record, mut late), was_last): ((&&Record, Vec<u64>), usize)| {
        late.sort_unstable();
        let calls = late.len();
        Lateness { rank: record.rank, median_ns: late[calls / 2], most_ns: late[calls - 1], was_last, calls }
    };
    let mut all: Vec<Lateness> = records.iter().zip(late).zip(was_last).map(summary).collect();
    all.sort_by_key(|late| std::cmp::Reverse((late.median_ns, late.most_ns)));
    all
}
