//! The findings in words, most important first.

use std::collections::BTreeMap;

use weftlink_shm::line::distance;

use super::kernels::{begun, has_done, is_of_kernel, kernel_wait};
use super::{Lateness, Picture, call_of, furthest, is_gone, position};
use crate::recorder::{CallRecord, CallState, Process, RankState, Record, WaitRecord};

/// The most ranks that are listed one by one.
const LISTED_MAX: usize = 8;
/// A rank that is later than this in the median, and last in half of the calls, is reported.
const LATE_NS: u64 = 20_000;
/// Running ranks that have waited for less than this make progress.
const STUCK_NS: u64 = 1_000_000_000;

impl Picture<'_> {
    /// The sentences, and whether there is a problem.
    pub(super) fn sentences(&self, late: &[Lateness]) -> (Vec<String>, bool) {
        let mut sentences = Vec::new();
        self.mismatch(&mut sentences);
        self.gone(&mut sentences);
        self.stopped(&mut sentences);
        self.errors(&mut sentences);
        self.absent(&mut sentences);
        let is_at_work = sentences.is_empty() && self.is_at_work();
        if !is_at_work {
            self.behind(&mut sentences);
            self.waits(&mut sentences);
        }
        let is_wrong = !sentences.is_empty();
        let unreadable = self.unreadable();
        if !is_wrong {
            let all = match self.size {
                1 => "the only rank is".to_owned(),
                2 => "both ranks are".to_owned(),
                size => format!("all {size} ranks are"),
            };
            let finding = if unreadable.is_empty() { "Nothing is wrong" } else { "No problem is visible" };
            sentences.push(match furthest(self.records.iter().map(|record| position(record))) {
                Some(number) if is_at_work => {
                    format!("{finding}: {all} at work, around call #{number}.")
                }
                Some(number) => format!("{finding}: {all} at call #{number}."),
                None => format!("{finding}: {all} before the first call."),
            });
        }
        if !unreadable.is_empty() {
            let ranks = named(&unreadable);
            sentences.push(format!(
                "The waits of kernels of {ranks} are unknown: `weft why --attach` shows them, unless the driver refused to register the memory \
                 for them, which a rank logs as a warning."
            ));
        }
        if let Some(sentence) = straggler(late) {
            sentences.push(sentence);
        }
        (sentences, is_wrong)
    }

    /// Whether these are snapshots of a job that makes progress: every rank runs, and none has waited for long.
    fn is_at_work(&self) -> bool {
        self.records.iter().all(|record| {
            let waits_long = |taken: u64| {
                record
                    .waiting
                    .as_ref()
                    .is_some_and(|waiting| taken.saturating_sub(waiting.since_ns) >= STUCK_NS)
            };
            record.process == Some(Process::Runs) && record.taken_ns.is_some_and(|taken| !waits_long(taken))
        })
    }

    /// The first call in which ranks differ.
    fn mismatch(&self, sentences: &mut Vec<String>) {
        let mut numbers: Vec<u32> =
            self.records.iter().flat_map(|record| record.calls.iter().map(|call| call.number)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let different = numbers.into_iter().find_map(|number| {
            let mut kinds: BTreeMap<u32, (&CallRecord, Vec<u32>)> = BTreeMap::new();
            for record in self.records {
                if let Some(call) = call_of(record, number).filter(|call| call.signature != 0) {
                    kinds.entry(call.signature).or_insert((call, Vec::new())).1.push(record.rank);
                }
            }
            (kinds.len() > 1).then(|| (number, kinds.into_values().collect::<Vec<_>>()))
        });
        let Some((number, mut kinds)) = different else { return };
        // The smallest groups first: they are most likely wrong.
        kinds.sort_by_key(|(_, ranks)| ranks.len());
        let described = |(call, ranks): &(&CallRecord, Vec<u32>)| {
            let (are, what) = (if ranks.len() == 1 { "is" } else { "are" }, &call.what);
            format!("{} {are} in {what}", named(ranks))
        };
        let described: Vec<String> = kinds.iter().take(LISTED_MAX).map(described).collect();
        sentences.push(format!("Call #{number} differs: {}.", described.join(", while ")));
    }

    /// Processes that ended without leaving their communicator.
    fn gone(&self, sentences: &mut Vec<String>) {
        let blamed: Vec<u32> = self
            .records
            .iter()
            .filter(|record| record.state == RankState::Failed)
            .flat_map(|record| {
                record.blamed.iter().map(|blame| blame.rank).filter(|rank| *rank != record.rank)
            })
            .collect();
        for record in self.records.iter().filter(|record| is_gone(record)).take(LISTED_MAX) {
            let (host, pid) = (&record.host, record.pid);
            let call = position(record).and_then(|number| call_of(record, number));
            let waits = kernel_wait(record).is_some();
            let doing = match call {
                None => "before its first call".to_owned(),
                Some(call) if call.state == CallState::Running || waits => {
                    format!("in call #{}, {}", call.number, call.what)
                }
                Some(call) if call.state == CallState::Enqueued => {
                    format!("after it had enqueued call #{}, {}", call.number, call.what)
                }
                Some(call) => format!("after call #{}, {}", call.number, call.what),
            };
            let rank = record.rank;
            let how = if blamed.is_empty() || blamed.contains(&rank) {
                format!("died {doing}: it was killed or crashed")
            } else {
                format!(
                    "ended {doing}: most likely its launcher stopped it, since the errors blame another rank"
                )
            };
            sentences.push(format!("Rank {rank} ({host}, pid {pid}) {how}."));
        }
    }

    fn stopped(&self, sentences: &mut Vec<String>) {
        let is_stopped = |record: &&&Record| record.process == Some(Process::Stopped);
        for record in self.records.iter().filter(is_stopped).take(LISTED_MAX) {
            let Record { rank, host, pid, .. } = record;
            sentences.push(format!("Rank {rank} ({host}, pid {pid}) is stopped, by a signal or a debugger."));
        }
    }

    fn errors(&self, sentences: &mut Vec<String>) {
        let failed: Vec<&&Record> =
            self.records.iter().filter(|record| record.state == RankState::Failed).collect();
        // An error that another rank caused adds nothing, unless that rank has no record.
        let (following, leading): (Vec<&&Record>, Vec<&&Record>) =
            failed.into_iter().partition(|record| record.aborted_by.is_some());
        let shown = if leading.is_empty() { &following } else { &leading };
        for record in shown.iter().take(LISTED_MAX) {
            let error = record.error.as_deref().unwrap_or("");
            let error = if error.is_empty() { "unknown error" } else { error };
            sentences.push(format!("Rank {} failed: {error}.", record.rank));
        }
        let more: Vec<u32> = shown.iter().skip(LISTED_MAX).map(|record| record.rank).collect();
        if !more.is_empty() {
            sentences.push(format!("So did {}.", named(&more)));
        }
        if !leading.is_empty() && !following.is_empty() {
            let ranks: Vec<u32> = following.iter().map(|record| record.rank).collect();
            sentences.push(format!("{} aborted because of that.", capital(&named(&ranks))));
        }
    }

    /// Ranks without a record.
    fn absent(&self, sentences: &mut Vec<String>) {
        if !self.missing.is_empty() {
            let of = named(self.missing);
            let it = if self.missing.len() == 1 { "it" } else { "they" };
            sentences
                .push(format!("There is no record of {of}: {it} ended, ran elsewhere or never started."));
        }
    }

    /// The ranks that have made fewer calls than others, and are the reason: not those that wait for them in the same call.
    fn behind(&self, sentences: &mut Vec<String>) {
        // On a GPU, a program that has enqueued more calls than others is not ahead of them.
        let Some(furthest) = furthest(self.records.iter().map(|record| begun(record))) else { return };
        let last = |record: &Record| {
            position(record).map_or(i64::MIN, |number| i64::from(distance(number, furthest)))
        };
        let Some(least) = self.records.iter().map(|record| last(record)).min().filter(|least| *least < 0)
        else {
            return;
        };
        let is_behind = |record: &&Record| last(record) == least && !self.is_held_up(record);
        let behind: Vec<&Record> = self.records.iter().copied().filter(is_behind).collect();
        // Ranks that only wait for each other or for a rank without a record; other sentences name these.
        if behind.is_empty() {
            return;
        }
        let ranks: Vec<u32> = behind.iter().map(|record| record.rank).collect();
        let (has, is, it, its) = match ranks.len() {
            1 => ("has", "is", "it", "its"),
            _ => ("have", "are", "they", "their"),
        };
        let first = behind[0];
        let waits = kernel_wait(first).is_some();
        let at = match position(first).and_then(|number| call_of(first, number)) {
            None => format!("{it} {has} made no call"),
            Some(call) if (call.state == CallState::Running || waits) && is_gone(first) => {
                format!("{it} ended in #{}, {}", call.number, call.what)
            }
            Some(call) if call.state == CallState::Running || waits => {
                format!("{it} {is} still in #{}, {}", call.number, call.what)
            }
            Some(call) => {
                let idle =
                    first.taken_ns.map(|taken| taken.saturating_sub(call.end_ns.unwrap_or(call.start_ns)));
                let idle = idle.map_or_else(String::new, |ns| {
                    format!(", and {it} {has} called nothing for {}", time(ns))
                });
                let last = match call.state {
                    CallState::Enqueued | CallState::Captured => {
                        format!("the last call that {it} {has} enqueued")
                    }
                    _ => format!("{its} last call"),
                };
                format!("{last} is #{}, {}{idle}", call.number, call.what)
            }
        };
        let ahead = self.records.iter().filter(|record| begun(record) == Some(furthest));
        let ahead: Vec<u32> = ahead.map(|record| record.rank).collect();
        let (are, what) = (if ahead.len() == 1 { "is" } else { "are" }, self.what(furthest));
        sentences.push(format!(
            "{} fell behind first: {at}, while {} {are} in #{furthest}, {what}.",
            capital(&named(&ranks)),
            named(&ahead)
        ));
    }

    fn what(&self, number: u32) -> &str {
        let call = self.records.iter().find_map(|record| call_of(record, number));
        call.map_or("a call", |call| call.what.as_str())
    }

    /// Whether a rank is in a call that it cannot finish before another rank does its part.
    fn is_held_up(&self, record: &Record) -> bool {
        let Some(waiting) = record.waiting.as_ref().filter(|_| !is_halted(record)) else { return false };
        let is_in = |call: &CallRecord| call.state != CallState::Done && call.number == waiting.call;
        if !waiting.in_group && !is_of_kernel(waiting) && !record.calls.last().is_some_and(is_in) {
            return false;
        }
        match waiting.rank {
            Some(_) => !self.is_served(waiting),
            None => (0..self.size).any(|rank| rank != record.rank && !self.is_past(rank, waiting.call)),
        }
    }

    /// Whether the awaited rank has done its part, and the rank that waits for it has not polled since.
    /// A group is no call: other ranks may make later calls before they send its messages.
    fn is_served(&self, waiting: &WaitRecord) -> bool {
        !waiting.in_group && waiting.rank.is_some_and(|rank| self.is_past(rank, waiting.call))
    }

    /// Whether a rank has made a later call: then it has done its part of this one. On a GPU, its kernels show that.
    fn is_past(&self, rank: u32, call: u32) -> bool {
        match self.records.iter().find(|record| record.rank == rank) {
            None => false,
            Some(record) if record.is_on_gpu() => has_done(record, call),
            Some(record) => record.last_number().is_some_and(|last| distance(last, call) > 0),
        }
    }

    /// The waits, and where their chain ends.
    fn waits(&self, sentences: &mut Vec<String>) {
        let waiting: Vec<(&Record, &WaitRecord)> = self
            .records
            .iter()
            .filter(|record| record.state != RankState::Left)
            .filter_map(|record| Some((*record, record.waiting.as_ref()?)))
            .filter(|(_, waiting)| !self.is_served(waiting))
            .collect();
        // Those with the same call (none in a group), awaited rank and kind are one sentence.
        type Alike<'a> = BTreeMap<(Option<u32>, Option<u32>, &'a str), Vec<(&'a Record, &'a WaitRecord)>>;
        let mut alike = Alike::new();
        for &(record, waiting) in &waiting {
            let call = (!waiting.in_group).then_some(waiting.call);
            alike.entry((call, waiting.rank, &waiting.what)).or_default().push((record, waiting));
        }
        let mut alike: Vec<_> = alike.into_iter().collect();
        alike.sort_by_key(|(_, waits)| (std::cmp::Reverse(waits.len()), waits[0].0.rank));
        for ((call, rank, what), waits) in alike.into_iter().take(LISTED_MAX) {
            let ranks: Vec<u32> = waits.iter().map(|(record, _)| record.rank).collect();
            let since = |(record, waiting): &(&Record, &WaitRecord)| {
                Some(record.taken_ns?.saturating_sub(waiting.since_ns))
            };
            let longest = waits.iter().filter_map(since).max();
            let longest = longest.map_or_else(String::new, |ns| format!(", for {}", time(ns)));
            let is_over = |(record, _): &(&Record, _)| record.state == RankState::Failed || is_gone(record);
            let failed = waits.iter().all(is_over);
            let verb = match (failed, ranks.len()) {
                (true, _) => "waited",
                (false, 1) => "waits",
                (false, _) => "wait",
            };
            let awaited = match (what, rank) {
                (what, None) => format!("for {what}"),
                ("a message" | "a signal", Some(rank)) => format!("for {what} from rank {rank}"),
                (what, Some(rank)) => format!("for rank {rank} {what}"),
            };
            let place = call.map_or_else(
                || match is_of_kernel(waits[0].1) {
                    true => "a kernel of the program".to_owned(),
                    false => "a group of messages".to_owned(),
                },
                |call| {
                    let what = call_of(waits[0].0, call).map_or("a call", |call| &call.what);
                    format!("#{call}, {what}")
                },
            );
            sentences.push(format!("{} {verb} {awaited} in {place}{longest}.", capital(&named(&ranks))));
        }
        self.silent(&waiting, sentences);
        let awaits: BTreeMap<u32, u32> = waiting
            .iter()
            .filter(|(record, ..)| !is_halted(record))
            .filter_map(|(record, waiting)| Some((record.rank, waiting.rank?)))
            .collect();
        if let Some(sentence) = end_of(&awaits) {
            sentences.push(sentence);
        }
    }
}

