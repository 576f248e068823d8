//! The rates between parts of a fabric: flows inside one site of each shape, and cables between sites.
//!
//! The flow out of some GPUs of a site ends at the site's other GPUs and at the cables of its NICs; it passes through any
//! device but a GPU. GPUs of an island with GPU links send each other nothing over PCIe, as in practice.

use std::collections::BTreeMap;

use weftlink_fabric::maxflow::FlowGraph;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind};

use super::bounds::{Class, MeshCuts, Partition};
use super::mesh::{EXACT_RANKS_MAX, Mesh};
use super::pods;
use super::sites::{Interconnect, Placed, Sites};

/// Above any rate, and far enough from overflow to add.
const OPEN: u64 = u64::MAX / 4;

/// The partitions, and the islands to cut into subsets.
pub(super) fn cuts(
    sites: &Sites<'_>,
    islands: &[Placed<'_>],
    multicast: bool,
    network: bool,
) -> (Vec<Partition>, Vec<MeshCuts>) {
    let fabric = sites.paths.fabric();
    let mut cutter = Cutter::of(sites, islands);
    let several_sites = islands.iter().any(|island| island.site != islands[0].site);
    let mut partitions = Vec::new();
    let mut add = |partition: Partition| {
        let parts: u64 = partition.classes.iter().map(|class| class.parts).sum();
        if parts > 1 {
            partitions.push(partition);
        }
    };
    let single = |placed: &Placed<'_>, position: usize| vec![placed.ranks[position]];
    let singles =
        islands.iter().flat_map(|placed| (0..placed.ranks.len()).map(move |at| (placed, single(placed, at))));
    add(cutter.partition("GPUs", singles, multicast || network, |fabric, ranks| {
        fabric.device_name(fabric.gpus()[ranks[0] as usize])
    }));
    add(cutter.partition("hosts", hosts(fabric, islands).into_iter(), multicast || network, host_name));
    let whole = islands.iter().map(|placed| (placed, placed.ranks.clone()));
    add(cutter.partition("islands", whole, network, |fabric, ranks| {
        let name = |rank: &u32| fabric.device_name(fabric.gpus()[*rank as usize]);
        format!("the island from {} to {}", name(&ranks[0]), name(&ranks[ranks.len() - 1]))
    }));
    if several_sites {
        let outs = |placed: &Placed<'_>| cutter.site_rates(placed);
        for partition in pods::partitions(sites, islands, outs, network) {
            add(partition);
        }
    } else if let [first] = islands {
        // In the order of ranks; `ranks` is in the order of rails.
        let mut in_order = first.ranks.clone();
        in_order.sort_unstable();
        let halves = in_order.chunks(in_order.len().div_ceil(2)).map(|half| (first, half.to_vec()));
        add(cutter.partition("halves", halves, multicast, |_, ranks| {
            format!("ranks {} to {}", ranks[0], ranks[ranks.len() - 1])
        }));
    }
    (partitions, mesh_cuts(&mut cutter, islands))
}

/// The islands of direct links, each shape once.
fn mesh_cuts(cutter: &mut Cutter<'_>, islands: &[Placed<'_>]) -> Vec<MeshCuts> {
    let fabric = cutter.sites.paths.fabric();
    let mut found: BTreeMap<(usize, usize), MeshCuts> = BTreeMap::new();
    for placed in islands.iter().filter(|placed| matches!(placed.island.kind, Interconnect::Links(_))) {
        if let Some(known) = found.get_mut(&placed.shape) {
            known.islands.push(placed.ranks.clone());
            continue;
        }
        let gpus: Vec<DeviceId> = placed.ranks.iter().map(|rank| fabric.gpus()[*rank as usize]).collect();
        let worth = |mesh: &Mesh| mesh.wire_bytes_per_second() > 0 && mesh.ranks() <= EXACT_RANKS_MAX;
        let Some(mesh) = Mesh::rounded_up(fabric, &gpus).filter(worth) else { continue };
        let all = (1_u32 << mesh.ranks()) - 1;
        let wires = |set: u32| mesh.out_of(set).saturating_mul(mesh.wire_bytes_per_second());
        let beside = |at: usize| {
            let (out, into) = cutter.rates(placed, &[placed.ranks[at]]);
            (out.saturating_sub(wires(1 << at)), into.saturating_sub(wires(all & !(1 << at))))
        };
        let beside: Vec<(u64, u64)> = (0..mesh.ranks()).map(beside).collect();
        let names = gpus.iter().map(|gpu| fabric.device_name(*gpu)).collect();
        let alone = islands.len() == 1 && beside.iter().all(|beside| *beside == (0, 0));
        found.insert(
            placed.shape,
            MeshCuts { mesh, names, islands: vec![placed.ranks.clone()], beside, alone },
        );
    }
    found.into_values().collect()
}

