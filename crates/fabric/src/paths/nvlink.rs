//! The GPU fabric of one island: the width of NVLink, xGMI, Xe Link or UALink between two GPUs.
//!
//! A GPU spreads its links over several switches, so the width of a pair is a sum: its direct links, plus the flow through
//! each group of connected switches. A group of one switch forwards everything (NVSwitches are non-blocking); in a
//! larger group the links between switches may be the bottleneck, so a maximum flow is computed.

use std::cell::RefCell;

use rustc_hash::FxHashMap;

use crate::components::components_of;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::DeviceId;
use crate::link::{Link, LinkKind};
use crate::maxflow::FlowGraph;
use crate::rate::Rate;

use super::width::Width;

/// The GPU fabric of an island.
#[derive(Debug)]
pub(super) struct GpuFabric {
    groups: Vec<Group>,
    /// For each GPU of the island, in order.
    gpus: Vec<GpuPorts>,
}

#[derive(Debug, Default)]
struct GpuPorts {
    /// Other GPUs and the links to each.
    direct: Vec<(u32, Width)>,
    /// Those of them that a relayed path may use.
    relays: Vec<u32>,
    /// The links into each group, sorted by group.
    into: Vec<(u32, Ports)>,
    /// The links out of each group.
    from: Vec<(u32, Ports)>,
}

/// Width and hops between two GPUs, if they are connected.
type Connection = Option<(Width, u32)>;

/// Links between a GPU and the switches of a group.
type Ports = Vec<(u32, Width)>;

#[derive(Debug)]
struct Group {
    switches: usize,
    /// Links between its switches.
    trunks: Vec<(u32, u32, Width)>,
    /// The trunks as flow graphs of links, nominal and effective rates, built on first use.
    flows: RefCell<Option<[Flow; 3]>>,
    /// Cache of computed connections.
    known: RefCell<FxHashMap<(Ports, Ports), Connection>>,
}

/// A group as a flow graph. The trunks are added once; only the capacities of the ports change from one pair of GPUs to
/// the next.
#[derive(Debug)]
struct Flow {
    graph: FlowGraph,
    /// For each switch, the edge into it and the one out of it.
    ports: Vec<(usize, usize)>,
}

impl GpuFabric {
    /// Reads the GPU fabric among an island's devices; `gpus` are its GPUs in order.
    pub(super) fn of(fabric: &Fabric, members: &[DeviceId], gpus: &[DeviceId]) -> Self {
        let is_switch = |id: DeviceId| {
            // A POWER9 CPU has NVLinks and forwards between them like a switch.
            matches!(fabric.device(id).kind, DeviceKind::NvSwitch { .. } | DeviceKind::Numa(_))
        };
        let fabric_links =
            |id: DeviceId| fabric.links_from(id).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        let mut group_of: FxHashMap<DeviceId, (u32, u32)> = FxHashMap::default();
        let mut groups: Vec<Group> = Vec::new();
        let is_trunk = |link: &Link| {
            fabric.spec(link).kind.is_gpu_fabric() && is_switch(link.source) && is_switch(link.target)
        };
        for switches in components_of(fabric, members, is_trunk) {
            if !is_switch(switches[0]) || switches.iter().all(|id| fabric_links(*id).next().is_none()) {
                continue;
            }
            for (index, switch) in switches.iter().enumerate() {
                group_of.insert(*switch, (groups.len() as u32, index as u32));
            }
            let trunk = |link: &Link| {
                let width = Width::of(fabric.spec(link), link.count);
                Some((group_of[&link.source].1, group_of.get(&link.target)?.1, width))
            };
            let trunks = switches.iter().flat_map(|id| fabric_links(*id)).filter_map(trunk).collect();
            groups.push(Group {
                switches: switches.len(),
                trunks,
                flows: RefCell::default(),
                known: RefCell::default(),
            });
        }
        let numbers: FxHashMap<DeviceId, u32> =
            gpus.iter().enumerate().map(|(i, id)| (*id, i as u32)).collect();
        let mut ports: Vec<GpuPorts> = gpus.iter().map(|_| GpuPorts::default()).collect();
        for link in members.iter().flat_map(|id| fabric_links(*id)) {
            let width = Width::of(fabric.spec(link), link.count);
            match (numbers.get(&link.source), numbers.get(&link.target)) {
                (Some(&a), Some(&b)) => {
                    add(&mut ports[a as usize].direct, b, width);
                    // Only NVIDIA's libraries relay data through a GPU.
                    if matches!(fabric.spec(link).kind, LinkKind::NvLink { .. }) {
                        ports[a as usize].relays.push(b);
                    }
                }
                (Some(&a), None) => add_port(&mut ports[a as usize].into, group_of.get(&link.target), width),
                (None, Some(&b)) => add_port(&mut ports[b as usize].from, group_of.get(&link.source), width),
                (None, None) => {}
            }
        }
        Self { groups, gpus: ports }
    }

