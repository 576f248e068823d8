//! Which rank stopped where: in the initialisation, in collectives, and as PyTorch's watchdog saw it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, INFO, LogCheck, counted, listed, ranks, shown_by, unknown};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::{Call, Communicator, Rank, Seen, Stage, Timeout};

pub(super) const CHECKS: &[LogCheck] = &[
    LogCheck { id: "log-init", finds: "ranks that did not finish their initialisation", run: initialisation },
    LogCheck {
        id: "log-behind",
        finds: "ranks whose last collective is behind the others'",
        run: collectives,
    },
    LogCheck {
        id: "log-timeout",
        finds: "collectives that PyTorch's watchdog timed out, and the ranks that others wait for",
        run: watchdog,
    },
];

/// Missing ranks are looked for up to this number.
const RANKS_MAX: u32 = 65_536;

const COLL: &str = "a log of a run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL";

/// The numbers of ranks.
fn numbers<'r>(ranks: impl IntoIterator<Item = &'r Rank>) -> Vec<u32> {
    ranks.into_iter().filter_map(|rank| rank.rank).collect()
}

fn initialisation(context: &Context<'_>) -> Vec<Outcome> {
    let log = context.log;
    if !context.has_ranks() {
        return match log.processes.iter().filter(|process| process.bootstrap.is_some()).count() {
            0 if log.messages == 0 => Vec::new(),
            0 => unknown("how far ranks came", INFO),
            count => vec![Outcome::Found(rendezvous(context, count))],
        };
    }
    let mut found: Vec<Outcome> = Vec::new();
    for communicator in context.communicators() {
        found.extend(incomplete(context, communicator).map(Outcome::Found));
    }
    // Before 2.18 a rank is not known by number until it has met the others.
    let nameless: Vec<&Rank> =
        log.ranks.iter().filter(|rank| rank.communicator.is_none() && rank.stage < Stage::Complete).collect();
    if found.is_empty() && !nameless.is_empty() {
        let places = listed(nameless.iter().map(|rank| context.process(rank.process)));
        let what = format!("{} did not finish: {places}", counted(nameless.len(), "initialisation"));
        let finding = Finding::new("log-init", Severity::Critical, what);
        found.push(Outcome::Found(with_fixes(shown_by(finding, nameless.iter().map(|rank| &rank.seen)))));
    }
    if !found.is_empty() {
        return found;
    }
    let count = log.ranks.iter().filter(|rank| rank.stage >= Stage::Complete).count();
    vec![Outcome::Fine(format!("{} in the log finished", counted(count, "rank")))]
}

/// Processes that began, of which none met the others.
fn rendezvous(context: &Context<'_>, count: usize) -> Finding {
    let lines = context.log.processes.iter().filter_map(|process| Some(&process.bootstrap.as_ref()?.1));
    let what = format!(
        "{} chose an interface, and no communicator began: the log ends there, or ranks wait for others that did not start",
        counted(count, "process")
    );
    with_fixes(shown_by(Finding::new("log-init", Severity::Warning, what), lines))
}

fn with_fixes(finding: Finding) -> Finding {
    finding
        .fixed_by("check that the missing ranks were started, with the same world size: `ps -ef | grep PROGRAM` on each host")
        .fixed_by("see where a rank waits: `py-spy dump --pid PID`, or `gdb -p PID -batch -ex 'thread apply all bt'`")
        .fixed_by("check that hosts reach each other over the interface that NCCL prints after `Bootstrap : Using`")
}

/// A communicator of which ranks did not finish.
fn incomplete(context: &Context<'_>, communicator: &Communicator) -> Option<Finding> {
    let all: Vec<&Rank> = context.log.ranks_of(communicator).collect();
    let open: Vec<&Rank> = all.iter().copied().filter(|rank| rank.stage < Stage::Complete).collect();
    if open.is_empty() {
        return None;
    }
    let known: BTreeSet<u32> = all.iter().filter_map(|rank| rank.rank).collect();
    let size = communicator.size;
    let missing: Vec<u32> = (0..size.min(RANKS_MAX)).filter(|rank| !known.contains(rank)).collect();
    let least = open.iter().map(|rank| rank.stage).min()?;
    let behind: Vec<&Rank> = open.iter().copied().filter(|rank| rank.stage == least).collect();
    let further = all.len() - behind.len();
    let what = if further > 0 {
        let last = ranks(&numbers(behind.iter().copied()));
        format!("{last} of {size} {}, and {} came further", least.words(), counted(further, "rank"))
    } else if missing.is_empty() {
        format!("all {size} ranks {}", least.words())
    } else {
        format!(
            "{} of {size} ranks {}, and the log has no line of {}",
            all.len(),
            least.words(),
            ranks(&missing)
        )
    };
    let finding = Finding::new("log-init", Severity::Critical, what);
    Some(with_fixes(shown_by(finding, behind.iter().map(|rank| &rank.seen))))
}