/// The ranks of each host, with one of its islands; empty if the hosts are the islands.
fn hosts<'p, 's>(fabric: &Fabric, islands: &'p [Placed<'s>]) -> Vec<(&'p Placed<'s>, Vec<u32>)> {
    let host = |rank: u32| fabric.device(fabric.gpus()[rank as usize]).host;
    let mut found: BTreeMap<_, (&Placed<'_>, Vec<u32>)> = BTreeMap::new();
    for placed in islands {
        for rank in &placed.ranks {
            found.entry((placed.site, host(*rank))).or_insert((placed, Vec::new())).1.push(*rank);
        }
    }
    if found.len() == islands.len() { Vec::new() } else { found.into_values().collect() }
}

fn host_name(fabric: &Fabric, ranks: &[u32]) -> String {
    let host = fabric.device(fabric.gpus()[ranks[0] as usize]).host;
    host.map_or_else(|| "GPUs of no host".to_owned(), |host| fabric.hosts()[host.index()].name.clone())
}

/// Computes the rates of parts, once for each shape of part.
struct Cutter<'c> {
    sites: &'c Sites<'c>,
    /// For each device that is a GPU with GPU links, the number of its island.
    linked: Vec<Option<u32>>,
    several_sites: bool,
    flows: BTreeMap<usize, [SiteFlow; 2]>,
    /// The rates for a shape of site and some of its devices.
    known: BTreeMap<(usize, Vec<u32>), (u64, u64)>,
}

impl<'c> Cutter<'c> {
    fn of(sites: &'c Sites<'c>, islands: &[Placed<'_>]) -> Self {
        let mut linked = vec![None; sites.paths.fabric().devices().len()];
        for (number, placed) in (0..).zip(islands) {
            for rank in placed.ranks.iter().filter(|_| !matches!(placed.island.kind, Interconnect::Host)) {
                linked[sites.paths.fabric().gpus()[*rank as usize].index()] = Some(number);
            }
        }
        let several_sites = islands.iter().any(|island| island.site != islands[0].site);
        Self { sites, linked, several_sites, flows: BTreeMap::new(), known: BTreeMap::new() }
    }

    /// A partition into parts that are in one site each.
    fn partition<'p, 's: 'p>(
        &mut self,
        what: &'static str,
        parts: impl Iterator<Item = (&'p Placed<'s>, Vec<u32>)>,
        switches_reduce: bool,
        name: impl Fn(&Fabric, &[u32]) -> String,
    ) -> Partition {
        let fabric = self.sites.paths.fabric();
        let mut part_of = vec![0; fabric.gpus().len()];
        let mut class_of = Vec::new();
        let mut numbers: BTreeMap<(usize, Vec<u32>), u32> = BTreeMap::new();
        let mut classes: Vec<Class> = Vec::new();
        for (placed, ranks) in parts {
            let key = self.key(placed.site, &ranks);
            let number = *numbers.entry(key).or_insert_with(|| {
                let (out, into) = self.rates(placed, &ranks);
                let name = name(fabric, &ranks);
                classes.push(Class { name, parts: 0, ranks: ranks.len() as u64, out, into });
                classes.len() as u32 - 1
            });
            classes[number as usize].parts += 1;
            ranks.iter().for_each(|rank| part_of[*rank as usize] = class_of.len() as u32);
            class_of.push(number);
        }
        Partition { what, classes, part_of, class_of, switches_reduce }
    }

    /// The shape of the site, and the part in numbers of the site.
    fn key(&self, site: usize, ranks: &[u32]) -> (usize, Vec<u32>) {
        let (fabric, islands) = (self.sites.paths.fabric(), self.sites.paths.islands());
        let local = |rank: &u32| islands.place(fabric.gpus()[*rank as usize]).map_or(0, |place| place.local);
        (islands.all()[site].shape, ranks.iter().map(local).collect())
    }

