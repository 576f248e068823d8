//! The drawn picture: one host of each make, GPUs in a row, what joins them above, what feeds them below.

mod canvas;
mod host;
mod labels;
mod slots;

use std::io::{self, Write};

use weftlink_fabric::device::Tier;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId, Link};

use host::HostPicture;

/// Hosts of different makes that are drawn before the rest is only counted.
const MAKES_MAX: usize = 3;

pub(super) fn print(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let makes = makes(fabric);
    for (host, alike) in makes.iter().take(MAKES_MAX) {
        let name = &fabric.hosts()[host.index()].name;
        let system = fabric.hosts()[host.index()].system.as_deref().unwrap_or("");
        match *alike {
            1 => writeln!(out, "{name} {system}")?,
            alike => writeln!(out, "{name} {system} ({alike} hosts like this)")?,
        }
        write!(out, "{}", HostPicture::of(fabric, *host).draw())?;
        writeln!(out)?;
    }
    if makes.len() > MAKES_MAX {
        writeln!(out, "and {} other makes of host\n", makes.len() - MAKES_MAX)?;
    }
    print_network(out, fabric)
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

fn print_network(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let tier = |wanted: Tier| {
        fabric.devices_where(move |kind| *kind == DeviceKind::NetSwitch(wanted)).collect::<Vec<_>>()
    };
    let (leaves, spines) = (tier(Tier::Leaf), tier(Tier::Spine));
    let Some(leaf) = leaves.first() else { return Ok(()) };
    let links = fabric.links_from(*leaf);
    let to_nics = links.iter().filter(|link| matches!(fabric.device(link.target).kind, DeviceKind::Nic(_)));
    let (down, kind) =
        to_nics.fold((0, None), |(count, _), link| (count + link.count, Some(fabric.spec(link).kind)));
    let up: u32 = links.iter().filter(|link| spines.contains(&link.target)).map(|link| link.count).sum();
    let kind = kind.map_or_else(|| "network".to_owned(), |kind| kind.to_string());
    let plural = if leaves.len() == 1 { "" } else { "es" };
    write!(out, "{} leaf switch{plural}, {down} x {kind} down", leaves.len())?;
    match spines.len() {
        0 => writeln!(out, "; no spine\n"),
        _ => writeln!(out, ", {up} up to the spine, each\n"),
    }
}
