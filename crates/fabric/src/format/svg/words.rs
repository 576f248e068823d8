//! The texts of the drawing: names and numbers of devices.

use std::collections::BTreeMap;

use super::scene::{Scene, times};
use crate::catalog::gpus::{GpuLinks, Vendor};
use crate::device::{Device, DeviceKind, Port, Tier};
use crate::id::DeviceId;
use crate::link::LinkKind;

/// The title and the detail of a device's block.
pub(super) fn caption(scene: &Scene, id: DeviceId) -> (String, String) {
    let device: &Device = scene.fabric.device(id);
    let ordinal = device.ordinal;
    match &device.kind {
        DeviceKind::Numa(numa) => {
            let vendor = match numa.cpu.vendor.as_deref() {
                Some("GenuineIntel") => "Intel",
                Some("AuthenticAMD") => "AMD",
                Some(other) => other,
                None => "",
            };
            // -1 is an unknown number.
            let number = u32::try_from(numa.id).unwrap_or(ordinal);
            (format!("CPU {number}"), vendor.to_owned())
        }
        DeviceKind::RootPort => (format!("Port {ordinal}"), String::new()),
        DeviceKind::PcieSwitch => (format!("PCIe {ordinal}"), String::new()),
        DeviceKind::Gpu(gpu) => {
            let memory = gpu.model.map(|model| model.memory.to_string());
            (format!("GPU {ordinal}"), memory.unwrap_or_default())
        }
        DeviceKind::NvSwitch { .. } => (format!("NVSwitch {ordinal}"), String::new()),
        DeviceKind::Nic(ports) => (format!("NIC {ordinal}"), port_words(ports)),
        DeviceKind::Storage => (format!("NVMe {ordinal}"), String::new()),
        DeviceKind::NetSwitch(Tier::Leaf) => (format!("leaf {ordinal}"), String::new()),
        DeviceKind::NetSwitch(Tier::Spine) => (format!("spine {ordinal}"), String::new()),
        DeviceKind::PciFunction => (format!("PCI {ordinal}"), String::new()),
    }
}

/// The caption of a block for several devices: `NIC x4`.
pub(super) fn plural_caption(scene: &Scene, members: &[DeviceId]) -> (String, String) {
    let Some(&first) = members.first() else {
        return Default::default();
    };
    let (name, detail) = caption(scene, first);
    if members.len() == 1 {
        return (name, detail);
    }
    let stem = name.rsplit_once(' ').map_or(name.as_str(), |(stem, _)| stem);
    (format!("{stem} {}", times(members.len())), detail)
}

/// `NDR`, or `2x NDR` for a NIC with two ports.
fn port_words(ports: &[Port]) -> String {
    let Some(port) = ports.first() else {
        return String::new();
    };
    let gbit = port.rate.bytes_per_second() / 125_000_000;
    let word = match port.network {
        _ if gbit == 0 => return String::new(),
        Some(network) => {
            let kind = LinkKind::Network { network, gbit: gbit as u32 };
            kind.id().to_uppercase()
        }
        None => format!("{gbit} Gb/s"),
    };
    match ports.len() {
        1 => word,
        several => format!("{several}\u{d7} {word}"),
    }
}

/// The line under the title: the number of devices of each kind.
pub(super) fn inventory(scene: &Scene) -> String {
    let fabric = scene.fabric;
    let mut parts = Vec::new();
    if fabric.hosts().len() > 1 {
        parts.push(format!("{} hosts", thousands(fabric.hosts().len())));
    }
    let mut models: BTreeMap<&str, usize> = BTreeMap::new();
    for &gpu in fabric.gpus() {
        let name = scene.kind(gpu).gpu_model().map_or("GPU", |model| model.name);
        *models.entry(name).or_default() += 1;
    }
    parts.extend(models.iter().map(|(name, count)| format!("{} \u{d7} {name}", thousands(*count))));
    let count = |wanted: fn(&DeviceKind) -> bool| fabric.devices_where(wanted).count();
    for (number, one, many) in [
        (count(|kind| matches!(kind, DeviceKind::NvSwitch { .. })), "NVSwitch", "NVSwitches"),
        (count(|kind| matches!(kind, DeviceKind::PcieSwitch)), "PCIe switch", "PCIe switches"),
        (count(|kind| matches!(kind, DeviceKind::Numa(_))), "NUMA node", "NUMA nodes"),
        (count(|kind| matches!(kind, DeviceKind::Nic(_))), "NIC", "NICs"),
        (count(|kind| matches!(kind, DeviceKind::Storage)), "drive", "drives"),
        (count(|kind| matches!(kind, DeviceKind::NetSwitch(Tier::Leaf))), "leaf switch", "leaf switches"),
        (count(|kind| matches!(kind, DeviceKind::NetSwitch(Tier::Spine))), "spine", "spines"),
    ] {
        match number {
            0 => {}
            1 => parts.push(format!("1 {one}")),
            _ => parts.push(format!("{} {many}", thousands(number))),
        }
    }
    // Lines may break after a dot, but not inside an item.
    let parts: Vec<String> = parts.iter().map(|part| part.replace(' ', "\u{a0}")).collect();
    parts.join("\u{a0}\u{b7} ")
}

/// Why GPUs have no GPU fabric between them: a short text, and the reason from the catalog.
pub(super) fn no_fabric(scene: &Scene, gpus: &[DeviceId]) -> Option<(String, String)> {
    let fabric_edge = |gpu: DeviceId| scene.edges_of(gpu).any(|edge| edge.kind.is_gpu_fabric());
    if gpus.len() < 2 || gpus.iter().any(|&gpu| fabric_edge(gpu)) {
        return None;
    }
    let model = gpus.iter().find_map(|&gpu| scene.kind(gpu).gpu_model())?;
    let fabric = match (model.vendor, model.gpu_links().map(|(link, _)| link.kind)) {
        (_, Some(LinkKind::UaLink)) => "UALink",
        (Vendor::Nvidia, _) => "NVLink",
        (Vendor::Amd, _) => "xGMI",
        (Vendor::Intel, _) => "Xe Link",
    };
    let (word, reason) = match model.links {
        GpuLinks::Absent(reason) => (format!("no {fabric}"), reason.to_owned()),
        GpuLinks::Bridge { .. } => (
            format!("no {fabric} bridge"),
            format!("{} has bridge connectors, but no bridge is fitted", model.name),
        ),
        GpuLinks::Wired(..) => (
            format!("no {fabric} described"),
            format!("{} has {fabric}, but the description contains none", model.name),
        ),
    };
    Some((word, reason))
}

/// `9,216`
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
