//! The hosts of a job against each other: `weft doctor --all-ranks`.
//!
//! Each rank sends an [`Inventory`] of its host; [`compare`] names the odd one. Values that must differ, such as addresses, serial numbers
//! and the number of a rank, are not part of an inventory, nor are secrets.
//!
//! Deliberately absent: exchanging inventories between ranks.

mod inventory;

use std::collections::{BTreeMap, BTreeSet};

pub use inventory::Inventory;

use crate::finding::{Finding, Outcome, Report, Severity};
use crate::job::counted;

/// The check's name in reports.
const ID: &str = "ranks-differ";
/// Labels in one sentence.
const LABELS_MAX: usize = 6;

/// Compares the inventories of ranks, value by value. The value that more than half of them have is the usual one; without such a value,
/// the finding lists all groups.
pub fn compare(inventories: &[Inventory]) -> Report {
    let mut report =
        Report::new(format!("{} compared with each other", counted(inventories.len() as u64, "rank")));
    let labels = labels(inventories);
    if inventories.len() < 2 {
        let what = "whether the hosts of the job are alike".to_owned();
        let needs =
            "two ranks or more: start `weft doctor --all-ranks` with weft run, torchrun, mpirun or srun"
                .to_owned();
        report.add(ID, vec![Outcome::Unknown { what, needs }]);
        return report;
    }
    let names: BTreeSet<&str> =
        inventories.iter().flat_map(|one| one.values.keys().map(String::as_str)).collect();
    let mut odd: BTreeMap<Vec<usize>, Vec<Difference<'_>>> = BTreeMap::new();
    let mut outcomes = Vec::new();
    let mut same = 0;
    for name in names.into_iter().filter(|name| !is_per_rank(name, inventories)) {
        let mut groups: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for (at, one) in inventories.iter().enumerate() {
            groups.entry(one.values.get(name).map(String::as_str)).or_default().push(at);
        }
        let usual = groups.iter().find(|(_, ranks)| ranks.len() * 2 > inventories.len());
        match usual {
            _ if groups.len() == 1 => same += 1,
            Some((usual, _)) => {
                for (value, ranks) in groups.iter().filter(|(value, _)| *value != usual) {
                    odd.entry(ranks.clone()).or_default().push(Difference {
                        name,
                        value: *value,
                        usual: *usual,
                    });
                }
            }
            None => outcomes.push(Outcome::Found(tie(name, &groups, &labels))),
        }
    }
    outcomes.extend(
        odd.into_iter().map(|(ranks, differences)| Outcome::Found(odd_one(&ranks, &differences, &labels))),
    );
    if outcomes.is_empty() {
        outcomes.push(Outcome::Fine(format!(
            "{same} values are the same on {}",
            counted(inventories.len() as u64, "rank")
        )));
    }
    report.add(ID, outcomes);
    report
}

/// A value that is not the usual one.
struct Difference<'a> {
    name: &'a str,
    value: Option<&'a str>,
    usual: Option<&'a str>,
}

/// What each inventory is called: its host, or its rank where a host has several.
fn labels(inventories: &[Inventory]) -> Vec<String> {
    let label = |(at, one): (usize, &Inventory)| {
        let is_only = inventories.iter().filter(|other| other.host == one.host).count() == 1;
        match (is_only, one.rank) {
            (true, _) => one.host.clone(),
            (false, Some(rank)) => format!("rank {rank} of {}", one.host),
            (false, None) => format!("process {at} of {}", one.host),
        }
    };
    inventories.iter().enumerate().map(label).collect()
}

/// Whether ranks of the same host have different values on purpose: launchers give each its own devices.
fn is_per_rank(name: &str, inventories: &[Inventory]) -> bool {
    let is_visible =
        matches!(name, "environment CUDA_VISIBLE_DEVICES" | "GPUs" | "GPU model" | "GPU PCIe link");
    let differ = |one: &Inventory, other: &Inventory| {
        one.host == other.host && one.values.get(name) != other.values.get(name)
    };
    is_visible && inventories.iter().any(|one| inventories.iter().any(|other| differ(one, other)))
}

