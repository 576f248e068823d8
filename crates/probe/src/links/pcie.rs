//! The PCIe links of GPUs, NICs and drives, each to the port above it.

use weftlink_fabric::catalog::links;

use super::driver::{Devices, nominal};
use super::{Kind, Link, Links, Remote, State};
use crate::Tree;
use crate::gpu_source::GpuReport;
use crate::pci::{DEVICES, Function, Lanes, Role};

/// The error counters that the kernel keeps for each function, and the line with their sum.
const AER: [(&str, &str, &str); 3] = [
    ("aer_dev_correctable", "TOTAL_ERR_COR", "aer_correctable"),
    ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", "aer_nonfatal"),
    ("aer_dev_fatal", "TOTAL_ERR_FATAL", "aer_fatal"),
];

pub(super) fn add(tree: &dyn Tree, devices: &Devices, links: &mut Links) {
    for function in devices.functions.by_bus.values() {
        if !matches!(function.role, Role::Gpu | Role::Nic | Role::Nvme) {
            continue;
        }
        let mut link = Link::new(Kind::Pcie, devices.name(function.bus), None);
        link.bus = Some(function.bus.to_string());
        let above = function.above.last().copied();
        lanes(function, above.and_then(|bus| devices.functions.by_bus.get(&bus)), &mut link);
        link.remote = above.map(|bus| Remote {
            device: devices.known(bus).map(str::to_owned),
            bus: Some(bus.to_string()),
            link: None,
            kind: Some("port".to_owned()),
        });
        aer(tree, function, &mut link);
        if let Some((number, _)) = devices.driven.iter().find(|(_, report)| report.bus == function.bus) {
            driver(tree, *number, &mut link);
        }
        links.links.push(link);
    }
    for (number, report) in &devices.driven {
        if !devices.functions.by_bus.contains_key(&report.bus) {
            links.links.push(unlisted(tree, *number, report, devices));
        }
    }
}

/// What both ends are trained for and support. The port of a hypervisor says nothing true of its speed.
fn lanes(function: &Function, above: Option<&Function>, link: &mut Link) {
    let port = above.filter(|port| !port.is_virtual_port()).map_or(Lanes::default(), |port| port.max);
    let lower = |one: Option<u8>, other: Option<u8>| match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    (link.generation, link.width) = (function.now.generation, function.now.width);
    link.generation_max = lower(function.max.generation, port.generation);
    link.width_max = lower(function.max.width, port.width);
    link.trained = rate(link.generation, link.width);
    link.nominal = rate(link.generation_max, link.width_max);
    if link.width.is_some() {
        link.state = State::Up;
    }
}

/// Bytes per second each way.
pub(super) fn rate(generation: Option<u8>, width: Option<u8>) -> Option<u64> {
    nominal(&links::pcie(generation.filter(|generation| (1..=6).contains(generation))?, width?))
}

/// Sums, and the single counters that are not 0.
fn aer(tree: &dyn Tree, function: &Function, link: &mut Link) {
    for (file, total, name) in AER {
        let Some(text) = tree.read(&format!("{DEVICES}/{}/{file}", function.bus)) else {
            continue;
        };
        for (counter, count) in text.lines().filter_map(|line| line.trim().split_once(' ')) {
            let Ok(count) = count.trim().parse() else { continue };
            if counter == total {
                link.set_error(name, count);
            } else if count > 0 && counter.len() < 64 {
                link.set_error(&format!("{name}_{counter}"), count);
            }
        }
    }
}

/// The values of NVIDIA's driver.
fn driver(tree: &dyn Tree, number: u32, link: &mut Link) {
    let read = |name: &str| tree.read(&format!("nvml/{number}/{name}"))?.parse::<u64>().ok();
    if let Some(replays) = read("pcie_replays") {
        link.set_error("pcie_replays", replays);
    }
    let rate = |name: &str| read(name).map(|kb| kb.saturating_mul(1000));
    link.measured = rate("pcie_tx_kb_per_s").zip(rate("pcie_rx_kb_per_s"));
}

/// The slot of a GPU that only the driver knows, as in a sandbox.
fn unlisted(tree: &dyn Tree, number: u32, report: &GpuReport, devices: &Devices) -> Link {
    let mut link = Link::new(Kind::Pcie, devices.name(report.bus), None);
    link.bus = Some(report.bus.to_string());
    let read = |name: &str| tree.read(&format!("nvml/{number}/{name}"))?.parse::<u8>().ok();
    (link.generation, link.width) = (read("pcie_generation"), read("pcie_width"));
    (link.generation_max, link.width_max) = (read("pcie_generation_max"), read("pcie_width_max"));
    link.trained = rate(link.generation, link.width);
    link.nominal = rate(link.generation_max, link.width_max);
    link.state = if link.width.is_some() { State::Up } else { State::Unknown };
    driver(tree, number, &mut link);
    link
}
