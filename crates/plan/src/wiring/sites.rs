//! Sites: devices that are connected without the network, with their islands and NICs.
//!
//! A site is usually a host, or a rack of hosts that share NVLinks. A cluster is many copies of few sites, so everything
//! here is computed once per *shape* (see [`weftlink_fabric::paths::island`]), in numbers local to the site, which the
//! copies translate to ranks.

use weftlink_fabric::domains::gpu_domains_among;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, PathType, Paths};

use super::mesh::Mesh;

/// The sites of a fabric that have GPUs.
pub(super) struct Sites<'a> {
    pub(super) paths: Paths<'a>,
    /// The analysis of each shape of site; nothing if it has no GPUs.
    shapes: Vec<Option<Site>>,
    /// The rank of each device that is a GPU.
    rank_of: Vec<u32>,
}

/// One shape of site.
pub(super) struct Site {
    pub(super) islands: Vec<Island>,
}

/// An island of a shape of site.
pub(super) struct Island {
    /// Its GPUs by their numbers in the site, in the order of their rails.
    pub(super) gpus: Vec<u32>,
    /// The links between them.
    pub(super) kind: Interconnect,
    /// The NICs that data can leave by, in order.
    pub(super) nics: Vec<Nic>,
    /// Positions of the GPUs, neighbours on PCIe next to each other.
    pub(super) by_locality: Vec<u32>,
}

/// The links between the GPUs of an island.
pub(super) enum Interconnect {
    /// Switches, which connect any two GPUs at the full speed of their ports.
    Switch,
    /// Direct links.
    Links(Mesh),
    /// PCIe and links between sockets, or nothing.
    Host,
}

/// A NIC as an island sees it.
pub(super) struct Nic {
    /// Positions of the nearest GPUs.
    pub(super) near: Vec<u32>,
}

/// An island of the fabric.
pub(super) struct Placed<'s> {
    /// The shape of the island.
    pub(super) island: &'s Island,
    /// The number of that shape: the shape of the site, and the island there.
    pub(super) shape: (usize, usize),
    /// The number of its site.
    pub(super) site: usize,
    /// Its ranks in the order of their rails.
    pub(super) ranks: Vec<u32>,
}

impl<'a> Sites<'a> {
    pub(super) fn of(fabric: &'a Fabric) -> Self {
        let paths = Paths::of(fabric);
        let mut rank_of = vec![u32::MAX; fabric.devices().len()];
        for (rank, gpu) in (0..).zip(fabric.gpus()) {
            rank_of[gpu.index()] = rank;
        }
        let mut shapes: Vec<Option<Site>> = Vec::with_capacity(paths.islands().shapes());
        for island in paths.islands().all() {
            if island.shape == shapes.len() {
                shapes.push(Site::of(&paths, &island.members));
            }
        }
        Self { paths, shapes, rank_of }
    }

    /// All islands, in the order of their first ranks.
    pub(super) fn islands(&self) -> Vec<Placed<'_>> {
        let mut placed = Vec::new();
        for (site, members) in self.paths.islands().all().iter().enumerate() {
            let islands = self.shapes[members.shape].iter().flat_map(|site| &site.islands);
            placed.extend(islands.enumerate().map(|(number, island)| {
                let rank = |local: &u32| self.rank_of[members.members[*local as usize].index()];
                let ranks = island.gpus.iter().map(rank).collect();
                Placed { island, shape: (members.shape, number), site, ranks }
            }));
        }
        placed.sort_by_key(|island| island.ranks.iter().min().copied());
        placed
    }
}

impl Site {
    fn of(paths: &Paths<'_>, members: &[DeviceId]) -> Option<Self> {
        let fabric = paths.fabric();
        let (mut groups, alone): (Vec<_>, Vec<_>) =
            gpu_domains_among(fabric, members).into_iter().partition(|domain| domain.len() > 1);
        let linked = groups.len();
        for gpu in alone.into_iter().flatten() {
            let host = fabric.device(gpu).host;
            match groups[linked..].iter_mut().find(|group| fabric.device(group[0]).host == host) {
                Some(group) => group.push(gpu),
                None => groups.push(vec![gpu]),
            }
        }
        let tree = Tree::of(fabric, members);
        let islands: Vec<Island> =
            groups.into_iter().map(|gpus| Island::of(paths, members, &tree, gpus)).collect();
        (!islands.is_empty()).then_some(Self { islands })
    }
}

impl Island {
    fn of(paths: &Paths<'_>, members: &[DeviceId], tree: &Tree<'_>, mut gpus: Vec<DeviceId>) -> Self {
        let fabric = paths.fabric();
        let nics = nics_beside(fabric, members, &gpus);
        let rails = rails(paths, &gpus, &nics);
        let mut order: Vec<usize> = (0..gpus.len()).collect();
        order.sort_by_key(|gpu| (fabric.device(gpus[*gpu]).host, rails[*gpu], gpus[*gpu]));
        gpus = order.iter().map(|gpu| gpus[*gpu]).collect();
        let kind = if is_switched(paths, &gpus) {
            Interconnect::Switch
        } else {
            Mesh::of(fabric, &gpus).map_or(Interconnect::Host, Interconnect::Links)
        };
        let mut by_locality: Vec<u32> = (0..gpus.len() as u32).collect();
        by_locality.sort_by_cached_key(|gpu| tree.way_down(gpus[*gpu as usize]));
        let near = |nic: &DeviceId| {
            let distances: Vec<_> = gpus.iter().map(|gpu| distance(paths, *nic, *gpu)).collect();
            let least = distances.iter().min().copied();
            let near = (0..).zip(distances).filter(|(_, distance)| Some(*distance) == least);
            Nic { near: near.map(|(position, _)| position).collect() }
        };
        let local = |gpu: &DeviceId| members.binary_search(gpu).unwrap_or_default() as u32;
        Self {
            nics: nics.iter().map(near).collect(),
            gpus: gpus.iter().map(local).collect(),
            kind,
            by_locality,
        }
    }
}

