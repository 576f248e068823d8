//! What is printed before a job and after it.

use std::io::{self, Write};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::anyhow;
use serde_json::{Value, json};
use signal_hook::low_level::signal_name;
use weftlink_comm::why::ranks_in_words;

use super::args::{Bind, Job};
use super::culprit;
use super::environment::{self, Afresh};
use super::gpus;
use super::helpers::helper_command;
use super::launch::{Attempt, Cause, Record};
use super::mps;
use super::nccl;
use super::output::{Printer, file_name};
use super::wire::{End, Stream};
use crate::screen::{self, say};
use crate::{Failure, counted};

/// The exit code of a job that timed out, as for timeout(1).
const TIMED_OUT: u8 = 124;

/// `rank 3 on host b (pid 7): cores 4-7,12-15, NUMA node 1`.
pub(super) fn binding(job: &Job, rank: usize, record: &Record) -> String {
    let place = match &record.binding {
        Some(binding) => {
            let cores = counted(binding.cores, "core");
            format!("bound to {cores}, hardware threads {}, NUMA node {}", binding.cpus, binding.numa)
        }
        None => "not bound".to_owned(),
    };
    format!("{} {place}", who(job, rank, record))
}

/// Prints what a run would start.
pub(super) fn dry_run(job: &Job) -> Result<(), Failure> {
    let told = planned(job).map_err(|why| Failure::Misuse(anyhow!(why)))?;
    Ok(print_plan(job, &told)?)
}

fn print_plan(job: &Job, told: &[Value]) -> io::Result<()> {
    if job.json {
        return crate::print_json(&json!({ "job": job.name, "ranks": job.size, "hosts": told }));
    }
    let mut out = screen::stdout();
    let (ranks, hosts) = (counted(job.size, "rank"), counted(job.hosts.len(), "host"));
    say!(out, "{}: {ranks} on {hosts}, in {}", job.name, job.workdir)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for host in told {
        say!(out, "{}: {}", text(&host["host"]), text(&host["command"]))?;
        let lines = |environment: &Value| -> Vec<String> {
            let pairs = environment.as_object().into_iter().flatten();
            pairs.map(|(name, value)| format!("{name}={}", text(value))).collect()
        };
        say!(out, "  {}", lines(&host["environment"]).join(" "))?;
        for rank in host["ranks"].as_array().into_iter().flatten() {
            say!(out, "  rank {}: {}", rank["rank"], lines(&rank["environment"]).join(" "))?;
        }
    }
    say!(out, "each runs: {}", job.program.join(" "))?;
    let bound = match job.bind {
        Bind::None => "not bound",
        Bind::Core => "each bound to cores of its own, where there are enough",
        Bind::Numa => "each bound to a NUMA node, where there are enough cores",
    };
    writeln!(out, "{bound}")
}

