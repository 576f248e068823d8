//! The tree of nested elements: the parent and the bus id of each device.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::switches::stand_ins;
use super::{HIDDEN_DOMAIN, HIDDEN_SWITCH, local_link};
use crate::device::{BusId, DeviceKind};
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::{Link, LinkKind, LinkSpec};

/// One `<cpu>` and its content.
pub(super) struct Root {
    /// Its NUMA node; none for a host that has devices but no NUMA node.
    pub(super) numa: Option<DeviceId>,
    pub(super) host: HostId,
    pub(super) children: Vec<DeviceId>,
}

/// The position of each device of the written hosts.
pub(super) struct Tree {
    pub(super) roots: Vec<Root>,
    children: Vec<Vec<DeviceId>>,
    link_above: Vec<Option<LinkSpec>>,
    bus: Vec<Option<BusId>>,
    placed: Vec<bool>,
    /// The order of the devices in the file; devices without an element come last.
    position: Vec<usize>,
    /// The switch that represents each merged NVSwitch.
    merged_into: FxHashMap<DeviceId, DeviceId>,
    /// The rank of each GPU that is written.
    ranks: FxHashMap<DeviceId, i32>,
}

impl Tree {
    /// Lays out the given hosts.
    pub(super) fn new(fabric: &Fabric, hosts: &[HostId]) -> Self {
        let count = fabric.devices().len();
        let mut tree = Self {
            roots: Vec::new(),
            children: vec![Vec::new(); count],
            link_above: vec![None; count],
            bus: fabric.devices().iter().map(|device| device.bus).collect(),
            placed: vec![false; count],
            position: (count..2 * count).collect(),
            merged_into: stand_ins(fabric),
            ranks: FxHashMap::default(),
        };
        let mut chosen = vec![false; fabric.hosts().len()];
        for host in hosts {
            chosen[host.index()] = true;
        }
        let written = |id: DeviceId| fabric.device(id).host.is_some_and(|host| chosen[host.index()]);
        for id in fabric.device_ids().filter(|id| written(*id)) {
            if let (DeviceKind::Numa(_), Some(host)) = (&fabric.device(id).kind, fabric.device(id).host) {
                tree.placed[id.index()] = true;
                let children = tree.descend(fabric, id);
                tree.roots.push(Root { numa: Some(id), host, children });
            }
        }
        for id in fabric.device_ids().filter(|id| written(*id)) {
            tree.place_unattached(fabric, id);
        }
        tree.assign_bus_ids(fabric, &chosen);
        tree.number_devices();
        let gpus = fabric.gpus().iter().filter(|gpu| tree.holds(**gpu));
        tree.ranks = gpus.copied().zip(0..).collect();
        tree
    }

    /// True for a device that is written.
    pub(super) fn holds(&self, id: DeviceId) -> bool {
        self.placed[id.index()]
    }

    /// The position of a device in the file.
    pub(super) fn position(&self, id: DeviceId) -> usize {
        self.position[id.index()]
    }

    /// The rank for a GPU that has none: its number among the written GPUs.
    pub(super) fn rank(&self, id: DeviceId) -> Option<i32> {
        self.ranks.get(&id).copied()
    }

    /// The device that the links to a device name.
    pub(super) fn link_target(&self, id: DeviceId) -> DeviceId {
        self.merged_into.get(&id).copied().unwrap_or(id)
    }

    /// The devices directly below a device, sorted by id.
    pub(super) fn children(&self, id: DeviceId) -> &[DeviceId] {
        &self.children[id.index()]
    }

    /// The link that leads down to a device.
    pub(super) fn link_above(&self, id: DeviceId) -> Option<&LinkSpec> {
        self.link_above[id.index()].as_ref()
    }

    /// The bus id of a device, its own or the assigned one.
    pub(super) fn bus(&self, id: DeviceId) -> BusId {
        self.bus[id.index()].unwrap_or(HIDDEN_SWITCH)
    }

