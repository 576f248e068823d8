//! The paths within one shape of island, computed on the first island of that shape.

use std::cell::OnceCell;
use std::cmp::Reverse;

use crate::components::components_of;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::Link;

use super::local::{LocalGraph, Reach};
use super::nvlink::GpuFabric;
use super::{Path, PathType, Width};

/// A shape of island. Devices are identified by their numbers on the island.
#[derive(Debug)]
pub(super) struct Shape {
    /// The island it was computed on.
    members: Vec<DeviceId>,
    /// The number of islands of this shape.
    pub(super) count: u64,
    /// The GPUs among its devices.
    pub(super) gpus: Vec<u32>,
    roles: Vec<Role>,
    /// Devices connected by PCIe, C2C and inter-socket links, usually one part per host.
    parts: Vec<Part>,
    /// The part of each device, and its number in it.
    places: Vec<(u32, u32)>,
    gpu_fabric: GpuFabric,
    /// The GPU fabric's links out of each device.
    gpu_links: Vec<Vec<(u32, Width)>>,
    /// For each device, computed on first use: its paths to the others of its part.
    reach: Vec<OnceCell<Vec<Option<Reach>>>>,
    /// Its NVSwitches, and CPUs that GPUs have NVLinks to.
    switches: Vec<u32>,
    /// For each device, computed on first use: its distances over the GPU fabric.
    switch_distances: Vec<OnceCell<Vec<u32>>>,
}

/// Devices of the island that are connected without the GPU fabric.
#[derive(Debug)]
struct Part {
    devices: Vec<u32>,
    graph: LocalGraph,
}

/// The properties of a device that its paths depend on.
#[derive(Debug, Clone, Copy)]
struct Role {
    /// Its position among the GPUs, if it is one.
    gpu: Option<u32>,
    is_nic: bool,
    host: Option<HostId>,
}

