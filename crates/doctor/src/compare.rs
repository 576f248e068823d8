//! The hosts of a job against each other: `weft doctor --all-ranks`.
//!
//! Each rank sends an [`Inventory`] of its host; [`compare`] names the odd one. Values that must differ, such as addresses, serial numbers
//! and the number of a rank, are not part of an inventory, nor are secrets.
//!
//! Deliberately absent: exchanging inventories between ranks.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::LinkKind;
use weftlink_fabric::{DeviceId, Fabric};
use weftlink_probe::Tree;

use crate::check::Machine;
use crate::finding::{Finding, Outcome, Report, Severity};
use crate::job::counted;

/// The check's name in reports.
const ID: &str = "ranks-differ";
/// Values are cut to this many characters.
const VALUE_MAX: usize = 200;
/// Values of one inventory. A host has about a hundred.
const VALUES_MAX: usize = 1000;
/// Labels in one sentence.
const LABELS_MAX: usize = 6;

/// What must be the same on all hosts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The name of the host.
    pub host: String,
    /// The rank that took it, where a launcher numbers ranks.
    #[serde(default)]
    pub rank: Option<u32>,
    /// The values by name: `driver`, `GPU vBIOS`, `environment NCCL_DEBUG`, `interface mlx5_0`.
    pub values: BTreeMap<String, String>,
}

impl Inventory {
    /// The inventory of a machine and the findings on it.
    pub fn of(machine: &Machine<'_>, report: &Report) -> Self {
        let host =
            machine.tree.read("proc/sys/kernel/hostname").unwrap_or_else(|| machine.fabric.name().to_owned());
        let environment = machine.tree.read("proc/self/environ").unwrap_or_default();
        let mut inventory = Self { rank: rank(&environment), ..Self::default() };
        inventory.add("Weft", Some(env!("CARGO_PKG_VERSION").to_owned()));
        inventory.software(machine.tree);
        inventory.gpus(machine);
        inventory.links(machine.fabric);
        for (name, value) in variables(&environment) {
            // A name of the own host in a value, such as that of a log file, must differ.
            let value = if host.len() > 2 { value.replace(&host, "%h") } else { value.to_owned() };
            inventory.add(&format!("environment {name}"), Some(value));
        }
        for finding in report.findings.iter().filter(|finding| finding.severity > Severity::Note) {
            inventory.add(&format!("finding {}", finding.id), Some("yes".to_owned()));
        }
        inventory.host = host;
        inventory
    }

    fn add(&mut self, name: &str, value: Option<String>) {
        let Some(value) = value.filter(|_| self.values.len() < VALUES_MAX) else { return };
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let value: String = value.trim().chars().take(VALUE_MAX).map(clean).collect();
        self.values.insert(name.to_owned(), value);
    }

    /// Versions: of the driver, the kernel, and what was found of libraries.
    fn software(&mut self, tree: &dyn Tree) {
        self.add("driver", tree.read("nvml/driver_version"));
        self.add("CUDA of the driver", tree.read("nvml/cuda_version"));
        self.add("kernel", tree.read("proc/sys/kernel/osrelease"));
        // Folders differ between hosts, versions must not.
        let mut libraries: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for number in tree.list("software") {
            let read = |file: &str| tree.read(&format!("software/{number}/{file}"));
            if let (Some(name), Some(version)) = (read("name"), read("version")) {
                libraries.entry(name).or_default().insert(version);
            }
        }
        for (name, versions) in libraries {
            let versions: Vec<String> = versions.into_iter().collect();
            self.add(&format!("library {name}"), Some(versions.join(", ")));
        }
    }

