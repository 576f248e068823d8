//! The graph that is drawn: root ports and bridges with a single device below them are folded into the line, links of
//! both directions are one edge, and PCIe is a tree with the CPUs as roots.

use std::collections::{BTreeMap, VecDeque};

use super::canvas::Look;
use super::palette::{Tone, stroke_width};
use super::words::thousands;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, Measure, SpecId};
use crate::rate::{OneWay, Pair, Rate};

/// All links of one kind between two drawn devices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    pub(super) a: DeviceId,
    pub(super) b: DeviceId,
    pub(super) count: u32,
    pub(super) kind: LinkKind,
    pub(super) rate: Rate<Pair, OneWay>,
}

impl Edge {
    /// The other end.
    pub(super) fn other_end(&self, end: DeviceId) -> DeviceId {
        if self.a == end { self.b } else { self.a }
    }

    pub(super) fn tone(&self) -> Tone {
        Tone::of(self.kind)
    }

    pub(super) fn width(&self) -> f64 {
        stroke_width(self.rate)
    }

    /// `NV2` for two NVLinks, `x2` for two of any other kind.
    pub(super) fn tag(&self) -> String {
        match self.kind {
            LinkKind::NvLink { .. } => format!("NV{}", self.count),
            _ => times(self.count as usize),
        }
    }
}

/// `x18`, with a multiplication sign.
pub(super) fn times(count: usize) -> String {
    format!("\u{d7}{}", thousands(count))
}

/// A fabric prepared for drawing.
pub(super) struct Scene<'a> {
    pub(super) fabric: &'a Fabric,
    parents: Vec<Option<DeviceId>>,
    edges: Vec<Edge>,
    edges_of: Vec<Vec<u32>>,
    by_host: BTreeMap<Option<HostId>, Vec<DeviceId>>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(fabric: &'a Fabric) -> Self {
        let raw = pcie_parents(fabric);
        let mut fan_out = vec![0_u32; raw.len()];
        raw.iter().flatten().for_each(|parent| fan_out[parent.index()] += 1);
        let folded = |id: DeviceId| match fabric.device(id).kind {
            DeviceKind::RootPort => true,
            DeviceKind::PcieSwitch => fan_out[id.index()] == 1 && raw[id.index()].is_some(),
            _ => false,
        };
        let drawn_device = |id: DeviceId| {
            let mut at = Some(id);
            while let Some(id) = at.filter(|&id| folded(id)) {
                at = raw[id.index()];
            }
            at
        };
        let parents = raw.iter().map(|parent| parent.and_then(drawn_device)).collect();
        let drawn_as: Vec<Option<DeviceId>> = fabric.device_ids().map(drawn_device).collect();
        let edges = edges(fabric, &drawn_as);
        let mut edges_of = vec![Vec::new(); fabric.devices().len()];
        for (index, edge) in edges.iter().enumerate() {
            edges_of[edge.a.index()].push(index as u32);
            edges_of[edge.b.index()].push(index as u32);
        }
        let mut by_host: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for id in fabric.device_ids().filter(|&id| !folded(id)) {
            by_host.entry(fabric.device(id).host).or_default().push(id);
        }
        Self { fabric, parents, edges, edges_of, by_host }
    }

    pub(super) fn kind(&self, id: DeviceId) -> &'a DeviceKind {
        &self.fabric.device(id).kind
    }

    pub(super) fn look(&self, id: DeviceId) -> Look {
        match self.kind(id) {
            DeviceKind::Numa(_) => Look::Cpu,
            DeviceKind::PcieSwitch | DeviceKind::RootPort => Look::PcieSwitch,
            DeviceKind::Gpu(_) => Look::Gpu,
            DeviceKind::NvSwitch { .. } => Look::NvSwitch,
            DeviceKind::Nic(_) => Look::Nic,
            DeviceKind::Storage => Look::Drive,
            DeviceKind::NetSwitch(_) => Look::NetSwitch,
            DeviceKind::PciFunction => Look::Other,
        }
    }

    /// The drawn devices of a host, or (`None`) of no host, sorted by id.
    pub(super) fn devices(&self, host: Option<HostId>) -> &[DeviceId] {
        self.by_host.get(&host).map_or(&[], Vec::as_slice)
    }

    /// The drawn PCIe parent of a device.
    pub(super) fn parent(&self, id: DeviceId) -> Option<DeviceId> {
        self.parents[id.index()]
    }

    pub(super) fn edges(&self) -> &[Edge] {
        &self.edges
    }

    pub(super) fn edges_of(&self, id: DeviceId) -> impl Iterator<Item = &Edge> + '_ {
        self.edges_of[id.index()].iter().map(|&index| &self.edges[index as usize])
    }

    /// The edges of all kinds between two devices.
    pub(super) fn between(&self, a: DeviceId, b: DeviceId) -> impl Iterator<Item = &Edge> + '_ {
        self.edges_of(a).filter(move |edge| edge.other_end(a) == b)
    }
}

/// The PCIe parent of each device on the path from the nearest CPU, or from the first bridge if there is no CPU.
fn pcie_parents(fabric: &Fabric) -> Vec<Option<DeviceId>> {
    let mut parents = vec![None; fabric.devices().len()];
    let mut seen = vec![false; parents.len()];
    let mut queue: VecDeque<DeviceId> = VecDeque::new();
    let cpus = fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_)));
    let bridges = fabric.devices_where(|kind| matches!(kind, DeviceKind::RootPort | DeviceKind::PcieSwitch));
    queue.extend(cpus);
    queue.iter().for_each(|id| seen[id.index()] = true);
    for bridge in [None].into_iter().chain(bridges.map(Some)) {
        queue.extend(bridge.filter(|id| !std::mem::replace(&mut seen[id.index()], true)));
        while let Some(id) = queue.pop_front() {
            let forwards = matches!(
                fabric.device(id).kind,
                DeviceKind::Numa(_) | DeviceKind::RootPort | DeviceKind::PcieSwitch
            );
            for link in fabric.links_from(id).iter().filter(|_| forwards) {
                let pcie = matches!(fabric.spec(link).kind, LinkKind::Pcie { .. });
                if pcie && !std::mem::replace(&mut seen[link.target.index()], true) {
                    parents[link.target.index()] = Some(id);
                    queue.push_back(link.target);
                }
            }
        }
    }
    parents
}

fn edges(fabric: &Fabric, drawn_as: &[Option<DeviceId>]) -> Vec<Edge> {
    let mut bundles: BTreeMap<(DeviceId, DeviceId, SpecId), [u32; 2]> = BTreeMap::new();
    for link in fabric.links() {
        let (Some(a), Some(b)) = (drawn_as[link.source.index()], drawn_as[link.target.index()]) else {
            continue;
        };
        if a != b {
            let ways = bundles.entry((a.min(b), a.max(b), link.spec)).or_default();
            let way = &mut ways[usize::from(a > b)];
            *way = way.saturating_add(link.count);
        }
    }
    let bundle = |((a, b, spec), ways): ((DeviceId, DeviceId, SpecId), [u32; 2])| {
        let count = ways[0].max(ways[1]);
        let spec: &LinkSpec = &fabric.specs()[spec.0 as usize];
        Edge { a, b, count, kind: spec.kind, rate: spec.rate(Measure::Nominal, count) }
    };
    bundles.into_iter().map(bundle).collect()
}
