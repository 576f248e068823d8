//! The drawn picture: one host of each make, GPUs in a row, what joins them above, what feeds them below.

mod canvas;
mod host;
mod labels;
mod slots;

use std::io::{self, Write};

use weftlink_fabric::device::Tier;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId, Link, LinkKind};

use crate::screen::{self, say};
use host::HostPicture;

/// GPUs of a host that are drawn.
const GPUS_MAX: usize = 64;
/// Hosts of different makes that are drawn before the rest is only counted.
const MAKES_MAX: usize = 3;

pub(super) fn print(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let makes = makes(fabric);
    for (host, alike) in makes.iter().take(MAKES_MAX) {
        let name = &fabric.hosts()[host.index()].name;
        let system = fabric.hosts()[host.index()].system.as_deref();
        let system = system.map_or_else(String::new, |system| format!(" {system}"));
        match *alike {
            1 => writeln!(out, "{name}{system}")?,
            alike => writeln!(out, "{name}{system} ({alike} hosts like this)")?,
        }
        let gpus = fabric.gpus().iter().filter(|gpu| fabric.device(**gpu).host == Some(*host)).count();
        let has_tree = HostPicture::of(fabric, *host).has_tree();
        match gpus {
            0 if !has_tree => writeln!(out, "{}", nics(fabric, *host))?,
            0..=GPUS_MAX => HostPicture::of(fabric, *host).draw().print(out, screen::columns())?,
            _ => writeln!(out, "{gpus} GPUs: too many to draw in a terminal")?,
        }
        writeln!(out)?;
    }
    if makes.len() > MAKES_MAX {
        writeln!(out, "and {} other kinds of host\n", makes.len() - MAKES_MAX)?;
    }
    print_network(out, fabric)
}

/// The NICs of a host whose file describes nothing else.
fn nics(fabric: &Fabric, host: HostId) -> String {
    let is_nic = |id: &DeviceId| fabric.device(*id).host == Some(host);
    match fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).filter(is_nic).count() {
        1 => "  1 NIC".to_owned(),
        count => format!("  {count} NICs"),
    }
}

/// A device's links: how far away the target is, how many links, and of which kind.
type LinksOut = Vec<(i64, u32, u32)>;

/// One host of each make and how many are alike: the same devices, linked in the same way.
fn makes(fabric: &Fabric) -> Vec<(HostId, usize)> {
    let mut devices: Vec<Vec<DeviceId>> = vec![Vec::new(); fabric.hosts().len()];
    for id in fabric.device_ids() {
        if let Some(host) = fabric.device(id).host {
            devices[host.index()].push(id);
        }
    }
    let outline = |members: &[DeviceId]| -> Vec<(&'static str, LinksOut)> {
        let first = members.first().map_or(0, |id| i64::from(id.0));
        let inside = |link: &Link| fabric.device(link.target).host == fabric.device(link.source).host;
        let place = |link: &Link| if inside(link) { i64::from(link.target.0) - first } else { -1 };
        let links = |id: &DeviceId| {
            fabric.links_from(*id).iter().map(|link| (place(link), link.count, link.spec.0)).collect()
        };
        members.iter().map(|id| (fabric.device(*id).kind.stem(), links(id))).collect()
    };
    let mut found: Vec<(HostId, Vec<_>, usize)> = Vec::new();
    for (host, members) in devices.iter().enumerate() {
        let outline = outline(members);
        match found.iter_mut().find(|(_, other, _)| *other == outline) {
            Some((_, _, alike)) => *alike += 1,
            None => found.push((HostId(host as u32), outline, 1)),
        }
    }
    found.into_iter().map(|(host, _, alike)| (host, alike)).collect()
}

/// The names that a file gives to switches, ` (leaf01, leaf02)`; nothing where it gives none.
fn names(fabric: &Fabric, switches: &[DeviceId]) -> String {
    const SHOWN_MAX: usize = 4;
    let named = |id: &&DeviceId| fabric.device(**id).label.is_some();
    let names: Vec<String> =
        switches.iter().filter(named).take(SHOWN_MAX).map(|id| fabric.device_name(*id)).collect();
    match names.is_empty() {
        true => String::new(),
        false if switches.len() > SHOWN_MAX => format!(" ({}, ...)", names.join(", ")),
        false => format!(" ({})", names.join(", ")),
    }
}

/// Cables of a leaf switch: down, up, and of which kind down.
type Cables = (u32, u32, Option<LinkKind>);

fn print_network(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let has_spine = fabric.devices_where(|kind| *kind == DeviceKind::NetSwitch(Tier::Spine)).next().is_some();
    // Leaves with as many cables down and up share a line.
    let mut alike: Vec<(Cables, Vec<DeviceId>)> = Vec::new();
    for leaf in fabric.devices_where(|kind| *kind == DeviceKind::NetSwitch(Tier::Leaf)) {
        let (mut down, mut up, mut kind) = (0, 0, None);
        for link in fabric.links_from(leaf) {
            match fabric.device(link.target).kind {
                DeviceKind::NetSwitch(_) => up += link.count,
                _ => (down, kind) = (down + link.count, Some(fabric.spec(link).kind)),
            }
        }
        match alike.iter_mut().find(|(cables, _)| *cables == (down, up, kind)) {
            Some((_, leaves)) => leaves.push(leaf),
            None => alike.push(((down, up, kind), vec![leaf])),
        }
    }
    for ((down, up, kind), leaves) in alike {
        let (count, names) = (leaves.len(), names(fabric, &leaves));
        let kind = kind.map_or_else(|| "network".to_owned(), |kind| kind.to_string());
        let (plural, each) = if count == 1 { ("", "") } else { ("es", " each") };
        let above = match up {
            0 => ", no spine".to_owned(),
            _ if has_spine => format!(", {up} up to the spine"),
            _ => format!(", {up} to other leaf switches"),
        };
        say!(out, "{count} leaf switch{plural}{names} with {down} x {kind} down{above}{each}")?;
    }
    if fabric.devices_where(|kind| *kind == DeviceKind::NetSwitch(Tier::Leaf)).next().is_some() {
        writeln!(out)?;
    }
    Ok(())
}