    /// Places everything below `top` and returns the devices directly below it; root ports are skipped.
    fn descend(&mut self, fabric: &Fabric, top: DeviceId) -> Vec<DeviceId> {
        let local = local_link();
        let mut queue = VecDeque::from([(top, top)]);
        let mut direct = Vec::new();
        // `holder` is the nearest device above that is written.
        while let Some((device, holder)) = queue.pop_front() {
            for link in fabric.links_from(device) {
                let target = link.target;
                if self.placed[target.index()] || !leads_down(fabric, link, &local) {
                    continue;
                }
                self.placed[target.index()] = true;
                if matches!(fabric.device(target).kind, DeviceKind::RootPort) {
                    queue.push_back((target, holder));
                    continue;
                }
                self.link_above[target.index()] = Some(fabric.spec(link).clone());
                queue.push_back((target, target));
                if holder == top {
                    direct.push(target);
                } else {
                    self.children[holder.index()].push(target);
                }
            }
        }
        direct.sort_unstable();
        for child in &direct {
            self.sort_below(*child);
        }
        direct
    }

    fn sort_below(&mut self, top: DeviceId) {
        let mut stack = vec![top];
        while let Some(device) = stack.pop() {
            self.children[device.index()].sort_unstable();
            stack.extend(&self.children[device.index()]);
        }
    }

    fn number_devices(&mut self) {
        let mut next = 0;
        for root in &self.roots {
            let mut stack: Vec<DeviceId> = root.children.iter().rev().copied().collect();
            stack.extend(root.numa);
            while let Some(device) = stack.pop() {
                self.position[device.index()] = next;
                next += 1;
                stack.extend(self.children[device.index()].iter().rev());
            }
        }
    }

    /// Places a device without a PCIe parent below the first NUMA node of its host.
    fn place_unattached(&mut self, fabric: &Fabric, id: DeviceId) {
        let device = fabric.device(id);
        let is_function = matches!(
            device.kind,
            DeviceKind::PcieSwitch
                | DeviceKind::Gpu(_)
                | DeviceKind::Nic(_)
                | DeviceKind::Storage
                | DeviceKind::PciFunction
        );
        let Some(host) = device.host.filter(|_| is_function && !self.placed[id.index()]) else {
            return;
        };
        self.placed[id.index()] = true;
        let below = self.descend(fabric, id);
        self.children[id.index()] = below;
        match self.roots.iter_mut().find(|root| root.host == host) {
            Some(root) => root.children.push(id),
            None => self.roots.push(Root { numa: None, host, children: vec![id] }),
        }
    }

    /// Assigns the missing bus ids: from 0000:01:00.0 on each host, skipping those in use, and from the hidden domain for
    /// switches of no host.
    fn assign_bus_ids(&mut self, fabric: &Fabric, chosen: &[bool]) {
        let used: FxHashSet<(Option<HostId>, BusId)> =
            fabric.devices().iter().filter_map(|device| Some((device.host, device.bus?))).collect();
        let mut next = vec![0_u32; fabric.hosts().len() + 1];
        for id in fabric.device_ids() {
            let device = fabric.device(id);
            let needs_id = match device.kind {
                DeviceKind::Numa(_) | DeviceKind::RootPort => false,
                DeviceKind::NvSwitch { .. } => true,
                _ => self.placed[id.index()],
            };
            let owner = device.host.filter(|host| chosen[host.index()]);
            if device.bus.is_some() || !needs_id || (device.host.is_some() && owner.is_none()) {
                continue;
            }
            let counter = &mut next[owner.map_or(fabric.hosts().len(), HostId::index)];
            loop {
                let bus = match owner {
                    Some(_) => BusId::new(*counter / 255, (*counter % 255 + 1) as u8, 0, 0),
                    None => BusId::new(HIDDEN_DOMAIN, (*counter >> 8) as u8, *counter as u8, 0),
                };
                *counter += 1;
                if !used.contains(&(device.host, bus)) {
                    self.bus[id.index()] = Some(bus);
                    break;
                }
            }
        }
    }
}

/// True for the PCIe links from parent to child; the halves of a split switch are siblings.
fn leads_down(fabric: &Fabric, link: &Link, local: &LinkSpec) -> bool {
    let spec = fabric.spec(link);
    let target = &fabric.device(link.target).kind;
    let halves = matches!(target, DeviceKind::PcieSwitch) && spec == local;
    matches!(spec.kind, LinkKind::Pcie { .. })
        && !halves
        && !matches!(target, DeviceKind::Numa(_))
        && fabric.device(link.source).host == fabric.device(link.target).host
}