/// The distance from a NIC to a GPU, not through other GPUs: the type of the path, then its length. In this direction,
/// because data that arrives takes no detour.
fn distance(paths: &Paths<'_>, nic: DeviceId, gpu: DeviceId) -> (PathType, u32) {
    let path = paths.path(nic, gpu);
    (path.kind, path.hops)
}

/// The NICs of the GPUs' hosts that data leaves by: the fastest of those with a cable, or of all if none has one.
fn nics_beside(fabric: &Fabric, members: &[DeviceId], gpus: &[DeviceId]) -> Vec<DeviceId> {
    let mut hosts: Vec<_> = gpus.iter().map(|gpu| fabric.device(*gpu).host).collect();
    hosts.sort_unstable();
    let rate = |nic: DeviceId| {
        let cables = fabric.links_from(nic).iter();
        let cables = cables.filter(|link| matches!(fabric.spec(link).kind, LinkKind::Network { .. }));
        let cabled: u64 = cables.map(|link| fabric.limit(link).bytes_per_second()).sum();
        let ports = match &fabric.device(nic).kind {
            DeviceKind::Nic(ports) => ports.iter().map(|port| port.rate.bytes_per_second()).sum(),
            _ => 0,
        };
        (cabled, if cabled > 0 { 0 } else { ports })
    };
    let is_near = |nic: &DeviceId| {
        matches!(fabric.device(*nic).kind, DeviceKind::Nic(_))
            && hosts.binary_search(&fabric.device(*nic).host).is_ok()
    };
    let mut nics: Vec<(DeviceId, (u64, u64))> =
        members.iter().copied().filter(is_near).map(|nic| (nic, rate(nic))).collect();
    let fastest = nics.iter().map(|(_, rate)| *rate).max();
    nics.retain(|(_, rate)| Some(*rate) == fastest);
    nics.into_iter().map(|(nic, _)| nic).collect()
}

/// The rail of each GPU: the number of its nearest NIC; of equally near ones, the one with the fewest GPUs so far.
fn rails(paths: &Paths<'_>, gpus: &[DeviceId], nics: &[DeviceId]) -> Vec<usize> {
    let mut taken = vec![0_u32; nics.len()];
    let mut rail = |gpu: &DeviceId| {
        let far = |nic: &usize| (distance(paths, nics[*nic], *gpu), taken[*nic], *nic);
        let same_host =
            |nic: &usize| paths.fabric().device(nics[*nic]).host == paths.fabric().device(*gpu).host;
        let nearest = (0..nics.len()).filter(same_host).min_by_key(far);
        nearest.iter().for_each(|nic| taken[*nic] += 1);
        nearest.unwrap_or(0)
    };
    gpus.iter().map(&mut rail).collect()
}

/// Whether any two GPUs reach each other through switches over all their links.
fn is_switched(paths: &Paths<'_>, gpus: &[DeviceId]) -> bool {
    let fabric = paths.fabric();
    let only_switches = |gpu: &DeviceId| {
        let mut links = fabric.links_from(*gpu).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        links.all(|link| matches!(fabric.device(link.target).kind, DeviceKind::NvSwitch { .. }))
    };
    let full = |a: &DeviceId, b: &DeviceId| {
        let path = paths.path(*a, *b);
        let ports = paths.gpu_fabric_out(*a).links.min(paths.gpu_fabric_out(*b).links);
        path.kind == PathType::Nvl && path.width.links == ports
    };
    gpus.len() > 1
        && gpus.iter().all(only_switches)
        && gpus.iter().enumerate().all(|(number, a)| gpus[number + 1..].iter().all(|b| full(a, b)))
}

/// The site's devices as a tree below its CPUs, over PCIe and C2C.
struct Tree<'m> {
    members: &'m [DeviceId],
    above: Vec<Option<u32>>,
}

impl<'m> Tree<'m> {
    fn of(fabric: &Fabric, members: &'m [DeviceId]) -> Self {
        let mut above = vec![None; members.len()];
        let is_cpu = |local: &usize| matches!(fabric.device(members[*local]).kind, DeviceKind::Numa(_));
        let mut queue: Vec<usize> = (0..members.len()).filter(is_cpu).collect();
        let mut seen = vec![false; members.len()];
        queue.iter().for_each(|root| seen[*root] = true);
        let mut next = 0;
        while let Some(&at) = queue.get(next) {
            next += 1;
            for link in fabric.links_from(members[at]) {
                let down = matches!(fabric.spec(link).kind, LinkKind::Pcie { .. } | LinkKind::C2c);
                match members.binary_search(&link.target) {
                    Ok(target) if down && !seen[target] => {
                        seen[target] = true;
                        above[target] = Some(at as u32);
                        queue.push(target);
                    }
                    _ => {}
                }
            }
        }
        Self { members, above }
    }

    /// The devices from the CPU down to a device. A cyclic walk over the GPUs in this order uses every link of the tree once
    /// each way.
    fn way_down(&self, device: DeviceId) -> Vec<u32> {
        let mut way: Vec<u32> = self.members.binary_search(&device).map(|at| at as u32).into_iter().collect();
        while let Some(above) = way.last().and_then(|at| self.above[*at as usize]) {
            way.push(above);
        }
        way.reverse();
        way
    }
}
