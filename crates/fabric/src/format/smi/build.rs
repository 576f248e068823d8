//! Builds a fabric from groups: NUMA nodes, root ports, PCIe switches, and NVLinks between GPUs or to a switch.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::groups::Groups;
use super::table::{Cell, Table};
use crate::catalog::gpus::{GpuModel, Vendor};
use crate::catalog::links;
use crate::device::{Cpu, DeviceKind, Gpu, Numa, Port};
use crate::fabric::{Fabric, FabricBuilder};
use crate::format::ReadError;
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, Socket};
use crate::rate::Rate;

/// NVLinks of a GPU, up to Blackwell. In a row with more, the links go to a switch and are counted once per peer.
const GPU_NVLINKS_MAX: u32 = 18;

/// Builds the fabric of a table.
pub(super) fn build(
    table: &Table,
    groups: &Groups,
    name: &str,
    model: Option<&'static GpuModel>,
) -> Result<Fabric, ReadError> {
    let mut fabric = FabricBuilder::new(name);
    let host = fabric.host("host0", None);
    let mut wiring = Wiring { table, groups, model, devices: Vec::new(), fabric, host };
    let numa = wiring.numa_nodes();
    wiring.end_points();
    wiring.pcie(&numa);
    wiring.nvlinks()?;
    wiring.notes();
    Ok(wiring.fabric.finish()?)
}

struct Wiring<'t> {
    table: &'t Table,
    groups: &'t Groups,
    model: Option<&'static GpuModel>,
    fabric: FabricBuilder,
    host: HostId,
    /// The device of each row.
    devices: Vec<DeviceId>,
}

