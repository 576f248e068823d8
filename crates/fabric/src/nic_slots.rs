//! The places of a host for NICs: NIC `i` of `n` goes next to GPU `i * gpus / n`, so that they spread evenly.

use crate::catalog::links;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::{Link, LinkKind, LinkSpec};
use crate::spec::slot_for;

/// Where the NICs of one host go.
#[derive(Debug, Clone)]
pub(crate) struct NicSlots {
    /// The PCIe switch or NUMA node of each GPU, where it has one.
    beside_gpus: Vec<Option<DeviceId>>,
    first_numa: Option<DeviceId>,
    /// The newest PCIe generation of the host, which limits its cards.
    generation: u8,
}

impl NicSlots {
    pub(crate) fn of(fabric: &Fabric, host: HostId) -> Self {
        let of_host = |id: &DeviceId| fabric.device(*id).host == Some(host);
        let gpus = fabric.gpus().iter().copied().filter(of_host);
        let generation = |link: &Link| match fabric.spec(link).kind {
            LinkKind::Pcie { generation, .. } if of_host(&link.source) => Some(generation),
            _ => None,
        };
        let newest = fabric.links().iter().filter_map(generation).max();
        Self {
            beside_gpus: gpus.map(|gpu| slot_beside(fabric, gpu)).collect(),
            first_numa: fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).find(of_host),
            // The generation is zero where a file does not say it.
            generation: newest.filter(|newest| *newest > 0).unwrap_or(6),
        }
    }

    /// The device to attach NIC `nic` of `count` to.
    pub(crate) fn place(&self, nic: usize, count: usize) -> Option<DeviceId> {
        let gpu = self.beside_gpus.get(nic * self.beside_gpus.len() / count.max(1));
        gpu.copied().flatten().or(self.first_numa)
    }

    /// The link of a slot that is fast enough for a port of `gbit` Gb/s, where the host has such slots.
    pub(crate) fn link(&self, gbit: u32) -> LinkSpec {
        let (generation, width) = slot_for(gbit).unwrap_or((6, 16));
        links::pcie(generation.min(self.generation), width)
    }
}

/// The device to attach a NIC next to a GPU to: the GPU's PCIe switch, or else its NUMA node.
fn slot_beside(fabric: &Fabric, gpu: DeviceId) -> Option<DeviceId> {
    let is_up = |spec: &LinkSpec| matches!(spec.kind, LinkKind::Pcie { .. } | LinkKind::C2c);
    let mut at = gpu;
    // A GPU is at most a root port away from its NUMA node or switch.
    for _ in 0..2 {
        let mut above =
            fabric.links_from(at).iter().filter(|link| is_up(fabric.spec(link))).map(|link| link.target);
        let reachable =
            |kind: fn(&DeviceKind) -> bool| above.clone().find(|id| kind(&fabric.device(*id).kind));
        let switch = reachable(|kind| matches!(kind, DeviceKind::PcieSwitch));
        let numa = reachable(|kind| matches!(kind, DeviceKind::Numa(_)));
        if let Some(place) = switch.or(numa) {
            return Some(place);
        }
        at = above.find(|id| matches!(fabric.device(*id).kind, DeviceKind::RootPort))?;
    }
    None
}