    /// The rates from some ranks of a site to all others, and back.
    fn rates(&mut self, placed: &Placed<'_>, ranks: &[u32]) -> (u64, u64) {
        let key = self.key(placed.site, ranks);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let fabric = self.sites.paths.fabric();
        let members = &self.sites.paths.islands().all()[placed.site].members;
        let part: Vec<DeviceId> = ranks.iter().map(|rank| fabric.gpus()[*rank as usize]).collect();
        let flows = self.flows.entry(placed.site).or_insert_with(|| {
            [false, true].map(|reversed| SiteFlow::of(fabric, members, self.several_sites, reversed))
        });
        let [out, into] = flows.each_mut().map(|flow| flow.out_of(&part, &self.linked));
        self.known.insert(key, (out, into));
        (out, into)
    }

    /// The rates from all ranks of an island's site to other sites, and back.
    fn site_rates(&mut self, placed: &Placed<'_>) -> (u64, u64) {
        let fabric = self.sites.paths.fabric();
        let members = &self.sites.paths.islands().all()[placed.site].members;
        let gpus = fabric.gpus();
        let ranks = members.iter().filter_map(|id| gpus.binary_search(id).ok()).map(|rank| rank as u32);
        self.rates(placed, &ranks.collect::<Vec<_>>())
    }
}

/// The flow graph of a site.
struct SiteFlow {
    graph: FlowGraph,
    members: Vec<DeviceId>,
    /// For each GPU: the device, and its edges from the source, and to the sink by its own links and by the rest.
    gpus: Vec<(DeviceId, [usize; 3])>,
}

impl SiteFlow {
    /// `reversed` reverses every link, so that the flow out is the flow in.
    fn of(fabric: &Fabric, members: &[DeviceId], several_sites: bool, reversed: bool) -> Self {
        let count = members.len();
        let (source, sink) = (count, count + 1);
        let is_gpu = |id: &DeviceId| matches!(fabric.device(*id).kind, DeviceKind::Gpu(_));
        let ids: Vec<DeviceId> = members.iter().copied().filter(is_gpu).collect();
        let mut graph = FlowGraph::new(count + 2 + 2 * ids.len());
        // A GPU receives at nodes of its own, so that nothing passes through it.
        let arrival = |local: usize, by_gpu_link: bool| match ids.binary_search(&members[local]) {
            Ok(number) => count + 2 + 2 * number + usize::from(by_gpu_link),
            Err(_) => local,
        };
        for (local, member) in members.iter().enumerate() {
            for link in fabric.links_from(*member) {
                let rate = fabric.limit(link).bytes_per_second().min(OPEN);
                let kind = fabric.spec(link).kind;
                match members.binary_search(&link.target) {
                    Ok(_) if matches!(kind, LinkKind::Network { .. }) => {}
                    Ok(target) => {
                        let (from, to) = if reversed { (target, local) } else { (local, target) };
                        graph.edge(from, arrival(to, kind.is_gpu_fabric()), rate);
                    }
                    // A cable is as fast both ways.
                    Err(_) if several_sites => {
                        graph.edge(local, sink, rate);
                    }
                    Err(_) => {}
                }
            }
        }
        let mut gpu = |id: &DeviceId| {
            let local = members.binary_search(id).unwrap_or_default();
            let edges = [
                graph.edge(source, local, 0),
                graph.edge(arrival(local, true), sink, 0),
                graph.edge(arrival(local, false), sink, 0),
            ];
            (*id, edges)
        };
        let gpus = ids.iter().map(&mut gpu).collect();
        Self { graph, members: members.to_vec(), gpus }
    }

    /// The flow out of some GPUs; `linked` is the island of each device that is a GPU with GPU links.
    fn out_of(&mut self, part: &[DeviceId], linked: &[Option<u32>]) -> u64 {
        let islands: Vec<u32> = part.iter().filter_map(|gpu| linked[gpu.index()]).collect();
        for (gpu, [from, by_link, by_rest]) in &self.gpus {
            let inside = part.contains(gpu);
            let same_island = linked[gpu.index()].is_some_and(|island| islands.contains(&island));
            let open = |open: bool| if open { OPEN } else { 0 };
            self.graph.set_capacity(*from, open(inside));
            self.graph.set_capacity(*by_link, open(!inside));
            self.graph.set_capacity(*by_rest, open(!inside && !same_island));
        }
        self.graph.max_flow(self.members.len(), self.members.len() + 1)
    }
}