impl Wiring<'_> {
    /// One NUMA node for each group, by the group's first member.
    fn numa_nodes(&mut self) -> FxHashMap<usize, DeviceId> {
        // The matrix does not name the CPUs, so the rate between them is unknown.
        let unknown =
            LinkSpec { kind: LinkKind::Socket(Socket::Other), nominal: None, effective: None, latency: None };
        let between = self.fabric.spec(unknown);
        let mut nodes: FxHashMap<usize, DeviceId> = FxHashMap::default();
        let mut in_order: Vec<DeviceId> = Vec::new();
        let mut ids: FxHashSet<u32> = FxHashSet::default();
        let mut disagree = false;
        for first in firsts(&self.groups.numa) {
            let members =
                || self.table.rows.iter().zip(&self.groups.numa).filter(|(_, group)| **group == first);
            let id = members().filter_map(|(row, _)| row.numa).min();
            let numa = Numa { id: id.map_or(-1, |id| id.min(i32::MAX as u32) as i32), cpu: Cpu::default() };
            let node = self.fabric.add(Some(self.host), DeviceKind::Numa(numa));
            for &other in &in_order {
                self.fabric.connect(other, node, 1, between);
            }
            in_order.push(node);
            nodes.insert(first, node);
            disagree |= members().filter_map(|(row, _)| row.numa).max() != id;
            disagree |= id.is_some_and(|id| !ids.insert(id));
        }
        if disagree {
            self.fabric.note(
                "The cells and the NUMA Affinity column disagree on which devices share a NUMA node; the cells are used.",
            );
        }
        nodes
    }

    /// GPUs and NICs, in the table's order.
    fn end_points(&mut self) {
        for row in &self.table.rows {
            let kind = if row.is_gpu() {
                let sm =
                    self.model.filter(|model| model.vendor == Vendor::Nvidia).map(|model| model.architecture);
                DeviceKind::Gpu(Gpu { model: self.model, sm, ranks: Vec::new() })
            } else {
                let name = row.legend.as_ref().unwrap_or(&row.name);
                DeviceKind::Nic(vec![Port {
                    name: Some(name.as_str().into()),
                    network: None,
                    rate: Rate::ZERO,
                    extra: Vec::new(),
                }])
            };
            let id = self.fabric.add(Some(self.host), kind);
            let number = self.fabric.device(id).ordinal;
            // Keep the table's name where its numbering has gaps.
            if row.is_gpu() && row.name != format!("GPU{number}") {
                self.fabric.device_mut(id).label = Some(row.name.as_str().into());
            }
            self.devices.push(id);
        }
    }

    /// Puts each tree of switches, and each device without a switch, on its own root port.
    fn pcie(&mut self, numa: &FxHashMap<usize, DeviceId>) {
        let trees = members(&self.groups.tree);
        for tree in trees {
            let node = numa[&self.groups.numa[tree[0]]];
            let mut switches: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for &member in &tree {
                switches.entry(self.groups.switch[member]).or_default().push(member);
            }
            let switches: Vec<Vec<usize>> = switches.into_values().collect();
            let port = self.below(node, DeviceKind::RootPort, self.uplink(&tree));
            match switches.as_slice() {
                [one] if one.len() == 1 => self.plug(port, one[0]),
                [one] => self.switch(port, one),
                several => {
                    let top = self.below(port, DeviceKind::PcieSwitch, links::PCIE_UNKNOWN.clone());
                    for members in several {
                        self.switch(top, members);
                    }
                }
            }
        }
    }

    /// The link of a tree's root port: the GPU's slot, if the tree is a single GPU.
    fn uplink(&self, tree: &[usize]) -> LinkSpec {
        match tree {
            [one] => self.slot(*one),
            _ => links::PCIE_UNKNOWN.clone(),
        }
    }

    fn switch(&mut self, parent: DeviceId, members: &[usize]) {
        let switch = self.below(parent, DeviceKind::PcieSwitch, links::PCIE_UNKNOWN.clone());
        for member in members {
            self.plug(switch, *member);
        }
    }

    fn below(&mut self, parent: DeviceId, kind: DeviceKind, link: LinkSpec) -> DeviceId {
        let spec = self.fabric.spec(link);
        let device = self.fabric.add(Some(self.host), kind);
        self.fabric.connect(parent, device, 1, spec);
        device
    }

    fn plug(&mut self, parent: DeviceId, row: usize) {
        let spec = self.fabric.spec(self.slot(row));
        self.fabric.connect(parent, self.devices[row], 1, spec);
    }

    /// The slot of a row's device, known only for a GPU of a known model.
    fn slot(&self, row: usize) -> LinkSpec {
        match self.model.filter(|_| self.table.rows[row].is_gpu()) {
            Some(model) => links::pcie(model.pcie.0, model.pcie.1),
            None => links::PCIE_UNKNOWN.clone(),
        }
    }

    fn nvlinks(&mut self) -> Result<(), ReadError> {
        let count = |i: usize, j: usize| match self.table.rows[i].cells[j] {
            Cell::NvLinks(count) => Some(count),
            _ => None,
        };
        let rows = self.table.rows.len();
        let peers = |i: usize| (0..rows).filter_map(move |j| count(i, j));
        let Some(first) = (0..rows).find(|i| peers(*i).next().is_some()) else {
            return Ok(());
        };
        let (link, links_max) = match self.model {
            None => (&links::NVLINK_UNKNOWN, GPU_NVLINKS_MAX),
            Some(model) => model.gpu_links().ok_or_else(|| {
                let row = &self.table.rows[first];
                ReadError::at(
                    row.line,
                    format!("{} has NVLinks, but the {model} has none; check the GPU model", row.name),
                )
            })?,
        };
        let spec = self.fabric.spec(link.clone());
        let mut shared = 0;
        for island in islands(rows, |i, j| count(i, j).is_some()) {
            if !island.iter().any(|i| peers(*i).fold(0, u32::saturating_add) > links_max) {
                for (&i, &j) in island.iter().flat_map(|i| island.iter().map(move |j| (i, j))) {
                    if let Some(count) = count(i, j) {
                        self.fabric.link(self.devices[i], self.devices[j], count, spec);
                    }
                }
                continue;
            }
            shared += 1;
            let generation = match link.kind {
                LinkKind::NvLink { generation } => generation.filter(|g| *g >= 2).map(|g| g - 1),
                _ => None,
            };
            let switch = self.fabric.add(Some(self.host), DeviceKind::NvSwitch { generation });
            for i in island {
                let widest = peers(i).max().unwrap_or(0);
                self.fabric.connect(self.devices[i], switch, widest, spec);
            }
        }
        if shared > 0 {
            self.fabric.note(
                "The matrix lists more NVLinks than a GPU has, so they lead to NVSwitches; it does not say how many, \
                 and they are shown as one.",
            );
        }
        self.fabric.note(
            "The matrix does not show PCIe between GPUs connected by NVLink; unless other cells show it, each of them is \
             placed on its own root port.",
        );
        Ok(())
    }

    fn notes(&mut self) {
        self.fabric.note(match self.model {
            None => {
                "The matrix contains neither the GPU model nor any rate; name the GPU model to get the rates of its \
                 links."
            }
            Some(_) => "The matrix contains no rates: those of the GPUs' links are from the GPU model, others are unknown.",
        });
    }
}

/// The first member of each group, in order.
fn firsts(groups: &[usize]) -> impl Iterator<Item = usize> + '_ {
    groups.iter().enumerate().filter(|(at, first)| at == *first).map(|(at, _)| at)
}

/// The members of each group, groups and members in order.
fn members(groups: &[usize]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
    for (at, first) in groups.iter().enumerate() {
        found[*first].push(at);
    }
    found.retain(|group| !group.is_empty());
    found
}

/// Groups of rows that a relation connects, directly or through others; rows without a relation are left out.
fn islands(rows: usize, joined: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut seen = vec![false; rows];
    let mut islands = Vec::new();
    for start in 0..rows {
        let mut island = Vec::new();
        let mut open = vec![start];
        while let Some(i) = open.pop() {
            if std::mem::replace(&mut seen[i], true) {
                continue;
            }
            island.push(i);
            open.extend((0..rows).filter(|j| !seen[*j] && joined(i, *j)));
        }
        if island.len() > 1 {
            island.sort_unstable();
            islands.push(island);
        }
    }
    islands
}
