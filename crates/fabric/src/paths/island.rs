//! Islands: devices connected without the network. Most fabrics are many copies of few islands, so the paths of an
//! island are computed once per *shape*.
//!
//! Two islands have the same shape when, with the devices of each numbered in order, kinds and links agree exactly. A
//! single slow link makes a different shape; names do not count.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::components::components;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::LinkKind;

/// The islands of a fabric.
#[derive(Debug)]
pub struct Islands {
    /// The place of each device; network switches have none.
    places: Vec<Option<Place>>,
    islands: Vec<Island>,
    shapes: usize,
}

/// The position of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of its island.
    pub island: u32,
    /// Its number within the island.
    pub local: u32,
}

/// One island.
#[derive(Debug)]
pub struct Island {
    /// Its devices in ascending order.
    pub members: Vec<DeviceId>,
    /// Islands of the same shape have the same number here.
    pub shape: usize,
}

impl Islands {
    /// Finds the islands of a fabric.
    pub fn of(fabric: &Fabric) -> Self {
        let mut places: Vec<Option<Place>> = vec![None; fabric.devices().len()];
        let mut islands = Vec::new();
        for members in components(fabric, |link| !is_network(fabric.spec(link).kind)) {
            if is_network_switch(fabric, members[0]) {
                continue;
            }
            for (local, member) in members.iter().enumerate() {
                places[member.index()] = Some(Place { island: islands.len() as u32, local: local as u32 });
            }
            islands.push(Island { members, shape: 0 });
        }
        let mut islands = Self { places, islands, shapes: 0 };
        islands.find_shapes(fabric);
        islands
    }

    /// All islands.
    pub fn all(&self) -> &[Island] {
        &self.islands
    }

    /// The number of different shapes.
    pub fn shapes(&self) -> usize {
        self.shapes
    }

    /// The position of a device; none for a network switch.
    pub fn place(&self, device: DeviceId) -> Option<Place> {
        self.places[device.index()]
    }

    fn find_shapes(&mut self, fabric: &Fabric) {
        let mut by_hash: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        let mut firsts: Vec<usize> = Vec::new();
        for index in 0..self.islands.len() {
            let mut hasher = FxHasher::default();
            for line in self.outline(fabric, index) {
                line.hash(&mut hasher);
            }
            let alike = by_hash.entry(hasher.finish()).or_default();
            let shape = alike.iter().copied().find(|&shape| {
                self.islands[firsts[shape]].members.len() == self.islands[index].members.len()
                    && self.outline(fabric, firsts[shape]).eq(self.outline(fabric, index))
            });
            self.islands[index].shape = shape.unwrap_or_else(|| {
                firsts.push(index);
                alike.push(firsts.len() - 1);
                firsts.len() - 1
            });
        }
        self.shapes = firsts.len();
    }

    /// Everything that a path through the island can depend on, device by device.
    fn outline<'a>(&'a self, fabric: &'a Fabric, island: usize) -> impl Iterator<Item = Line<'a>> + 'a {
        let members = &self.islands[island].members;
        let first_host =
            members.iter().filter_map(|member| fabric.device(*member).host).min().unwrap_or(HostId(0));
        members.iter().flat_map(move |member| {
            let device = fabric.device(*member);
            let own = Line::Device(&device.kind, device.host.map(|host| host.0 - first_host.0));
            let links = fabric.links_from(*member).iter().map(move |link| {
                // The target of a network link is outside the island and does not count.
                let target = self.place(link.target).map(|place| place.local);
                Line::Link(target, link.count, link.spec.0)
            });
            std::iter::once(own).chain(links)
        })
    }
}

#[derive(PartialEq, Hash)]
enum Line<'a> {
    Device(&'a DeviceKind, Option<u32>),
    Link(Option<u32>, u32, u32),
}

fn is_network_switch(fabric: &Fabric, device: DeviceId) -> bool {
    matches!(fabric.device(device).kind, DeviceKind::NetSwitch(_))
}

/// True for links that leave an island.
pub(crate) fn is_network(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::Network { .. })
}
