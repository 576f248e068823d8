//! What is wrong, as far as a log shows it.
//!
//! A check looks at the whole log, and at the fabric that the job should have run on, if there is one. What a log cannot show, because its
//! lines are not printed at its level, is unknown.

mod cost;
mod errors;
mod hangs;
mod kernel;
mod machine;
mod network;
mod peers;
mod settings;
mod versions;

use std::collections::BTreeMap;

use weftlink_fabric::device::BusId;
use weftlink_fabric::{DeviceId, Fabric};

use super::model::{Communicator, Log, Rank, Seen};
use crate::finding::{Finding, Outcome, Report};

/// Lines that are shown of a finding.
const EVIDENCE_MAX: usize = 4;
/// Names that a sentence lists.
const NAMES_MAX: usize = 8;

/// What checks look at.
pub(in crate::log) struct Context<'l> {
    log: &'l Log,
    fabric: Option<&'l Fabric>,
}

/// One check of logs.
pub struct LogCheck {
    /// Its name, as in findings: `log-socket`.
    pub id: &'static str,
    /// What it finds, as a noun phrase.
    pub finds: &'static str,
    run: fn(&Context<'_>) -> Vec<Outcome>,
}

/// All checks of logs, in the order of reports.
pub fn checks() -> impl Iterator<Item = &'static LogCheck> {
    let groups: [&[LogCheck]; 8] = [
        hangs::CHECKS,
        errors::CHECKS,
        kernel::CHECKS,
        versions::CHECKS,
        network::CHECKS,
        peers::CHECKS,
        machine::CHECKS,
        settings::CHECKS,
    ];
    groups.into_iter().flatten()
}

/// What is wrong, as far as a log shows it. The fabric is the machine that the job ran on, or that it should have run on.
pub fn explain(log: &Log, fabric: Option<&Fabric>) -> Report {
    let mut report = Report::new("log");
    let context = Context { log, fabric };
    if log.messages == 0 {
        let needs = "the output of a run with NCCL_DEBUG=INFO".to_owned();
        report.add(
            "log",
            vec![Outcome::Unknown { what: "the file has no line of NCCL or RCCL".to_owned(), needs }],
        );
    }
    // Without a line of the library, what other programs say is all there is.
    let others = [hangs::CHECKS, kernel::CHECKS];
    let is_of_others =
        |check: &LogCheck| others.iter().any(|checks| checks.iter().any(|other| other.id == check.id));
    for check in checks().filter(|check| log.messages > 0 || is_of_others(check)) {
        report.add(check.id, (check.run)(&context));
    }
    report
}

impl Context<'_> {
    /// The host and number of a process.
    fn process(&self, index: usize) -> String {
        let process = &self.log.processes[index];
        match process.host.is_empty() {
            true => "a process".to_owned(),
            false => format!("{}:{}", process.host, process.pid),
        }
    }

    /// Whether the log has lines of the level INFO about communicators.
    fn has_ranks(&self) -> bool {
        !self.log.ranks.is_empty()
    }

    /// The ranks of communicators with at least two ranks.
    fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        self.log.communicators.iter().filter(|communicator| communicator.size > 1)
    }
}

/// That something cannot be known because the log's level is too low.
fn unknown(what: &str, needs: &str) -> Vec<Outcome> {
    vec![Outcome::Unknown { what: what.to_owned(), needs: needs.to_owned() }]
}

/// What shows the level INFO.
const INFO: &str = "a log of a run with NCCL_DEBUG=INFO";

/// Adds lines as evidence: the first ones.
fn shown_by<'s>(finding: Finding, lines: impl IntoIterator<Item = &'s Seen>) -> Finding {
    let add =
        |finding: Finding, seen: &Seen| finding.shown_by(format!("line {}", seen.line), seen.text.clone());
    lines.into_iter().take(EVIDENCE_MAX).fold(finding, add)
}

/// `0, 1 and 2`, and how many more.
fn listed(names: impl IntoIterator<Item = impl ToString>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    if let Some(more) = names.len().checked_sub(NAMES_MAX + 1) {
        return format!("{} and {} more", names[..NAMES_MAX].join(", "), more + 1);
    }
    match names.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
    }
}

/// `rank 3`, `ranks 3 and 4`.
fn ranks(numbers: &[u32]) -> String {
    format!("rank{} {}", if numbers.len() == 1 { "" } else { "s" }, listed(numbers))
}

/// `1 warning`, `2 warnings`, `2 processes`.
fn counted(count: usize, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { plural })
}

/// The GPU of each rank in a fabric: by its PCI address, or by its number where the fabric has none. Hosts are matched by name, or in the
/// order of their ranks; all to the first where the fabric has one.
pub(super) fn gpus_of(log: &Log, ranks: &[&Rank], fabric: &Fabric) -> BTreeMap<u32, DeviceId> {
    let mut order: Vec<&str> = Vec::new();
    for rank in ranks {
        let host = log.host_of(rank);
        if !order.contains(&host) {
            order.push(host);
        }
    }
    let host_of = |name: &str| {
        let by_name = fabric.hosts().iter().position(|host| host.name == name);
        let by_order = order.iter().position(|host| *host == name).unwrap_or(0);
        by_name.or((by_order < fabric.hosts().len()).then_some(by_order)).unwrap_or(0)
    };
    let gpu_of = |rank: &&Rank| {
        let host = host_of(log.host_of(rank));
        let here = || {
            fabric
                .gpus()
                .iter()
                .copied()
                .filter(|gpu| fabric.device(*gpu).host.is_some_and(|of| of.index() == host))
        };
        let bus = rank.bus.as_ref().and_then(|bus| bus.parse::<BusId>().ok());
        let by_bus = bus.and_then(|bus| here().find(|gpu| fabric.device(*gpu).bus == Some(bus)));
        let number = rank.nvml.or(rank.device).and_then(|number| usize::try_from(number).ok());
        let gpu = by_bus.or_else(|| here().nth(number?));
        Some((rank.rank?, gpu?))
    };
    ranks.iter().filter_map(gpu_of).collect()
}
