//! Whether the NVLinks that a GPU's model has are there, active and as fast as they should be.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::gpus::{GpuLinks, Vendor};
use weftlink_fabric::{LinkKind, LinkSpec};
use weftlink_probe::cpu_ranges;

use super::gpus::{Gpu, Verdict, each, gpus, join, merge, nvswitches, short};
use super::mended::cost_of_links;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nvlink-inactive",
        finds: "NVLinks that are inactive on a GPU whose links are wired",
        reads: "NVML (`nvidia-smi nvlink -s`)",
        run: inactive,
    },
    Check {
        id: "nvlink-not-detected",
        finds: "GPUs whose model has wired NVLinks but for which the driver reports none",
        reads: "NVML (`nvidia-smi nvlink -s`)",
        run: not_detected,
    },
    Check {
        id: "nvlink-slow",
        finds: "NVLinks of a version or speed below the model's",
        reads: "NVML (`nvidia-smi nvlink -s`)",
        run: slow,
    },
    Check {
        id: "nvlink-absent",
        finds: "GPUs without NVLink, which exchange data over PCIe",
        reads: "PCI device ids",
        run: absent,
    },
];

/// The wired links of a model, where several GPUs could use them.
pub(super) fn wired(gpu: &Gpu<'_>, count: usize) -> Option<(&'static LinkSpec, u32)> {
    match gpu.model?.links {
        GpuLinks::Wired(spec, links) if count > 1 => Some((spec, links)),
        _ => None,
    }
}

/// Links that are active.
pub(super) fn active(gpu: &Gpu<'_>) -> u32 {
    gpu.links().values().filter(|state| state.starts_with("up")).count() as u32
}

fn inactive(machine: &Machine<'_>) -> Vec<Outcome> {
    let all = gpus(machine);
    let has_switches = !nvswitches(machine.fabric).0.is_empty();
    let most = all.iter().map(active).max().unwrap_or(0);
    let outcomes = each(machine, "the state of the NVLinks", "all NVLinks are active", |gpu| {
        let Some((_, expected)) = wired(gpu, all.len()) else { return Verdict::Skip };
        let links = gpu.links();
        if links.is_empty() {
            return Verdict::Skip;
        }
        let up = active(gpu);
        if up >= expected {
            return Verdict::Fine;
        }
        // A board for few GPUs does not wire all links of each.
        let is_odd = has_switches || up < most || up == 0;
        let severity = match (is_odd, up) {
            (false, _) => Severity::Note,
            (true, 0) => Severity::Critical,
            (true, _) => Severity::Warning,
        };
        let down: Vec<usize> = links
            .iter()
            .filter(|(_, state)| !state.starts_with("up"))
            .map(|(index, _)| *index as usize)
            .collect();
        let what = format!("{}: {up} of {expected} NVLinks are active", gpu.name);
        Verdict::found(
            Finding::new("nvlink-inactive", severity, what)
                .shown_by(format!("NVML, {} ({})", gpu.name, gpu.bus), format!("inactive: {}", cpu_ranges(&down)))
                .costing(if is_odd { cost_of_links(machine, &all) } else { None })
                .fixed_by(format!("Look at its links: `nvidia-smi nvlink -s -i {}`, and for Xid 74 in `dmesg`.", gpu.bus))
                .fixed_by(format!(
                    "Reset the GPUs while no process uses them: `nvidia-smi --gpu-reset -i {}` (with NVSwitches all GPUs at \
                     once, after `systemctl stop nvidia-fabricmanager`).",
                    gpu.bus
                ))
                .fixed_by("If the links stay inactive after a power cycle, the module or the baseboard needs service."),
        )
    });
    merge(outcomes)
}

fn not_detected(machine: &Machine<'_>) -> Vec<Outcome> {
    let all = gpus(machine);
    let outcomes = each(machine, "the detection of the NVLinks", "the driver reports the NVLinks", |gpu| {
        let Some((spec, expected)) = wired(gpu, all.len()) else { return Verdict::Skip };
        if !gpu.links().is_empty() {
            return Verdict::Fine;
        }
        let what = format!(
            "{}: the model has {expected} links of {}, but the driver reports none",
            gpu.name, spec.kind
        );
        Verdict::found(
            Finding::new("nvlink-not-detected", Severity::Critical, what)
                .shown_by(format!("NVML, {} ({})", gpu.name, gpu.bus), "no link 0")
                .costing(cost_of_links(machine, &all))
                .fixed_by("In a virtual machine, pass through all GPUs of the baseboard together with its NVSwitches.")
                .fixed_by("On the host, look for `NVreg_NvLinkDisable=1` in /etc/modprobe.d and remove it.")
                .fixed_by("Start the Fabric Manager (`systemctl start nvidia-fabricmanager`), then `nvidia-smi nvlink -s`."),
        )
    });
    merge(outcomes)
}

