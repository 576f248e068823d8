//! The flight recorders of a job that runs, read without its help: its ranks may be stuck, stopped or busy.
//!
//! - `processes.rs`: the processes of this host as the kernel shows them; `place.rs`: where in them recorders lie.
//! - `select.rs`: which of them a job is.
//!
//! A recorder is found among the mappings of a process by its name. It is read through its descriptor or file if there is
//! one, which the kernel allows to any process of the same user, and otherwise from the process's memory, which needs a
//! debugger's rights. It is read three times and what changed meanwhile is left out, so that a rank that goes on calling is
//! read as truly as one that is stopped.
//!
//! A process that was forked off a rank shares its recorder; what it says is told once, of the rank. Should the rank be
//! gone and only such a process be left, its recorder is still found.
//!
//! Deliberately absent: other hosts. What is missing here is known by its rank, and records that were written into a folder
//! on each host ([`Record::dump`]) are merged as those of ranks that failed.

mod error;
mod place;
mod processes;
mod select;

use std::collections::BTreeMap;

use serde::Serialize;

pub use error::{AttachError, Denied};
use processes::Seen;

use crate::recorder::{Process, RankState, Record, process_of};

/// What was found of a job on this host.
#[derive(Debug, Default)]
pub struct Attached {
    /// What ranks have recorded, one for each communicator and rank. Communicators that all ranks have left are not there.
    pub records: Vec<Record>,
    /// Ranks that were started and have no communicator.
    pub silent: Vec<Silent>,
    /// Processes that belong to the job and could not be read.
    pub refused: Vec<Refused>,
}

/// A rank without a communicator: it has not met the others yet, or it has dropped what it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silent {
    /// Its rank, as its launcher told it.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// Whether that was stopped by a signal or a debugger.
    pub is_stopped: bool,
}

/// A process that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct Refused {
    /// Which.
    pub pid: u32,
    /// Why.
    pub why: String,
}

/// Finds a job on this host and reads what its ranks have recorded. It is called by the process of any of its ranks or of
/// what started them, by its name (`WEFT_JOB`), or by the number of one of its communicators, as records have it; the first
/// of these that there is counts.
pub fn attach(job: &str) -> Result<Attached, AttachError> {
    let all = processes::all()?;
    let selected = select::select(&all, job)?;
    let mut attached = Attached::default();
    let mut by_rank: BTreeMap<(String, u32), Record> = BTreeMap::new();
    for seen in &selected {
        for ring in &seen.rings {
            match ring.record() {
                Ok(mut record) => {
                    let is_its_own = seen.is_its_own(&record);
                    record.process = if is_its_own { Some(seen.process) } else { process_of(&record) };
                    let key = (record.job.clone(), record.rank);
                    if is_its_own || !by_rank.contains_key(&key) {
                        by_rank.insert(key, record);
                    }
                }
                Err(why) => attached.refused.push(Refused { pid: seen.pid, why }),
            }
        }
        if let Some(denied) = &seen.denied {
            attached.refused.push(Refused { pid: seen.pid, why: denied.to_string() });
        }
    }
    if by_rank.is_empty()
        && let Some((pid, denied)) = selected.iter().find_map(|seen| Some((seen.pid, seen.denied.clone()?)))
    {
        return Err(AttachError::NotPermitted { pid, denied });
    }
    attached.silent = silent(&selected);
    attached.records = without_ended(by_rank.into_values().collect());
    Ok(attached)
}

/// Leaves out communicators of which nobody has an end any more, only somebody who looks at what was.
fn without_ended(records: Vec<Record>) -> Vec<Record> {
    let live: Vec<String> = records
        .iter()
        .filter(|record| record.state != RankState::Left)
        .map(|record| record.job.clone())
        .collect();
    records.into_iter().filter(|record| live.contains(&record.job)).collect()
}

/// Ranks of which no process has a recorder. Several processes may be told that they are one rank: what it started is told
/// so too.
fn silent(selected: &[&Seen]) -> Vec<Silent> {
    let mut by_rank: BTreeMap<u32, Option<Silent>> = BTreeMap::new();
    for seen in selected {
        let Some(rank) = seen.told.as_ref().and_then(|told| told.rank) else { continue };
        let is_silent = seen.rings.is_empty() && seen.denied.is_none();
        let known = by_rank.get(&rank);
        let entry = match known {
            Some(None) => None,
            _ if !is_silent => None,
            // Processes come in the order of their numbers: the first is most likely the one that started the others.
            Some(Some(first)) => Some(first.clone()),
            None => Some(Silent { rank, pid: seen.pid, is_stopped: seen.process == Process::Stopped }),
        };
        by_rank.insert(rank, entry);
    }
    by_rank.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::processes::Told;
    use super::*;

    #[test]
    fn ranks_without_a_recorder_are_told_once() {
        let seen = |pid: u32, rank: u32, denied: bool| Seen {
            pid,
            parent: 1,
            process: Process::Runs,
            start: 0,
            inner_pid: pid,
            told: Some(Told { job: "a".to_owned(), place: String::new(), rank: Some(rank) }),
            rings: Vec::new(),
            denied: denied.then_some(Denied::Debugger { scope: Some(1) }),
        };
        let all = [seen(10, 1, false), seen(11, 1, false), seen(12, 0, false), seen(13, 0, true)];
        let all: Vec<&Seen> = all.iter().collect();
        assert_eq!(silent(&all), [Silent { rank: 1, pid: 10, is_stopped: false }]);
    }
}