    /// The GPUs: one value where all have the same, otherwise one for each.
    fn gpus(&mut self, machine: &Machine<'_>) {
        let fabric = machine.fabric;
        self.add("GPUs", Some(fabric.gpus().len().to_string()));
        let model = |id: &DeviceId| {
            let device = fabric.device(*id);
            let name = device.kind.gpu_model().map(|model| model.name.to_owned());
            name.or_else(|| device.label.as_ref().map(|label| label.to_string()))
        };
        self.each("GPU model", fabric.gpus().iter().map(model).collect());
        let pcie = |id: &DeviceId| link_kind(fabric, *id);
        self.each("GPU PCIe link", fabric.gpus().iter().map(pcie).collect());
        let numbers: Vec<String> = {
            let names = machine.tree.list("nvml");
            names.into_iter().filter(|name| name.parse::<u32>().is_ok()).collect()
        };
        for (name, file) in NVML {
            let read = |number: &String| machine.tree.read(&format!("nvml/{number}/{file}"));
            self.each(name, numbers.iter().map(read).collect());
        }
    }

    fn each(&mut self, name: &str, values: Vec<Option<String>>) {
        if values.iter().all(Option::is_none) {
            return;
        }
        let values: Vec<String> =
            values.into_iter().map(|value| value.unwrap_or_else(|| "unknown".to_owned())).collect();
        let same = values.iter().all(|value| *value == values[0]);
        self.add(name, Some(if same { values[0].clone() } else { values.join(", ") }));
    }

    /// The interfaces for GPU traffic, with their rates.
    fn links(&mut self, fabric: &Fabric) {
        for id in fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))) {
            let DeviceKind::Nic(ports) = &fabric.device(id).kind else { continue };
            for port in ports {
                let name = port.name.as_ref().map_or_else(|| fabric.device_name(id), |name| name.to_string());
                let rate = match port.rate.bytes_per_second() {
                    0 => "down, or of unknown rate".to_owned(),
                    bytes => format!("{} Gb/s", bytes * 8 / 1_000_000_000),
                };
                let pcie = link_kind(fabric, id).map_or_else(String::new, |kind| format!(", {kind}"));
                self.add(&format!("interface {name}"), Some(rate + &pcie));
            }
        }
    }
}

/// Reports of the driver that must be the same on GPUs of one model.
const NVML: [(&str, &str); 9] = [
    ("GPU vBIOS", "vbios"),
    ("GPU power limit (mW)", "power_limit_mw"),
    ("GPU maximum SM clock (MHz)", "clock_sm_max_mhz"),
    ("GPU maximum memory clock (MHz)", "clock_memory_max_mhz"),
    ("GPU application clock (MHz)", "clock_graphics_application_mhz"),
    ("GPU persistence mode", "persistence_mode"),
    ("GPU compute mode", "compute_mode"),
    ("GPU MIG mode", "mig_mode"),
    ("GPU ECC mode", "ecc_mode"),
];

/// The PCIe link of a device.
fn link_kind(fabric: &Fabric, id: DeviceId) -> Option<String> {
    let mut kinds = fabric.links_from(id).iter().map(|link| fabric.spec(link).kind);
    kinds.find(|kind| matches!(kind, LinkKind::Pcie { .. })).map(|kind| kind.to_string())
}

/// The variables that libraries read, without those that are different by intention.
fn variables(environment: &str) -> impl Iterator<Item = (&str, &str)> {
    let of = |variable: &&str| {
        ["NCCL_", "RCCL_", "CUDA_", "WEFT_"].iter().any(|start| variable.starts_with(start))
    };
    environment.split('\0').filter(of).filter_map(|variable| variable.split_once('=')).filter(|(name, _)| {
        let is_own = name.contains("RANK") || matches!(*name, "NCCL_HOSTID" | "WEFT_LAST_WORDS");
        let is_secret = ["SECRET", "TOKEN", "PASSWORD", "KEY"].iter().any(|word| name.contains(word));
        !is_own && !is_secret
    })
}

/// The variables in which launchers number ranks.
const RANKS: [&str; 5] = ["WEFT_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

fn rank(environment: &str) -> Option<u32> {
    let value = |wanted: &str| {
        let variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
        variables.filter(|(name, _)| *name == wanted).find_map(|(_, value)| value.parse().ok())
    };
    RANKS.into_iter().find_map(value)
}

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
            "set the variable for all ranks in the launcher: mpirun -x NAME=VALUE, srun --export=ALL,NAME=VALUE, or in the script that torchrun or weft run starts",
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
    finding
}

#[cfg(test)]
mod tests;
