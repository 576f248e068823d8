//! `weft topo --tree`: the devices of each host, each below what it is plugged into.

use std::io::{self, Write};

use textwrap::core::display_width;
use weftlink_fabric::rate::{OneWay, Pair, Rate};
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Link, LinkKind, Measure};

use crate::screen;

pub(super) fn print(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let mut seen = vec![false; fabric.devices().len()];
    for (index, host) in fabric.hosts().iter().enumerate() {
        let system = host.system.as_deref().map_or_else(String::new, |system| format!(" ({system})"));
        writeln!(out, "{}{system}", host.name)?;
        let mine = |id: &DeviceId| fabric.device(*id).host.is_some_and(|host| host.index() == index);
        let numa = fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_)));
        let mut roots: Vec<DeviceId> = numa.filter(mine).collect();
        roots.iter().for_each(|id| seen[id.index()] = true);
        roots.extend(fabric.device_ids().filter(|id| mine(id) && is_loose(fabric, *id)));
        for (position, root) in roots.iter().enumerate() {
            seen[root.index()] = true;
            print_device(out, fabric, *root, None, "", position + 1 == roots.len(), &mut seen)?;
        }
    }
    let shared: Vec<DeviceId> = fabric.device_ids().filter(|id| fabric.device(*id).host.is_none()).collect();
    if !shared.is_empty() {
        writeln!(out, "shared by the hosts")?;
        for (position, id) in shared.iter().enumerate() {
            print_device(out, fabric, *id, None, "", position + 1 == shared.len(), &mut seen)?;
        }
    }
    Ok(())
}

fn print_device(
    out: &mut impl Write,
    fabric: &Fabric,
    id: DeviceId,
    link: Option<&Link>,
    indent: &str,
    last: bool,
    seen: &mut [bool],
) -> io::Result<()> {
    let (text, beyond) = (describe(fabric, id, link), beyond_pcie(fabric, id));
    let text = if beyond.is_empty() { text } else { format!("{text} | {}", beyond.join(", ")) };
    let rest = screen::columns().saturating_sub(display_width(indent) + 3);
    let more = if last { "   " } else { "│  " };
    for (at, line) in screen::wrap(&text, rest).iter().enumerate() {
        let branch = match (at, last) {
            (0, true) => "└─ ",
            (0, false) => "├─ ",
            _ => more,
        };
        writeln!(out, "{indent}{branch}{line}")?;
    }
    let below =
        fabric.links_from(id).iter().filter(|link| matches!(fabric.spec(link).kind, LinkKind::Pcie { .. }));
    let mut children = Vec::new();
    for link in below {
        if !std::mem::replace(&mut seen[link.target.index()], true) {
            children.push(link);
        }
    }
    let indent = format!("{indent}{more}");
    for (position, child) in children.iter().enumerate() {
        print_device(out, fabric, child.target, Some(child), &indent, position + 1 == children.len(), seen)?;
    }
    Ok(())
}

fn describe(fabric: &Fabric, id: DeviceId, link: Option<&Link>) -> String {
    let device = fabric.device(id);
    let mut text = format!("{}{}", device.kind.stem(), device.ordinal);
    if let Some(bus) = device.bus {
        text += &format!(" [{bus}]");
    }
    match &device.kind {
        DeviceKind::Gpu(gpu) => {
            if let Some(name) = gpu.model.map(|model| model.name).or(device.label.as_deref()) {
                text += &format!(" {name}");
            }
        }
        DeviceKind::Nic(ports) => {
            for port in ports {
                let name = port.name.as_deref().unwrap_or("port");
                text += &format!(" {name} {}", port.rate.amount());
            }
        }
        _ => {
            if let Some(label) = &device.label {
                text += &format!(" {label}");
            }
        }
    }
    if let Some(link) = link {
        text += &format!(", {}", fabric.spec(link).kind);
    }
    text
}

/// The links of a device that a PCIe tree does not show, gathered by kind.
fn beyond_pcie(fabric: &Fabric, id: DeviceId) -> Vec<String> {
    let mut kinds: Vec<(LinkKind, &'static str, u32, u64)> = Vec::new();
    for link in fabric.links_from(id) {
        let kind = fabric.spec(link).kind;
        if matches!(kind, LinkKind::Pcie { .. }) {
            continue;
        }
        let target = fabric.device(link.target).kind.stem();
        let rate = fabric.rate(link, Measure::Nominal).bytes_per_second();
        match kinds.iter_mut().find(|(other, stem, ..)| *other == kind && *stem == target) {
            Some((_, _, count, total)) => {
                *count += link.count;
                *total += rate;
            }
            None => kinds.push((kind, target, link.count, rate)),
        }
    }
    let text = |(kind, target, count, rate): (LinkKind, &str, u32, u64)| {
        let rate = Rate::<Pair, OneWay>::from_bytes(rate);
        format!("{count} x {kind} to {target}, {} each way", rate.amount())
    };
    kinds.into_iter().map(text).collect()
}

/// True for devices that hang on no PCIe tree: NVSwitches, NICs without a slot.
fn is_loose(fabric: &Fabric, id: DeviceId) -> bool {
    let numa = matches!(fabric.device(id).kind, DeviceKind::Numa(_));
    !numa && !fabric.links_from(id).iter().any(|link| matches!(fabric.spec(link).kind, LinkKind::Pcie { .. }))
}