/// Whether a rank cannot continue, whatever the others do: its process is gone or stopped.
fn is_halted(record: &Record) -> bool {
    is_gone(record) || record.process == Some(Process::Stopped)
}

/// Where all chains of waits end, if it is one place and not obvious: a rank that waits for no other, or a cycle.
fn end_of(awaits: &BTreeMap<u32, u32>) -> Option<String> {
    let mut ends: Vec<Vec<u32>> = awaits.keys().map(|&rank| end_from(awaits, rank)).collect();
    ends.sort();
    ends.dedup();
    match &ends[..] {
        [one] if one.len() > 1 => {
            let round: Vec<String> = one.iter().map(u32::to_string).collect();
            Some(format!("Deadlock: ranks {} wait for each other in a cycle.", round.join(" > ")))
        }
        [one] if awaits.values().any(|rank| *rank != one[0]) => {
            Some(format!("In the end, all of them wait for rank {}.", one[0]))
        }
        _ => None,
    }
}

/// Follows the waits from a rank to one that waits for no other, or to a cycle, listed from its lowest rank on.
fn end_from(awaits: &BTreeMap<u32, u32>, rank: u32) -> Vec<u32> {
    let mut way = vec![rank];
    // A chain has at most as many ranks as wait.
    for _ in 0..=awaits.len() {
        let at = way[way.len() - 1];
        let Some(&next) = awaits.get(&at) else { return vec![at] };
        if let Some(start) = way.iter().position(|seen| *seen == next) {
            let mut cycle = way.split_off(start);
            let least = cycle.iter().enumerate().min_by_key(|(_, rank)| **rank).map_or(0, |(at, _)| at);
            cycle.rotate_left(least);
            return cycle;
        }
        way.push(next);
    }
    vec![rank]
}

