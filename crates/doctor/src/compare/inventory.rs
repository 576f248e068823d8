//! What must be the same on all hosts of a job, as read from one of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::LinkKind;
use weftlink_fabric::{DeviceId, Fabric};
use weftlink_probe::Tree;

use crate::check::Machine;
use crate::finding::{Report, Severity};

/// Values are cut to this many characters.
const VALUE_MAX: usize = 200;
/// Values of one inventory. A host has about a hundred.
const VALUES_MAX: usize = 1000;

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