fn planned(job: &Job) -> Result<Vec<Value>, String> {
    let secret = "...".to_owned();
    let ports = ["(a free port)".to_owned(), "(another)".to_owned()];
    let afresh = Afresh { secret, ports, restarts: 0 };
    let pairs = |environment: Vec<(String, String)>| -> Value {
        environment
            .into_iter()
            .map(|(name, value)| (name, Value::from(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let host = |(index, placed): (usize, &super::hosts::Placed)| {
        let mut start = environment::start(job, index, &afresh);
        if placed.is_here {
            gpus::assign(&mut start)?;
            nccl::assign(&mut start)?;
        } else {
            gpus::assign_elsewhere(&mut start);
            nccl::assign_elsewhere(&mut start);
        }
        if job.gpus.as_ref().is_some_and(|gpus| gpus.mps) {
            start.environment.push((mps::PIPES.to_owned(), "(a new folder)".to_owned()));
        }
        let ranks = start.ranks.into_iter();
        let ranks: Vec<Value> = ranks
            .map(|one| json!({ "rank": one.rank, "environment": pairs(one.environment), "program": job.program }))
            .collect();
        Ok(json!({
            "host": placed.host,
            "is_this_host": placed.is_here,
            "command": helper_command(job, index).join(" "),
            "environment": pairs(start.environment),
            "ranks": ranks,
        }))
    };
    job.hosts.iter().enumerate().map(host).collect()
}

/// The exit code of a job.
pub(super) fn exit_code(attempt: &Attempt) -> u8 {
    match &attempt.cause {
        None => 0,
        Some(Cause::Rank(rank)) => {
            // The culprit need not have failed itself.
            let failed = culprit::has_failed(&attempt.records[*rank]);
            let rank = culprit::earliest(&attempt.records).filter(|_| !failed).unwrap_or(*rank);
            attempt.records[rank].end.map_or(1, |(end, _)| end.exit_code())
        }
        Some(Cause::Misuse { .. }) => 2,
        Some(Cause::Timeout(_)) => TIMED_OUT,
        Some(Cause::Interrupted(signal)) => (128 + signal) as u8,
        Some(Cause::Host { .. } | Cause::Output(_)) => 1,
    }
}

/// Why a job failed, in a sentence or two; none if it did not.
pub(super) fn failure(
    job: &Job,
    attempt: &Attempt,
    ending: Option<i32>,
    printer: &Printer,
) -> Option<String> {
    let on = |host: usize| format!("host {}", job.hosts[host].host);
    Some(match attempt.cause.as_ref()? {
        Cause::Rank(rank) => {
            let mut text = match ending.and_then(|signal| obeyed(attempt, *rank, signal)) {
                Some(text) => return Some(text),
                None => headline(job, attempt, *rank, ending),
            };
            let tail = printer.tail(*rank);
            if let Some(folder) = job.output_dir.as_deref().filter(|_| !tail.is_empty()) {
                text += &format!(
                    "\n  its standard error is in {}",
                    file_name(folder, *rank, Stream::Err).display()
                );
            }
            if !tail.is_empty() {
                text += "\n  its last lines on standard error:";
                tail.iter().for_each(|line| text += &format!("\n    {line}"));
            }
            text
        }
        Cause::Host { host, why } => format!("{}: {why}", on(*host)),
        Cause::Misuse { host, why } if job.hosts.len() > 1 => format!("{}: {why}", on(*host)),
        Cause::Misuse { why, .. } => why.clone(),
        Cause::Timeout(limit) => {
            let done = attempt.records.iter().filter(|record| record.end.is_some() && !record.told).count();
            let limit = seconds(*limit);
            format!(
                "stopped after {limit} (--timeout); {done} of {} had exited by then",
                counted(job.size, "rank")
            )
        }
        Cause::Interrupted(signal) => format!("stopped by {} before the ranks were started", name(*signal)),
        Cause::Output(error) => format!("cannot print the output of the ranks: {error}"),
    })
}

/// A job that a signal stopped.
fn obeyed(attempt: &Attempt, rank: usize, signal: i32) -> Option<String> {
    let record = &attempt.records[rank];
    let (end, after) = record.end?;
    let (name, stubborn) = (name(signal), killed(attempt));
    match end {
        End::Signal(by) if by == signal && !record.told => {
            let also = if stubborn.is_empty() { String::new() } else { format!("; {}", had_to(&stubborn)) };
            Some(format!("stopped by {name} after {}{also}", seconds(after)))
        }
        // No rank failed before a second signal, or SIGKILL after the first, ended them.
        _ if record.told && !stubborn.is_empty() => {
            let last = attempt.records.iter().filter_map(|record| Some(record.end?.1)).max().unwrap_or(after);
            Some(format!("stopped by {name}, sent twice, after {}; {}", seconds(last), had_to(&stubborn)))
        }
        _ => None,
    }
}

/// Ranks that did not stop when told to, and were killed.
fn killed(attempt: &Attempt) -> Vec<u32> {
    let is_killed = |record: &Record| record.told && matches!(record.end, Some((End::Signal(9), _)));
    let ranks = attempt.records.iter().enumerate().filter(|(_, record)| is_killed(record));
    ranks.map(|(rank, _)| rank as u32).collect()
}

fn had_to(killed: &[u32]) -> String {
    format!("{} did not stop and had to be killed", ranks_in_words(killed))
}

/// The rank that failed first, or that the others failed because of, and what happened to the others.
fn headline(job: &Job, attempt: &Attempt, rank: usize, ending: Option<i32>) -> String {
    let record = &attempt.records[rank];
    let passed_on = ending.map_or(String::new(), |signal| format!("{} was forwarded; ", name(signal)));
    let also = also_stopped(attempt, rank);
    if culprit::has_failed(record) || attempt.blamed_by.is_empty() {
        let others = if job.keep_going { went_on(attempt) } else { were_ended(job, attempt, rank) };
        return format!("{passed_on}{}{others}{also}", ended(job, rank, record));
    }
    let by: Vec<u32> = attempt.blamed_by.iter().map(|rank| *rank as u32).collect();
    let first =
        attempt.blamed_by.iter().filter_map(|rank| Some((attempt.records[*rank].end?.1, *rank))).min();
    let (after, speaker) = first.unwrap_or_default();
    let (how, after) = match (record.told, record.end) {
        (true, _) if record.stopped => {
            (", which a signal or a debugger had suspended and which was then stopped".to_owned(), after)
        }
        (true, _) => (", which was then stopped".to_owned(), after),
        (false, Some((end, after))) => (format!(", which {}", describe(end)), after),
        (false, None) => (String::new(), after),
    };
    let (ranks, who, after) = (ranks_in_words(&by), who(job, rank, record), seconds(after));
    let said = attempt.records[speaker].said.as_deref().unwrap_or_default();
    let others = if job.keep_going { went_on(attempt) } else { were_ended(job, attempt, rank) };
    format!(
        "{passed_on}{ranks} failed because of {who}{how}, {after} after the start{others}{also}\n  rank {speaker} reported: {said}"
    )
}

/// Other ranks that were suspended when the job ended.
fn also_stopped(attempt: &Attempt, culprit: usize) -> String {
    let is_one = |(rank, record): &(usize, &Record)| record.stopped && *rank != culprit;
    let stopped: Vec<u32> =
        attempt.records.iter().enumerate().filter(is_one).map(|(rank, _)| rank as u32).collect();
    match stopped.len() {
        0 => String::new(),
        1 => format!("; {} was suspended by a signal or a debugger", ranks_in_words(&stopped)),
        _ => format!("; {} were suspended by a signal or a debugger", ranks_in_words(&stopped)),
    }
}

/// `rank 3 (pid 7) exited with code 1, 0.2 s after the start`.
pub(super) fn ended(job: &Job, rank: usize, record: &Record) -> String {
    let who = who(job, rank, record);
    record.end.map_or_else(
        || format!("{who} has not exited"),
        |(end, after)| format!("{who} {}, {} after the start", describe(end), seconds(after)),
    )
}

/// What happened to the other ranks, which are stopped when one fails.
fn were_ended(job: &Job, attempt: &Attempt, rank: usize) -> String {
    let told =
        attempt.records.iter().enumerate().filter(|(other, record)| record.told && *other != rank).count();
    let others = match told {
        0 => return String::new(),
        1 if job.size == 2 => "the other rank was stopped".to_owned(),
        1 => "1 other rank was stopped".to_owned(),
        count => format!("{count} other ranks were stopped"),
    };
    let killed: Vec<u32> = killed(attempt).into_iter().filter(|other| *other as usize != rank).collect();
    match killed[..] {
        [] => format!("; {others}"),
        [_] if told == 1 => format!("; {others}, with SIGKILL after SIGTERM had no effect"),
        [..] => format!("; {others}, {} by SIGKILL when SIGTERM did nothing", ranks_in_words(&killed)),
    }
}

/// What became of all, where the others go on.
fn went_on(attempt: &Attempt) -> String {
    let well = attempt.records.iter().filter(|record| matches!(record.end, Some((End::Code(0), _)))).count();
    let failed = attempt.records.iter().enumerate().filter(|(_, record)| culprit::has_failed(record));
    let failed: Vec<u32> = failed.map(|(rank, _)| rank as u32).collect();
    let failed =
        if failed.len() > 1 { format!("; {} failed", ranks_in_words(&failed)) } else { String::new() };
    format!("{failed}; {well} of {} exited with code 0", counted(attempt.records.len(), "rank"))
}

/// The report as JSON.
pub(super) fn document(
    job: &Job,
    attempt: &Attempt,
    restarts: u32,
    took: Duration,
    why: Option<&str>,
    code: u8,
) -> Value {
    let rank = |(rank, record): (usize, &Record)| {
        let (exit_code, signal) = match record.end {
            Some((End::Code(code), _)) => (Some(code), None),
            Some((End::Signal(signal), _)) => (None, Some(name(signal))),
            None => (None, None),
        };
        json!({
            "rank": rank,
            "host": job.hosts[record.host].host,
            "pid": record.pid,
            "cpus": record.binding.as_ref().map(|binding| &binding.cpus),
            "cores": record.binding.as_ref().map(|binding| binding.cores),
            "numa": record.binding.as_ref().map(|binding| &binding.numa),
            "exit_code": exit_code,
            "signal": signal,
            "was_told_to_end": record.told,
            "was_stopped": record.stopped,
            "said": record.said,
            "blamed": record.blamed,
            "seconds": record.end.map(|(_, after)| after.as_secs_f64()),
        })
    };
    let failed = match attempt.cause {
        Some(Cause::Rank(rank)) => Some(rank),
        _ => None,
    };
    json!({
        "job": job.name,
        "exit_code": code,
        "failed_first": failed,
        "blamed_by": attempt.blamed_by,
        "why": why,
        "uses_nccl": job.nccl.as_ref().map(|_| attempt.uses_nccl),
        "restarts": restarts,
        "seconds": took.as_secs_f64(),
        "ranks": attempt.records.iter().enumerate().map(rank).collect::<Vec<_>>(),
    })
}

fn who(job: &Job, rank: usize, record: &Record) -> String {
    let host =
        if job.hosts.len() > 1 { format!("host {}, ", job.hosts[record.host].host) } else { String::new() };
    match record.pid {
        Some(pid) => format!("rank {rank} ({host}pid {pid})"),
        None => format!("rank {rank}"),
    }
}

fn describe(end: End) -> String {
    match end {
        End::Code(code) => format!("exited with code {code}"),
        End::Signal(signal) => {
            let why = if signal == 9 { " (sent by hand, or by the kernel when memory ran out)" } else { "" };
            format!("was killed by {}{why}", name(signal))
        }
    }
}

/// How a helper exited.
pub(super) fn describe_status(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    describe(status.signal().map_or_else(|| End::Code(status.code().unwrap_or_default()), End::Signal))
}

fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
