//! The units that are drawn side by side: hosts, and racks of hosts that share a GPU fabric. Of many equal units, only
//! some are drawn.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::canvas::Look;
use super::scene::Scene;
use crate::device::{DeviceKind, Tier};
use crate::id::{DeviceId, HostId};

/// Of a class with more members than this, the first two and the last are drawn.
const ALIKE_SHOWN: usize = 3;
/// The number of different units that are drawn.
const CLASSES_SHOWN: usize = 6;

/// Hosts connected by a GPU fabric, with the switches between them; usually one host without such switches.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) hosts: Vec<Option<HostId>>,
    pub(super) chips: Vec<DeviceId>,
}

/// The units of a fabric, and the switches between them.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) units: Vec<Unit>,
    /// NVSwitches that connect NVSwitches of different units.
    pub(super) upper_chips: Vec<DeviceId>,
    pub(super) leaves: Vec<DeviceId>,
    pub(super) spines: Vec<DeviceId>,
}

/// A place in a row of units or hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The one with this index.
    One(usize),
    /// An ellipsis for others equal to the neighbours; the number of all of them.
    Alike(usize),
    /// An ellipsis for others that differ from all shown; their number.
    Others(usize),
}

impl Groups {
    pub(super) fn new(scene: &Scene) -> Self {
        let shared = scene.devices(None);
        let of_look = |look: Look| {
            let chosen = shared.iter().copied();
            chosen.filter(move |&id| scene.look(id) == look)
        };
        let mut hosts: Vec<Option<HostId>> = (0..scene.fabric.hosts().len() as u32)
            .map(|host| Some(HostId(host)))
            .filter(|&host| !scene.devices(host).is_empty())
            .collect();
        let switch = |id: DeviceId| matches!(scene.look(id), Look::NvSwitch | Look::NetSwitch);
        if shared.iter().any(|&id| !switch(id)) {
            hosts.push(None);
        }
        let index: BTreeMap<Option<HostId>, usize> =
            hosts.iter().enumerate().map(|(index, &host)| (host, index)).collect();
        let mut sets = Sets((0..hosts.len()).collect());
        let home = |id: DeviceId| index.get(&scene.fabric.device(id).host).copied();
        for edge in scene.edges().iter().filter(|edge| edge.kind.is_gpu_fabric()) {
            let ends = [edge.a, edge.b];
            let apart = ends.iter().all(|&id| !shared_chip(scene, id));
            if let (true, true, Some(a), Some(b)) =
                (apart, ends.iter().any(|&id| scene.look(id) == Look::Gpu), home(edge.a), home(edge.b))
            {
                sets.join(a, b);
            }
        }
        let (near, upper_chips): (Vec<DeviceId>, Vec<DeviceId>) =
            of_look(Look::NvSwitch).partition(|&chip| gpus_of(scene, chip).next().is_some());
        for &chip in &near {
            let homes: Vec<usize> = gpus_of(scene, chip).filter_map(home).collect();
            homes.windows(2).for_each(|pair| sets.join(pair[0], pair[1]));
        }
        let mut units: BTreeMap<usize, Unit> = BTreeMap::new();
        for (index, &host) in hosts.iter().enumerate() {
            units.entry(sets.root(index)).or_default().hosts.push(host);
        }
        for &chip in &near {
            if let Some(home) = gpus_of(scene, chip).find_map(home) {
                units.entry(sets.root(home)).or_default().chips.push(chip);
            }
        }
        let tier = |wanted: Tier| {
            let all = scene.fabric.device_ids();
            all.filter(|&id| matches!(scene.kind(id), DeviceKind::NetSwitch(tier) if *tier == wanted))
                .collect()
        };
        Self {
            units: units.into_values().collect(),
            upper_chips,
            leaves: tier(Tier::Leaf),
            spines: tier(Tier::Spine),
        }
    }

    /// The units to draw, with ellipses for those left out.
    pub(super) fn shown(&self, scene: &Scene) -> Vec<Slot> {
        let signatures: Vec<String> = self
            .units
            .iter()
            .map(|unit| {
                let mut text = format!("{} chips", unit.chips.len());
                unit.hosts.iter().for_each(|&host| write_signature(scene, host, &mut text));
                text
            })
            .collect();
        collapse(&signatures)
    }
}

/// The hosts of a unit to draw, with ellipses for those left out.
pub(super) fn shown_hosts(scene: &Scene, unit: &Unit) -> Vec<Slot> {
    let signatures: Vec<String> = unit
        .hosts
        .iter()
        .map(|&host| {
            let mut text = String::new();
            write_signature(scene, host, &mut text);
            text
        })
        .collect();
    collapse(&signatures)
}

/// The first two and the last of each class, the classes in order of their first members.
fn collapse<T: Ord>(items: &[T]) -> Vec<Slot> {
    let mut classes: BTreeMap<&T, Vec<usize>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        classes.entry(item).or_default().push(index);
    }
    let mut classes: Vec<Vec<usize>> = classes.into_values().collect();
    classes.sort();
    let mut slots = Vec::new();
    let hidden = classes.split_off(classes.len().min(CLASSES_SHOWN));
    for class in classes {
        match class[..] {
            [first, second, .., last] if class.len() > ALIKE_SHOWN => {
                slots.extend([Slot::One(first), Slot::One(second), Slot::Alike(class.len()), Slot::One(last)])
            }
            _ => slots.extend(class.iter().map(|&index| Slot::One(index))),
        }
    }
    if !hidden.is_empty() {
        slots.push(Slot::Others(hidden.iter().map(Vec::len).sum()));
    }
    slots
}

/// Writes the devices and links of a host without names: hosts with equal signatures are drawn once.
fn write_signature(scene: &Scene, host: Option<HostId>, text: &mut String) {
    let devices = scene.devices(host);
    let Some(base) = devices.first() else { return };
    for &id in devices {
        let kind = scene.kind(id);
        let model = kind.gpu_model().map_or("", |model| model.id);
        let ports = match kind {
            DeviceKind::Nic(ports) => ports.len(),
            _ => 0,
        };
        let _ = write!(text, ";{} {model} {ports}", kind.stem());
        for edge in scene.edges_of(id) {
            let other = edge.other_end(id);
            let inside = scene.fabric.device(other).host == host;
            let place = if inside { i64::from(other.0) - i64::from(base.0) } else { -1 };
            let _ = write!(text, ",{place} {} {}", edge.count, edge.kind.id());
        }
    }
}

fn gpus_of<'s>(scene: &'s Scene, chip: DeviceId) -> impl Iterator<Item = DeviceId> + 's {
    let ends = scene.edges_of(chip).map(move |edge| edge.other_end(chip));
    ends.filter(|&id| scene.look(id) == Look::Gpu)
}

fn shared_chip(scene: &Scene, id: DeviceId) -> bool {
    scene.look(id) == Look::NvSwitch && scene.fabric.device(id).host.is_none()
}

/// Disjoint sets; the smallest member is the root.
struct Sets(Vec<usize>);

impl Sets {
    fn root(&self, mut at: usize) -> usize {
        while self.0[at] != at {
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        let low = a.min(b);
        (self.0[a], self.0[b]) = (low, low);
    }
}
