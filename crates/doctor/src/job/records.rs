//! A job from the flight records of its ranks, which `weftlink_recorder::recorder::read_folder` or `attach` return.
//!
//! Records have the calls, not what the rank did between them, so that nothing is known about overlap. On GPUs, they have the times at
//! which calls were enqueued, which are no durations.

use std::collections::BTreeMap;
use std::sync::Arc;

use weftlink_plan::Kind;
use weftlink_recorder::recorder::{CallRecord, CallState, Record};

use super::{Call, Job, JobError, Rank, Source};

/// Adds the ranks of records. Of several communicators that one rank has, the calls are in one sequence, each in its group.
pub fn add(job: &mut Job, records: &[Record]) -> Result<(), JobError> {
    let hosts: std::collections::BTreeSet<&str> = records.iter().map(|record| record.host.as_str()).collect();
    let is_one_host = hosts.len() < 2;
    let mut ranks: BTreeMap<(&str, u32, Option<u32>), Vec<&Record>> = BTreeMap::new();
    for record in records {
        let shares =
            |other: &Record| (&other.host, other.pid, &other.job) == (&record.host, record.pid, &record.job);
        // Ranks that are threads of one process have the same pid.
        let is_thread = records.iter().any(|other| shares(other) && other.rank != record.rank);
        let rank = is_thread.then_some(record.rank);
        ranks.entry((record.host.as_str(), record.pid, rank)).or_default().push(record);
    }
    let mut on_gpus = 0;
    for ((host, ..), records) in ranks {
        // The rank in the largest communicator is the one that launchers name.
        let Some(largest) = records.iter().max_by_key(|record| (record.size, &record.job)) else { continue };
        on_gpus += u64::from(records.iter().any(|record| record.is_on_gpu()));
        job.add_rank(Rank {
            name: format!("rank {}", largest.rank),
            number: largest.rank,
            host: Some(host.to_owned()),
            calls: records.iter().flat_map(|record| calls(record, is_one_host)).collect(),
            shares_clock: !records.iter().any(|record| record.is_on_gpu()),
            ..Rank::default()
        })?;
    }
    if on_gpus > 0 {
        job.notes.push(
            "records of GPU communicators have no durations: kernels run after the call returns. For times, trace the job with \
             torch.profiler or Nsight Systems"
                .to_owned(),
        );
    }
    job.add_source(Source::Recorder);
    Ok(())
}

fn calls(record: &Record, is_one_host: bool) -> impl Iterator<Item = Call> + '_ {
    let offset = if is_one_host { 0 } else { record.realtime_offset_ns };
    let is_on_gpu = record.is_on_gpu();
    let group: Arc<str> = record.job.as_str().into();
    record.calls.iter().filter_map(move |call| {
        let kind: Kind = call.collective.parse().ok()?;
        Some(Call {
            kind: Some(kind),
            bytes: Some(call.bytes),
            ranks: Some(record.size),
            group: Some(group.clone()),
            sequence: Some(u64::from(call.number)),
            start_ns: i64::try_from(call.start_ns).unwrap_or(i64::MAX).saturating_add(offset),
            duration_ns: if is_on_gpu { None } else { duration_ns(call) },
        })
    })
}

fn duration_ns(call: &CallRecord) -> Option<u64> {
    match call.state {
        CallState::Done => call.end_ns?.checked_sub(call.start_ns),
        // The time of a failed call is that of its deadline.
        CallState::Running | CallState::Failed | CallState::Enqueued | CallState::Captured => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rank: u32, host: &str, state: &str) -> Record {
        let call = |number: u32, collective: &str, end: &str| {
            format!(
                r#"{{"number":{number},"what":"x","signature":1,"collective":"{collective}","count":256,"data_type":"f32","reduction":"sum",
                "plan":"ring","bytes":1024,"state":"{state}","start_ns":{},"end_ns":{end},"waited_ns":0}}"#,
                1000 * number + rank
            )
        };
        let json = format!(
            r#"{{"version":1,"job":"00000000000a","rank":{rank},"size":2,"host":"{host}","pid":{},"process_start":0,"pid_namespace":0,
            "state":"running","error":null,"settings":[],"realtime_offset_ns":7000000,"taken_ns":null,"waiting":null,
            "calls":[{},{},{}]}}"#,
            10 + rank,
            call(1, "window", "null"),
            call(2, "all-reduce", "2400"),
            call(3, "all-reduce", "null"),
        );
        Record::read(json.as_bytes()).unwrap()
    }

    #[test]
    fn records_are_calls_with_their_durations() {
        let mut job = Job::default();
        add(&mut job, &[record(1, "a", "done"), record(0, "a", "done")]).unwrap();
        let names: Vec<&str> = job.ranks.iter().map(|rank| rank.name.as_str()).collect();
        assert_eq!(names, ["rank 0", "rank 1"]);
        let calls = &job.ranks[1].calls;
        assert_eq!(calls.len(), 2, "windows are no communication");
        assert_eq!(
            (calls[0].kind, calls[0].bytes, calls[0].ranks),
            (Some(Kind::AllReduce), Some(1024), Some(2))
        );
        assert_eq!((calls[0].start_ns, calls[0].duration_ns), (2001, Some(399)));
        assert_eq!((calls[1].sequence, calls[1].duration_ns), (Some(3), None));
        assert!(job.notes.is_empty());
    }

    #[test]
    fn threads_of_a_process_are_ranks_and_groups_of_a_rank_are_one() {
        let mut threads = [record(0, "a", "done"), record(1, "a", "done")];
        threads[1].pid = threads[0].pid;
        let mut job = Job::default();
        add(&mut job, &threads).unwrap();
        assert_eq!(job.ranks.len(), 2);
        // The same rank in a smaller group.
        let mut group = record(0, "a", "done");
        (group.job, group.size) = ("00000000000b".to_owned(), 1);
        let mut job = Job::default();
        add(&mut job, &[record(0, "a", "done"), record(1, "a", "done"), group]).unwrap();
        let calls: Vec<usize> = job.ranks.iter().map(|rank| rank.calls.len()).collect();
        assert_eq!(calls, [4, 2]);
    }

    #[test]
    fn clocks_of_two_hosts_are_the_time_of_day() {
        let mut job = Job::default();
        add(&mut job, &[record(0, "a", "done"), record(1, "b", "done")]).unwrap();
        assert_eq!(job.ranks[0].calls[0].start_ns, 7_002_000);
    }

    #[test]
    fn calls_of_gpus_have_no_durations() {
        let mut job = Job::default();
        add(&mut job, &[record(0, "a", "enqueued")]).unwrap();
        assert!(job.calls().all(|call| call.duration_ns.is_none()));
        assert!(!job.ranks[0].shares_clock);
        assert_eq!(job.notes.len(), 1);
    }
}
