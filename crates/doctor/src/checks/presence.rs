//! Whether the driver knows the generation of the GPUs, whether they are of one kind, and whether this process sees them.

use std::collections::BTreeMap;

use weftlink_fabric::{DeviceId, DeviceKind};

use super::gpus::{gpus, join, on_bus, short, without_driver};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "driver-too-old",
        finds: "A driver that is older than the generation of a GPU, or that no longer supports it",
        reads: "NVML, PCI device ids",
        run: too_old,
    },
    Check {
        id: "gpu-models-mixed",
        finds: "GPUs of several models or memory sizes",
        reads: "NVML, PCI device ids",
        run: mixed,
    },
    Check {
        id: "cuda-visible-devices",
        finds: "A CUDA_VISIBLE_DEVICES that hides GPUs or is malformed",
        reads: "the environment of this process",
        run: visible,
    },
];

/// The first driver branch for a compute capability: that of the first CUDA version that supports it, from the tables of compute capabilities
/// and of drivers in NVIDIA's CUDA release notes.
const FIRST_BRANCH: [(u32, u32, &str); 11] = [
    (60, 375, "CUDA 8.0"),
    (70, 384, "CUDA 9.0"),
    (75, 410, "CUDA 10.0"),
    (80, 450, "CUDA 11.0"),
    (86, 455, "CUDA 11.1"),
    (89, 520, "CUDA 11.8"),
    (90, 520, "CUDA 11.8"),
    (100, 570, "CUDA 12.8"),
    (103, 575, "CUDA 12.9"),
    (120, 570, "CUDA 12.8"),
    (121, 575, "CUDA 12.9"),
];
/// The last branch for Maxwell, Pascal and Volta, from NVIDIA's driver support notes.
const LAST_BEFORE_TURING: u32 = 580;

fn too_old(machine: &Machine<'_>) -> Vec<Outcome> {
    let mut devices: Vec<DeviceId> = on_bus(machine).into_iter().map(|(gpu, _)| gpu).collect();
    devices.extend(gpus(machine).iter().filter_map(|gpu| gpu.device));
    let architecture = |gpu: &DeviceId| {
        let DeviceKind::Gpu(kind) = &machine.fabric.device(*gpu).kind else { return None };
        let sm = kind.sm.or(kind.model.map(|model| model.architecture))?;
        let name = kind.model.map_or_else(|| machine.fabric.device_name(*gpu), |model| model.name.to_owned());
        Some((sm, name))
    };
    let architectures: BTreeMap<u32, String> = devices.iter().filter_map(architecture).collect();
    if architectures.is_empty() {
        return Vec::new();
    }
    let version = machine.tree.read("nvml/driver_version");
    let branch = version.as_deref().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    let (Some(version), Some(branch)) = (version, branch) else {
        return vec![Outcome::Unknown {
            what: "whether the driver is new enough for the GPUs".to_owned(),
            needs: "the version of the NVIDIA driver (`cat /proc/driver/nvidia/version`)".to_owned(),
        }];
    };
    let version = short(&version);
    let mut outcomes = Vec::new();
    for (sm, name) in architectures {
        let finding = |what: String| {
            Finding::new("driver-too-old", Severity::Critical, what)
                .shown_by("NVML", format!("driver {version}"))
        };
        match FIRST_BRANCH.iter().find(|(capability, ..)| *capability == sm) {
            Some((_, first, cuda)) if branch < *first => outcomes.push(Outcome::Found(
                finding(format!("driver {version} is older than {name}, which needs branch {first} or newer ({cuda})"))
                    .fixed_by(format!("Install a driver of branch {first} or newer, then restart: `nvidia-smi` prints its version.")),
            )),
            Some(_) if sm < 75 && branch > LAST_BEFORE_TURING => outcomes.push(Outcome::Found(
                finding(format!("driver {version} no longer supports {name}: branch {LAST_BEFORE_TURING} was the last"))
                    .fixed_by(format!("Install a driver of branch {LAST_BEFORE_TURING}.")),
            )),
            Some((_, first, _)) => outcomes.push(Outcome::Fine(format!("driver {version} supports {name} (branch {first} or newer)"))),
            None => {}
        }
    }
    outcomes
}