/// The share of the nominal speed that counts as full: the driver reports 25.78 or 26.56 GB/s for links of nominally 25.
const FULL: f64 = 0.9;

fn slow(machine: &Machine<'_>) -> Vec<Outcome> {
    each(
        machine,
        "the speed of the NVLinks",
        "the active NVLinks have the model's version and speed",
        |gpu| {
            let Some((spec, _)) = gpu.model.and_then(|model| model.gpu_links()) else { return Verdict::Skip };
            let links = gpu.links();
            let up: Vec<(&u32, &String)> =
                links.iter().filter(|(_, state)| state.starts_with("up")).collect();
            if up.is_empty() {
                return Verdict::Skip;
            }
            let LinkKind::NvLink { generation: Some(expected) } = spec.kind else { return Verdict::Skip };
            let version = |state: &str| {
                state.split_whitespace().find_map(|word| word.strip_prefix("nvlink")?.parse::<u8>().ok())
            };
            let nominal_mbps = spec.nominal.as_ref().map(|rate| rate.value.gb() * 1e3);
            let mut slow: BTreeMap<String, Vec<String>> = BTreeMap::new();
            let mut is_known = false;
            for (index, state) in up {
                if let Some(version) = version(state) {
                    is_known = true;
                    if version < expected {
                        slow.entry(format!("NVLink {version}")).or_default().push(index.to_string());
                    }
                }
                // The first links have a speed each; the common speed stands for the others.
                let mbps =
                    gpu.any::<f64>(&format!("nvlink_speed/{index}")).or_else(|| gpu.any("nvlink_speed_mbps"));
                if let (Some(mbps), Some(nominal)) = (mbps.filter(|mbps| *mbps > 0.0), nominal_mbps) {
                    is_known = true;
                    if mbps < FULL * nominal {
                        slow.entry(format!("{:.1} GB/s", mbps / 1e3)).or_default().push(index.to_string());
                    }
                }
            }
            if !is_known {
                return Verdict::Unknown("a driver that reports versions or speeds of links".to_owned());
            }
            if slow.is_empty() {
                return Verdict::Fine;
            }
            let nominal =
                nominal_mbps.map_or(String::new(), |mbps| format!(" with {:.1} GB/s each way", mbps / 1e3));
            let what = format!("{}: links are slower than {}{nominal} of this model", gpu.name, spec.kind);
            let mut finding = Finding::new("nvlink-slow", Severity::Warning, what);
            for (speed, indices) in &slow {
                finding = finding.shown_by(
                    format!("NVML, {} ({})", gpu.name, gpu.bus),
                    format!("{speed}: link {}", indices.join(", ")),
                );
            }
            Verdict::found(
            finding
                .fixed_by(format!("Compare with `nvidia-smi nvlink -s -i {}` and the other GPUs.", gpu.bus))
                .fixed_by("Update the driver and the firmware of the baseboard; with a bridge, use the one for this generation."),
        )
        },
    )
}

/// The model tells this without a driver.
fn absent(machine: &Machine<'_>) -> Vec<Outcome> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (mut of_nvidia, mut unknown) = (0, Vec::new());
    for gpu in machine.fabric.gpus() {
        let name = machine.fabric.device_name(*gpu);
        match machine.fabric.device(*gpu).kind.gpu_model() {
            Some(model) if model.vendor != Vendor::Nvidia => {}
            Some(model) => {
                of_nvidia += 1;
                if let GpuLinks::Absent(reason) = model.links {
                    reasons.entry(reason).or_default().push(name);
                }
            }
            None => unknown.push(name),
        }
    }
    if of_nvidia == 0 && unknown.len() > 1 {
        let names: Vec<&str> = unknown.iter().map(String::as_str).collect();
        return vec![Outcome::Unknown {
            what: format!("whether {} have NVLink", join(&names)),
            needs: "a PCI device id or a name that the catalog has (`weft topo --list gpus`)".to_owned(),
        }];
    }
    let notes = reasons.into_iter().filter(|(_, names)| names.len() > 1).map(|(reason, names)| {
        let names = join(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let what = format!("{names}: {}", short(reason));
        let note = Finding::new("nvlink-absent", Severity::Note, what).shown_by("PCI device id", format!("the model of {names}"));
        Outcome::Found(
            note.fixed_by("Nothing is broken: expect PCIe rates, keep traffic between these GPUs low (`weft sim` compares layouts)."),
        )
    });
    notes.collect()
}

/// The peers of a GPU's active links by address, with their number.
pub(super) fn peers(gpu: &Gpu<'_>) -> BTreeMap<String, u32> {
    let mut peers = BTreeMap::new();
    for state in gpu.links().values().filter(|state| state.starts_with("up")) {
        if let Some(bus) = state.split_whitespace().find(|word| word.contains(':') && word.contains('.')) {
            *peers.entry(bus.to_owned()).or_insert(0) += 1;
        }
    }
    peers
}