fn straggler(late: &[Lateness]) -> Option<String> {
    let most = late.first()?;
    let others = late.get(1).map_or(0, |late| late.median_ns);
    let is_usual =
        2 * most.was_last >= most.calls && most.median_ns >= LATE_NS && most.median_ns >= 2 * others;
    is_usual.then(|| {
        format!(
            "Rank {} usually comes last: in {} of {} calls, with a median of {} after the first rank.",
            most.rank,
            most.was_last,
            most.calls,
            time(most.median_ns)
        )
    })
}

/// `rank 3`, `ranks 0 and 1`, `ranks 0 to 5, 7 and 9`.
pub fn named(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let many = runs.len().saturating_sub(LISTED_MAX);
    let mut parts: Vec<String> = runs
        .iter()
        .take(LISTED_MAX)
        .flat_map(|&(first, last)| match last - first {
            0 => vec![first.to_string()],
            1 => vec![first.to_string(), last.to_string()],
            _ => vec![format!("{first} to {last}")],
        })
        .collect();
    if many > 0 {
        parts.push("more".to_owned());
    }
    let plural = if ranks.len() == 1 { "rank" } else { "ranks" };
    match parts.split_last() {
        None => "no rank".to_owned(),
        Some((last, [])) => format!("{plural} {last}"),
        Some((last, before)) => format!("{plural} {} and {last}", before.join(", ")),
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// A duration with a readable unit.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}