fn collectives(context: &Context<'_>) -> Vec<Outcome> {
    let mut found: Vec<Outcome> = Vec::new();
    let mut known = 0;
    for communicator in context.communicators() {
        let all: Vec<&Rank> = context.log.ranks_of(communicator).filter(|rank| rank.calls > 0).collect();
        known += all.len();
        if all.len() < 2 {
            continue;
        }
        let different = different_calls(&all);
        let is_ended = context.log.ranks_of(communicator).all(|rank| rank.stage == Stage::Destroyed);
        if let Some(finding) =
            different.or_else(|| if is_ended { None } else { behind(context, communicator, &all) })
        {
            found.push(Outcome::Found(finding));
        }
    }
    if !found.is_empty() {
        return found;
    }
    match known {
        0 if !context.log.timeouts.is_empty() => unknown("which collective each rank called last", COLL),
        0 => Vec::new(),
        known => vec![Outcome::Fine(format!("the collectives of {} agree", counted(known, "rank")))],
    }
}

/// Ranks that called different collectives at the same place in their order.
fn different_calls(all: &[&Rank]) -> Option<Finding> {
    let mut places: BTreeMap<u64, Vec<(u32, &Call)>> = BTreeMap::new();
    for rank in all {
        for call in &rank.last {
            places.entry(call.index).or_default().push((rank.rank?, call));
        }
    }
    let signature = |call: &Call| (call.name.clone(), call.count, call.datatype);
    let (place, calls) = places
        .into_iter()
        .find(|(_, calls)| calls.windows(2).any(|pair| signature(pair[0].1) != signature(pair[1].1)))?;
    let mut kinds: BTreeMap<(String, u64, u32), Vec<u32>> = BTreeMap::new();
    for (rank, call) in &calls {
        kinds.entry(signature(call)).or_default().push(*rank);
    }
    let words = kinds.iter().map(|((name, count, datatype), of)| {
        format!("{} called {name} of {count} elements of type {datatype}", ranks(of))
    });
    let what = format!("collective {place} does not match: {}", listed(words));
    let firsts = kinds.values().filter_map(|of| calls.iter().find(|(rank, _)| of.first() == Some(rank)));
    let lines: Vec<Seen> = firsts.map(|(rank, call)| seen(*rank, call)).collect();
    let finding = shown_by(Finding::new("log-behind", Severity::Critical, what), &lines)
        .fixed_by("all ranks must call the same collectives in the same order with the same sizes: look for a branch on the rank, or for data loaders of different lengths")
        .fixed_by("with PyTorch set TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the call that differs");
    Some(finding)
}

fn seen(rank: u32, call: &Call) -> Seen {
    let text = format!(
        "rank {rank}: {} opCount {:x} count {} datatype {}",
        call.name, call.number, call.count, call.datatype
    );
    Seen { line: call.line, text }
}

/// Ranks that called fewer collectives than others.
fn behind(context: &Context<'_>, communicator: &Communicator, all: &[&Rank]) -> Option<Finding> {
    let least = all.iter().map(|rank| rank.calls).min()?;
    let most = all.iter().map(|rank| rank.calls).max()?;
    if least == most {
        return None;
    }
    let last: Vec<&Rank> = all.iter().copied().filter(|rank| rank.calls == least).collect();
    let call = last.first()?.last.back()?;
    let names = ranks(&numbers(last.iter().copied()));
    let what = format!(
        "{names} of {} stopped after collective {} ({} of {} elements), and others called {} more",
        communicator.size,
        least - 1,
        call.name,
        call.count,
        most - least
    );
    let lines: Vec<Seen> = last.iter().filter_map(|rank| Some(seen(rank.rank?, rank.last.back()?))).collect();
    let severity = if context.log.timeouts.is_empty() { Severity::Warning } else { Severity::Critical };
    let finding = shown_by(Finding::new("log-behind", severity, what), &lines)
        .fixed_by(format!("look at what {names} did after that call: `py-spy dump --pid PID` while it hangs, or its last lines in the log"));
    Some(finding)
}