fn mixed(machine: &Machine<'_>) -> Vec<Outcome> {
    let reported = gpus(machine);
    if reported.is_empty() {
        return without_driver(machine, "the models and memory sizes");
    }
    let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for gpu in &reported {
        let name: Option<String> = gpu.any("name");
        let gib = gpu.any::<u64>("memory_bytes").map(|bytes| (bytes as f64 / f64::from(1 << 30)).round());
        let model = gpu.model.map(|model| model.name.to_owned()).or(name);
        let kind = format!(
            "{} with {} GiB",
            model.as_deref().unwrap_or("unknown"),
            gib.map_or("?".to_owned(), |gib| gib.to_string())
        );
        kinds.entry(kind).or_default().push(&gpu.name);
    }
    if kinds.len() < 2 {
        return kinds
            .into_keys()
            .map(|kind| Outcome::Fine(format!("all {} GPUs are {}", reported.len(), short(&kind))))
            .collect();
    }
    let mut finding = Finding::new(
        "gpu-models-mixed",
        Severity::Warning,
        format!("the GPUs are of {} kinds; a collective runs at the pace of the slowest", kinds.len()),
    );
    for (kind, names) in &kinds {
        finding = finding.shown_by("NVML", format!("{}: {}", join(names), short(kind)));
    }
    vec![Outcome::Found(
        finding
            .fixed_by("Run a job on GPUs of one kind: list them in CUDA_VISIBLE_DEVICES, with CUDA_DEVICE_ORDER=PCI_BUS_ID.")
            .fixed_by("Or give the slower GPUs less work: smaller batches or fewer layers."),
    )]
}

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

fn visible(machine: &Machine<'_>) -> Vec<Outcome> {
    let count = gpus(machine).len();
    if count == 0 {
        return without_driver(machine, "the visibility");
    }
    let Some(environ) = machine.tree.read("proc/self/environ") else {
        return vec![Outcome::Unknown {
            what: format!("{VARIABLE} of the job"),
            needs: "the environment of a process of the job".to_owned(),
        }];
    };
    let value =
        environ.split(['\0', '\n']).find_map(|variable| variable.strip_prefix(VARIABLE)?.strip_prefix('='));
    let Some(value) = value else {
        return vec![Outcome::Fine(format!("{VARIABLE} is not set: all {count} GPUs are visible"))];
    };
    let shown = short(value);
    let finding = |severity, what: String| {
        Finding::new("cuda-visible-devices", severity, what)
            .shown_by("/proc/self/environ", format!("{VARIABLE}={shown}"))
    };
    let unset = format!("`unset {VARIABLE}`, or list the GPUs of the job.");
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    // CUDA stops at the first entry that is not valid.
    let valid = entries.iter().take_while(|entry| is_valid(entry, count)).count();
    let has_duplicates = entries[..valid].iter().enumerate().any(|(at, entry)| entries[..at].contains(entry));
    let found = if has_duplicates {
        finding(Severity::Warning, format!("{VARIABLE} lists a GPU twice, so CUDA reports none"))
    } else if valid == 0 {
        finding(Severity::Warning, format!("{VARIABLE} hides all {count} GPUs"))
    } else if valid < entries.len() {
        let bad = short(entries[valid]);
        finding(
            Severity::Warning,
            format!("`{bad}` in {VARIABLE} is not a GPU, so CUDA ignores it and all after it"),
        )
    } else if valid < count {
        finding(Severity::Note, format!("{VARIABLE} shows {valid} of {count} GPUs"))
    } else {
        return vec![Outcome::Fine(format!("{VARIABLE} shows all {count} GPUs"))];
    };
    vec![Outcome::Found(found.fixed_by(unset))]
}

fn is_valid(entry: &str, count: usize) -> bool {
    entry
        .parse::<usize>()
        .map_or(entry.starts_with("GPU-") || entry.starts_with("MIG-"), |number| number < count)
}