impl Shape {
    pub(super) fn of(fabric: &Fabric, members: &[DeviceId]) -> Self {
        let mut gpus = Vec::new();
        let mut roles = Vec::new();
        for (local, id) in members.iter().enumerate() {
            let device = fabric.device(*id);
            let is_gpu = matches!(device.kind, DeviceKind::Gpu(_));
            roles.push(Role {
                gpu: is_gpu.then_some(gpus.len() as u32),
                is_nic: matches!(device.kind, DeviceKind::Nic(_)),
                host: device.host,
            });
            if is_gpu {
                gpus.push(local as u32);
            }
        }
        let gpu_links = |id: &DeviceId| {
            let links = fabric.links_from(*id).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
            let target = |link: &Link| Some(members.binary_search(&link.target).ok()? as u32);
            links.filter_map(|link| Some((target(link)?, Width::of(fabric.spec(link), link.count)))).collect()
        };
        let mut places = vec![(0, 0); members.len()];
        let mut parts = Vec::new();
        for devices in components_of(fabric, members, |link| LocalGraph::uses(fabric.spec(link).kind)) {
            let numbers: Vec<u32> =
                devices.iter().filter_map(|id| Some(members.binary_search(id).ok()? as u32)).collect();
            for (number, local) in numbers.iter().enumerate() {
                places[*local as usize] = (parts.len() as u32, number as u32);
            }
            parts.push(Part { graph: LocalGraph::of(fabric, &devices), devices: numbers });
        }
        let gpu_links: Vec<Vec<(u32, Width)>> = members.iter().map(gpu_links).collect();
        let has_gpu_links =
            |local: &u32| roles[*local as usize].gpu.is_none() && !gpu_links[*local as usize].is_empty();
        let switches = (0..members.len() as u32).filter(has_gpu_links).collect();
        let gpu_ids: Vec<DeviceId> = gpus.iter().map(|local| members[*local as usize]).collect();
        Self {
            members: members.to_vec(),
            count: 1,
            gpus,
            roles,
            parts,
            places,
            gpu_links,
            gpu_fabric: GpuFabric::of(fabric, members, &gpu_ids),
            reach: members.iter().map(|_| OnceCell::new()).collect(),
            switches,
            switch_distances: members.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// The best path between two of its devices.
    pub(super) fn path(&self, source: u32, target: u32) -> Option<Path> {
        match (self.gpu(source), self.gpu(target)) {
            (Some(a), Some(b)) => self.gpu_path(a, b).or_else(|| self.plain_path(source, target)),
            (Some(_), None) if !self.is_gpu_switch(target) => self.path_from_gpu(source, target),
            (None, _) if !self.is_gpu_switch(source) => self.plain_path(source, target),
            _ => self.path_with_switch(source, target).or_else(|| self.plain_path(source, target)),
        }
    }

    /// True for NVSwitches and for CPUs that GPUs have NVLinks to.
    fn is_gpu_switch(&self, device: u32) -> bool {
        self.gpu(device).is_none() && !self.gpu_links[device as usize].is_empty()
    }

    /// Over the GPU fabric where one end is a switch: the shortest path, as wide as its narrowest link.
    fn path_with_switch(&self, source: u32, target: u32) -> Option<Path> {
        let distances = self.switch_distances(target);
        let hops = distances[source as usize];
        if hops == u32::MAX {
            return None;
        }
        let (mut at, mut width) = (source, Width::UNLIMITED);
        while at != target {
            let closer = |(next, _): &&(u32, Width)| distances[*next as usize] < distances[at as usize];
            let (next, link) =
                self.gpu_links[at as usize].iter().filter(closer).max_by_key(|(_, link)| link.effective)?;
            (at, width) = (*next, width.then(*link));
        }
        Some(Path { kind: PathType::Nvl, hops, width })
    }

    /// The width of all links of a GPU into the GPU fabric.
    pub(super) fn gpu_fabric_out(&self, device: u32) -> Width {
        self.gpu(device).map_or(Width::NONE, |gpu| self.gpu_fabric.out_of(gpu))
    }

    /// The stations after `source` on its best path to `target`.
    pub(super) fn stations(&self, source: u32, target: u32) -> Vec<Vec<u32>> {
        let Some(path) = self.path(source, target) else {
            return Vec::new();
        };
        match path.kind {
            PathType::Nvl => self.gpu_stations(source, target),
            PathType::Nvb => {
                let relay = self.gpu(source).zip(self.gpu(target)).and_then(|(a, b)| self.relay(a, b));
                let relay = relay.map(|(gpu, _)| vec![self.gpus[gpu]]);
                relay.into_iter().chain([vec![target]]).collect()
            }
            PathType::Pxn => self.stations_through_helper(source, target),
            _ => self.plain_stations(source, target).collect(),
        }
    }

    fn gpu(&self, device: u32) -> Option<usize> {
        self.roles[device as usize].gpu.map(|gpu| gpu as usize)
    }

    fn reach(&self, source: u32, target: u32) -> Option<&Reach> {
        let ((part, from), (other, to)) = (self.places[source as usize], self.places[target as usize]);
        if part != other {
            return None;
        }
        let reached =
            self.reach[source as usize].get_or_init(|| self.parts[part as usize].graph.reach_from(from));
        reached[to as usize].as_ref()
    }

    /// The stations after `source` on the path to `target` over PCIe, C2C and inter-socket links.
    fn plain_stations(&self, source: u32, target: u32) -> impl Iterator<Item = Vec<u32>> + '_ {
        let devices = &self.parts[self.places[source as usize].0 as usize].devices;
        let reach = self.reach(source, target).into_iter();
        reach.flat_map(|reach| &reach.devices[1..]).map(|device| vec![devices[*device as usize]])
    }

    /// Over PCIe, C2C and inter-socket links only.
    fn plain_path(&self, source: u32, target: u32) -> Option<Path> {
        let reach = self.reach(source, target)?;
        Some(Path { kind: reach.kind, hops: reach.devices.len() as u32 - 1, width: reach.width })
    }

    /// Between GPUs over the GPU fabric, if necessary through one other GPU.
    fn gpu_path(&self, a: usize, b: usize) -> Option<Path> {
        if let Some((width, hops)) = self.gpu_fabric.between(a, b) {
            return Some(Path { kind: PathType::Nvl, hops, width });
        }
        let (_, width) = self.relay(a, b)?;
        Some(Path { kind: PathType::Nvb, hops: 2, width })
    }

    /// The GPU that gives the widest path between two others over direct links.
    fn relay(&self, a: usize, b: usize) -> Option<(usize, Width)> {
        let through = |middle: usize| {
            let onward = self.gpu_fabric.neighbours(middle).any(|peer| peer == b);
            let (first, second) = (self.gpu_fabric.between(a, middle)?, self.gpu_fabric.between(middle, b)?);
            onward.then(|| (middle, first.0.then(second.0)))
        };
        let ways = self.gpu_fabric.neighbours(a).filter_map(through);
        ways.max_by_key(|(middle, width)| (width.effective, Reverse(*middle)))
    }

    /// From a GPU to a device that is not a GPU. The path to a NIC may lead through the GPU next to the NIC; data that
    /// arrives cannot take that path, because no library relays it.
    fn path_from_gpu(&self, gpu: u32, target: u32) -> Option<Path> {
        let plain = self.plain_path(gpu, target);
        self.helper(gpu, target, plain).map(|(_, path)| path).or(plain)
    }

    /// The NVLink peer on the same host that reaches a NIC without the CPU, if the GPU itself would need the CPU or has
    /// less bandwidth; and the path through that peer.
    fn helper(&self, gpu: u32, nic: u32, plain: Option<Path>) -> Option<(u32, Path)> {
        if !self.roles[nic as usize].is_nic {
            return None;
        }
        let through = |peer: &u32| {
            if *peer == gpu || self.roles[*peer as usize].host != self.roles[gpu as usize].host {
                return None;
            }
            let beside = self.plain_path(*peer, nic).filter(|path| path.kind <= PathType::P2c)?;
            let better = plain.is_none_or(|plain| {
                plain.kind > PathType::Pxn || beside.width.effective > plain.width.effective
            });
            let (width, hops) = if better {
                self.gpu_fabric.between(self.gpu(gpu)?, self.gpu(*peer)?)?
            } else {
                return None;
            };
            let path =
                Path { kind: PathType::Pxn, hops: hops + beside.hops, width: width.then(beside.width) };
            Some((*peer, path))
        };
        let ways = self.gpus.iter().filter_map(through);
        ways.max_by_key(|(peer, path)| (path.width.effective, Reverse(path.hops), Reverse(*peer)))
    }

    fn stations_through_helper(&self, gpu: u32, nic: u32) -> Vec<Vec<u32>> {
        let Some((peer, _)) = self.helper(gpu, nic, self.plain_path(gpu, nic)) else {
            return Vec::new();
        };
        let mut stations = self.gpu_stations(gpu, peer);
        stations.extend(self.plain_stations(peer, nic));
        stations
    }

    /// The switches on the shortest paths between two GPUs, by their distance from the first.
    fn gpu_stations(&self, source: u32, target: u32) -> Vec<Vec<u32>> {
        let from_source = self.switch_distances(source);
        let from_target = self.switch_distances(target);
        let total = from_source[target as usize];
        if total == u32::MAX {
            return vec![vec![target]];
        }
        let mut stations: Vec<Vec<u32>> = vec![Vec::new(); total.saturating_sub(1) as usize];
        for &device in self.switches.iter().filter(|device| **device != source && **device != target) {
            let (near, far) = (from_source[device as usize], from_target[device as usize]);
            if near.saturating_add(far) == total {
                stations[near as usize - 1].push(device);
            }
        }
        stations.push(vec![target]);
        stations
    }

    /// Distances over the GPU fabric, without passing through another GPU.
    fn switch_distances(&self, source: u32) -> &[u32] {
        self.switch_distances[source as usize].get_or_init(|| self.switch_distances_from(source))
    }

    fn switch_distances_from(&self, source: u32) -> Vec<u32> {
        let mut distances = vec![u32::MAX; self.members.len()];
        distances[source as usize] = 0;
        let mut queue = vec![source];
        let mut next = 0;
        while next < queue.len() {
            let at = queue[next];
            next += 1;
            if at != source && self.gpu(at).is_some() {
                continue;
            }
            for (target, _) in &self.gpu_links[at as usize] {
                if distances[*target as usize] == u32::MAX {
                    distances[*target as usize] = distances[at as usize] + 1;
                    queue.push(*target);
                }
            }
        }
        distances
    }
}