    /// Width and hops from one GPU to another, by their numbers on the island; none without a GPU fabric between them.
    pub(super) fn between(&self, a: usize, b: usize) -> Connection {
        let mut total: Connection = None;
        let mut add = |width: Width, hops: u32| {
            let (sum, fewest) = total.unwrap_or((Width::NONE, u32::MAX));
            total = Some((sum.plus(width), fewest.min(hops)));
        };
        for (peer, width) in &self.gpus[a].direct {
            if *peer as usize == b {
                add(*width, 1);
            }
        }
        for (group, into) in &self.gpus[a].into {
            let Some((_, from)) = self.gpus[b].from.iter().find(|(other, _)| other == group) else {
                continue;
            };
            if let Some((width, hops)) = self.groups[*group as usize].between(into, from) {
                add(width, hops);
            }
        }
        total
    }

    /// The width of all links of a GPU into the GPU fabric.
    pub(super) fn out_of(&self, gpu: usize) -> Width {
        let ports = &self.gpus[gpu];
        let switched = ports.into.iter().flat_map(|(_, ports)| ports);
        ports.direct.iter().chain(switched).fold(Width::NONE, |sum, (_, width)| sum.plus(*width))
    }

    /// The GPUs with direct NVLinks to a GPU.
    pub(super) fn neighbours(&self, gpu: usize) -> impl Iterator<Item = usize> + '_ {
        self.gpus[gpu].relays.iter().map(|peer| *peer as usize)
    }
}

impl Group {
    /// Width and hops from one GPU's ports to another's.
    fn between(&self, into: &Ports, from: &Ports) -> Connection {
        if self.switches == 1 {
            return Some((into[0].1.then(from[0].1), 2));
        }
        let key = (into.clone(), from.clone());
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let connection = self.distance(into, from).map(|distance| (self.flow(into, from), 2 + distance));
        self.known.borrow_mut().insert(key, connection);
        connection
    }

    fn flow(&self, into: &Ports, from: &Ports) -> Width {
        let amounts: [fn(&Width) -> u64; 3] = [
            |width| width.links.into(),
            |width| width.nominal.bytes_per_second(),
            |width| width.effective.bytes_per_second(),
        ];
        let mut flows = self.flows.borrow_mut();
        let flows = flows.get_or_insert_with(|| amounts.map(|of| Flow::of(self.switches, &self.trunks, of)));
        let [links, nominal, effective] = [0, 1, 2].map(|i: usize| flows[i].between(into, from, amounts[i]));
        Width {
            links: links as u32,
            nominal: Rate::from_bytes(nominal),
            effective: Rate::from_bytes(effective),
        }
    }

    /// The fewest links between a switch of `into` and one of `from`; none if they are not connected.
    fn distance(&self, into: &Ports, from: &Ports) -> Option<u32> {
        let mut distances = vec![u32::MAX; self.switches];
        let mut queue: Vec<u32> = into.iter().map(|(switch, _)| *switch).collect();
        queue.iter().for_each(|switch| distances[*switch as usize] = 0);
        let mut next = 0;
        while next < queue.len() {
            let at = queue[next];
            for (a, b, _) in &self.trunks {
                if *a == at && distances[*b as usize] == u32::MAX {
                    distances[*b as usize] = distances[at as usize] + 1;
                    queue.push(*b);
                }
            }
            next += 1;
        }
        from.iter().map(|(switch, _)| distances[*switch as usize]).min().filter(|least| *least < u32::MAX)
    }
}

impl Flow {
    fn of(switches: usize, trunks: &[(u32, u32, Width)], of: fn(&Width) -> u64) -> Self {
        let (source, sink) = (switches, switches + 1);
        let mut graph = FlowGraph::new(switches + 2);
        let ports = (0..switches).map(|at| (graph.edge(source, at, 0), graph.edge(at, sink, 0))).collect();
        for (a, b, width) in trunks {
            graph.edge(*a as usize, *b as usize, of(width));
        }
        Self { graph, ports }
    }

    /// The maximum flow from one GPU's ports to another's.
    fn between(&mut self, into: &Ports, from: &Ports, of: fn(&Width) -> u64) -> u64 {
        for (switch, width) in into {
            self.graph.set_capacity(self.ports[*switch as usize].0, of(width));
        }
        for (switch, width) in from {
            self.graph.set_capacity(self.ports[*switch as usize].1, of(width));
        }
        let (source, sink) = (self.ports.len(), self.ports.len() + 1);
        let flow = self.graph.max_flow(source, sink);
        into.iter().for_each(|(switch, _)| self.graph.set_capacity(self.ports[*switch as usize].0, 0));
        from.iter().for_each(|(switch, _)| self.graph.set_capacity(self.ports[*switch as usize].1, 0));
        flow
    }
}

fn add(widths: &mut Vec<(u32, Width)>, key: u32, width: Width) {
    match widths.iter_mut().find(|(other, _)| *other == key) {
        Some((_, sum)) => *sum = sum.plus(width),
        None => widths.push((key, width)),
    }
}

fn add_port(ports: &mut Vec<(u32, Ports)>, at: Option<&(u32, u32)>, width: Width) {
    let Some(&(group, switch)) = at else { return };
    let index = ports.iter().position(|(other, _)| *other == group).unwrap_or_else(|| {
        ports.push((group, Vec::new()));
        ports.len() - 1
    });
    add(&mut ports[index].1, switch, width);
}