fn listed(ranks: &[usize], labels: &[String]) -> String {
    let shown: Vec<&str> =
        ranks.iter().take(LABELS_MAX).filter_map(|at| labels.get(*at)).map(String::as_str).collect();
    let more = ranks.len().saturating_sub(LABELS_MAX);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

fn shown(value: Option<&str>) -> &str {
    match value {
        None => "absent",
        Some("") => "empty",
        Some(value) => value,
    }
}

fn odd_one(ranks: &[usize], differences: &[Difference<'_>], labels: &[String]) -> Finding {
    let who = listed(ranks, labels);
    let names: Vec<&str> = differences.iter().map(|one| one.name).collect();
    let verb = if ranks.len() == 1 { "differs" } else { "differ" };
    let what = format!("{who} {verb} from the other {} in {}", labels.len() - ranks.len(), words(&names));
    let mut finding = Finding::new(ID, severity(&names), what);
    for one in differences {
        finding = finding
            .shown_by(one.name, format!("{who}: {}; the others: {}", shown(one.value), shown(one.usual)));
    }
    with_fixes(finding, &names)
}

fn tie(name: &str, groups: &BTreeMap<Option<&str>, Vec<usize>>, labels: &[String]) -> Finding {
    let mut finding = Finding::new(
        ID,
        severity(&[name]),
        format!("the ranks differ in {name}, and no value is that of most of them"),
    );
    for (value, ranks) in groups {
        finding = finding.shown_by(listed(ranks, labels), shown(*value));
    }
    with_fixes(finding, &[name])
}

/// The first names, and how many more.
fn words(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [one, other] => format!("{one} and {other}"),
        [one, other, rest @ ..] => {
            format!("{one}, {other} and {}", counted(rest.len() as u64, "other value"))
        }
    }
}

/// Kernels of different builds rarely matter, all else does.
fn severity(names: &[&str]) -> Severity {
    if names.iter().all(|name| *name == "kernel") { Severity::Note } else { Severity::Warning }
}

/// The steps for each kind of value that differs.
fn with_fixes(mut finding: Finding, names: &[&str]) -> Finding {
    let steps: [(&[&str], &str); 6] = [
        (
            &["driver", "CUDA of the driver", "kernel", "GPU vBIOS"],
            "install the same image, driver and firmware on all hosts, or leave the odd host out of the job",
        ),
        (
            &["Weft", "library "],
            "start all ranks from the same environment or container; libraries of different versions fail or fall back when they connect",
        ),
        (
            &["environment "],
            "set the variable for all ranks in the launcher: mpirun -x NAME=VALUE, srun --export=ALL,NAME=VALUE, or in the script \
                that torchrun or weft run starts",
        ),
        (
            &["GPUs", "GPU model", "GPU PCIe link", "interface "],
            "run `weft doctor` on the odd host, and `weft doctor --expect` with the machine it should be",
        ),
        (
            &[
                "GPU power",
                "GPU maximum",
                "GPU application",
                "GPU persistence",
                "GPU compute",
                "GPU MIG",
                "GPU ECC",
            ],
            "set the same limits and modes on all hosts (nvidia-smi -pl, -ac, -pm, -c, -mig, -e)",
        ),
        (&["finding "], "run `weft doctor` on the odd host: it has a finding that the others have not"),
    ];
    for (starts, step) in steps {
        if names.iter().any(|name| starts.iter().any(|start| name.starts_with(start))) {
            finding = finding.fixed_by(step);
        }
    }
    if finding.fixes.is_empty() {
        finding = finding.fixed_by("make the value the same on all hosts, and start the job again");
    }
    finding
}

#[cfg(test)]
mod tests;
