//! Reads the flight recorders of a running job without its help: its ranks may hang, be stopped or be busy.
//!
//! - `processes.rs`: the processes of this host in `/proc`; `place.rs`: the recorders in their mappings, and the reports of kernels on GPUs.
//! - `select.rs`: the processes of a job.
//!
//! A recorder has a name among the mappings of its process. It is read through its descriptor or file if possible, which the kernel
//! allows to any process of the same user, and otherwise from the process's memory, which needs a debugger's rights. It is read three
//! times, without the slots that change in between, so that the record of a running rank is as consistent as that of a stopped one.
//!
//! A process forked from a rank shares its recorder, which is reported once, for the rank. If the rank is gone and only such a process
//! is left, its recorder is still found.
//!
//! Deliberately absent: other hosts. Records can be written into a folder on each host ([`Record::dump`]) and merged, as for ranks that
//! failed.

mod error;
mod place;
mod processes;
mod select;

use std::collections::BTreeMap;

use serde::Serialize;

pub use error::{AccessDenied, AttachError};
use place::Contents;
use processes::ProcessInfo;

use crate::gpu::KernelReports;
use crate::recorder::{Process, RankState, Record, process_of};

/// The ranks of a job on this host.
#[derive(Debug, Default)]
pub struct Attached {
    /// One record for each communicator and rank, without communicators that all ranks have left.
    pub records: Vec<Record>,
    /// Ranks that were started and have no communicator.
    pub without_communicator: Vec<WithoutCommunicator>,
    /// Processes that belong to the job and could not be read.
    pub refused: Vec<UnreadableProcess>,
}

/// A rank without a communicator: it has not joined the others yet, or has dropped its communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WithoutCommunicator {
    /// Its rank, from its launcher.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// Whether a signal or a debugger stopped the process.
    pub is_stopped: bool,
}

/// A process that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadableProcess {
    /// Its process.
    pub pid: u32,
    /// Why.
    pub why: String,
}

/// Finds a job on this host and reads the records of its ranks. `job` is the process of any rank or of its launcher, the name of the
/// job (`WEFT_JOB`), or the number of one of its communicators, in this order.
pub fn attach(job: &str) -> Result<Attached, AttachError> {
    let all = processes::all()?;
    let selected = select::select(&all, job)?;
    let mut attached = Attached::default();
    let mut by_rank: BTreeMap<(String, u32), Record> = BTreeMap::new();
    let mut reports: Vec<KernelReports> = Vec::new();
    for seen in &selected {
        for ring in &seen.rings {
            if ring.contents == Contents::Reports {
                match ring.reports() {
                    Ok(found) => reports.push(found),
                    Err(why) => attached.refused.push(UnreadableProcess { pid: seen.pid, why }),
                }
                continue;
            }
            match ring.record() {
                Ok(mut record) => {
                    let is_its_own = seen.is_its_own(&record);
                    record.process = if is_its_own { Some(seen.process) } else { process_of(&record) };
                    let key = (record.job.clone(), record.rank);
                    if is_its_own || !by_rank.contains_key(&key) {
                        by_rank.insert(key, record);
                    }
                }
                Err(why) => attached.refused.push(UnreadableProcess { pid: seen.pid, why }),
            }
        }
        if let Some(denied) = &seen.denied {
            attached.refused.push(UnreadableProcess { pid: seen.pid, why: denied.to_string() });
        }
    }
    if by_rank.is_empty()
        && let Some((pid, denied)) = selected.iter().find_map(|seen| Some((seen.pid, seen.denied.clone()?)))
    {
        return Err(AttachError::NotPermitted { pid, denied });
    }
    for record in by_rank.values_mut() {
        let job = u64::from_str_radix(&record.job, 16).ok();
        let is_its = |reports: &&KernelReports| {
            (Some(reports.job), reports.rank, reports.pid) == (job, record.rank, record.pid)
        };
        if let Some(reports) = reports.iter().find(is_its) {
            reports.merge_into(record);
        }
    }
    attached.without_communicator = without_communicator(&selected);
    attached.records = without_ended(by_rank.into_values().collect());
    Ok(attached)
}

/// Leaves out communicators that all ranks have left, whose recorders live on in a `FlightRecorder`.
fn without_ended(records: Vec<Record>) -> Vec<Record> {
    let live: Vec<String> = records
        .iter()
        .filter(|record| record.state != RankState::Left)
        .map(|record| record.job.clone())
        .collect();
    records.into_iter().filter(|record| live.contains(&record.job)).collect()
}

/// Ranks of which no process has a recorder. Several processes may have the variables of one rank: its children inherit them.
fn without_communicator(selected: &[&ProcessInfo]) -> Vec<WithoutCommunicator> {
    let mut by_rank: BTreeMap<u32, Option<WithoutCommunicator>> = BTreeMap::new();
    for seen in selected {
        let Some(rank) = seen.variables.as_ref().and_then(|variables| variables.rank) else { continue };
        let is_silent = seen.rings.is_empty() && seen.denied.is_none();
        let known = by_rank.get(&rank);
        let entry = match known {
            Some(None) => None,
            _ if !is_silent => None,
            // Processes are sorted by number: the first is most likely the parent of the others.
            Some(Some(first)) => Some(first.clone()),
            None => Some(WithoutCommunicator {
                rank,
                pid: seen.pid,
                is_stopped: seen.process == Process::Stopped,
            }),
        };
        by_rank.insert(rank, entry);
    }
    by_rank.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::processes::JobVariables;
    use super::*;

    #[test]
    fn ranks_without_a_recorder_are_listed_once() {
        let seen = |pid: u32, rank: u32, denied: bool| ProcessInfo {
            pid,
            parent: 1,
            process: Process::Runs,
            start: 0,
            inner_pid: pid,
            variables: Some(JobVariables { job: "a".to_owned(), place: String::new(), rank: Some(rank) }),
            rings: Vec::new(),
            denied: denied.then_some(AccessDenied::Debugger { scope: Some(1) }),
        };
        let all = [seen(10, 1, false), seen(11, 1, false), seen(12, 0, false), seen(13, 0, true)];
        let all: Vec<&ProcessInfo> = all.iter().collect();
        assert_eq!(without_communicator(&all), [WithoutCommunicator { rank: 1, pid: 10, is_stopped: false }]);
    }
}