/// The job's ranks, as far as the log says: those of the largest communicator, or the highest number.
fn world(context: &Context<'_>) -> u32 {
    let largest = context.log.largest().map_or(0, |communicator| communicator.size);
    let highest = context.log.timeouts.iter().map(|timeout| timeout.rank.saturating_add(1)).max();
    largest.max(highest.unwrap_or(0))
}

fn watchdog(context: &Context<'_>) -> Vec<Outcome> {
    let mut groups: BTreeMap<&str, Vec<&Timeout>> = BTreeMap::new();
    for timeout in context.log.timeouts.iter().filter(|timeout| timeout.work.is_some()) {
        groups.entry(&timeout.group).or_default().push(timeout);
    }
    groups.into_iter().map(|(group, timeouts)| Outcome::Found(timed_out(context, group, &timeouts))).collect()
}

/// What the watchdogs of one process group say.
fn timed_out(context: &Context<'_>, group: &str, timeouts: &[&Timeout]) -> Finding {
    let name = if group.is_empty() { String::new() } else { format!(" of process group {group}") };
    let work = timeouts.iter().filter_map(|timeout| timeout.work).min().unwrap_or(0);
    let most = timeouts.iter().filter_map(|timeout| timeout.work).max().unwrap_or(0);
    let of = |is: &dyn Fn(&Timeout) -> bool| -> Vec<u32> {
        timeouts.iter().filter(|timeout| is(timeout)).map(|timeout| timeout.rank).collect()
    };
    let known: BTreeSet<u32> = timeouts.iter().map(|timeout| timeout.rank).collect();
    let world = world(context).min(RANKS_MAX);
    let is_world = group.is_empty() || group == "0" || group.contains("default");
    let missing: Vec<u32> = (0..world).filter(|rank| is_world && !known.contains(rank)).collect();
    let never = of(&|timeout: &Timeout| timeout.enqueued.is_some_and(|last| last < most));
    let mut kinds: BTreeMap<(&str, Option<u64>), Vec<u32>> = BTreeMap::new();
    for timeout in
        timeouts.iter().filter(|timeout| timeout.work == Some(work) && !timeout.operation.is_empty())
    {
        kinds.entry((&timeout.operation, timeout.elements)).or_default().push(timeout.rank);
    }
    let operation = kinds.keys().next().map_or("a collective", |(operation, _)| *operation);
    let what = if kinds.len() > 1 {
        let words = kinds.iter().map(|((operation, elements), of)| {
            format!(
                "{} called {operation} of {} elements",
                ranks(of),
                elements.map_or("unknown".to_owned(), |count| count.to_string())
            )
        });
        format!("work {work}{name} does not match: {}", listed(words))
    } else if !never.is_empty() {
        format!("{} never called work {most}{name}, in which the others wait", ranks(&never))
    } else if work < most {
        let behind = of(&|timeout: &Timeout| timeout.work == Some(work));
        format!(
            "{} waited in work {work} ({operation}){name}, and others already in work {most}: they are not in the same collective",
            ranks(&behind)
        )
    } else if !missing.is_empty() {
        format!(
            "{} waited in work {work} ({operation}){name}, and {} reported nothing: they did not call it, or died",
            counted(known.len(), "rank"),
            ranks(&missing)
        )
    } else {
        format!(
            "all {} waited in work {work} ({operation}){name}: none is missing, so that a GPU or the network stopped",
            counted(known.len(), "rank")
        )
    };
    let lines = timeouts.iter().map(|timeout| &timeout.seen);
    let finding = shown_by(Finding::new("log-timeout", Severity::Critical, what), lines);
    let finding = if kinds.len() > 1 {
        finding.fixed_by("all ranks must call the same collectives in the same order: set TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the first call that differs")
    } else if never.is_empty() && work == most && missing.is_empty() {
        finding
            .fixed_by("look for errors of GPUs and ports on all hosts: `dmesg -T | grep -i xid`, `ibstat`, `nvidia-smi`")
            .fixed_by("run all_reduce_perf of nccl-tests on the same hosts, and give its output to `weft doctor --bench`")
    } else {
        finding.fixed_by("see what the named ranks do: `py-spy dump --pid PID` while the job hangs, and the first exception in their output: one that ran out of memory or of data ends without a call")
    };
    finding.fixed_by("set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1: PyTorch then writes which rank is in which call")
}
