//! The fabric of a row of measurements, whose columns are a setup: hosts, GPUs, their links, slots, NICs and the network.
//!
//! Columns have less detail than a fabric. The rest follows common practice: one NUMA node per host, a PCIe switch for each GPU with its
//! nearest NICs below the same switch, and one non-blocking network switch. From there, a row is predicted as any fabric is.

use weftlink_fabric::catalog::systems::V100_PAIRS;
use weftlink_fabric::catalog::{gpus, links};
use weftlink_fabric::device::{Gpu as GpuDevice, Numa, Port, Tier};

use weftlink_fabric::link::{Network as NetworkKind, SpecId};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{
    DeviceId, DeviceKind, Fabric, FabricBuilder, FabricError, HostId, LinkKind, LinkSpec, PeerAccess,
};

use crate::gpu::{Generation, Gpu};
use crate::setup::{Intra, Network, Setup};

impl Setup {
    /// The fabric of the setup; its GPUs are the ranks, in order.
    pub fn fabric(&self) -> Result<Fabric, FabricError> {
        let mut wiring = Wiring { builder: FabricBuilder::new(self.name()), setup: self, gpus: Vec::new() };
        let leaf = (self.network != Network::None)
            .then(|| wiring.builder.add(None, DeviceKind::NetSwitch(Tier::Leaf)));
        for node in 0..self.nodes {
            wiring.node(node, leaf);
        }
        wiring.join();
        let has_access = match self.intra {
            Intra::PciePeers => Some(true),
            Intra::PcieHost => Some(false),
            _ => None,
        };
        // What the usual driver does needs no mention.
        let unusual = has_access.filter(|has| *has != self.gpu.model().has_peer_access());
        wiring.builder.peer_access(PeerAccess::from_setting(unusual));
        wiring.builder.finish()
    }

    /// Its name: `2 nodes of 8 x h100 (nvswitch), 8 x ib 400 Gb/s`.
    pub fn name(&self) -> String {
        let up_to = if self.missing_gpus > 0 { "up to " } else { "" };
        let node = format!("{up_to}{} x {} ({})", self.gpus_per_node, self.gpu.id(), self.intra.name());
        let mut name = if self.nodes == 1 { node } else { format!("{} nodes of {node}", self.nodes) };
        let is_less = |share: f64| share < 0.995;
        if is_less(self.slot_share) {
            let lanes = (16.0 * self.slot_share).max(0.1);
            name += &format!(", slots down to PCIe {}.0 x{lanes:.0}", self.pcie_generation);
        }
        if is_less(self.links_share) {
            name += &format!(", links down to {:.0}%", self.links_share * 1e2);
        }
        if self.network != Network::None {
            let gbit = (self.nic_gbits_per_second * 10.0).round() / 10.0;
            name += &format!(", {} x {} {gbit} Gb/s", self.nics_per_node, self.network.name());
        }
        name
    }

    /// The link of a NIC.
    pub(crate) fn nic_kind(&self) -> LinkKind {
        LinkKind::Network { network: self.network_kind(), gbit: self.nic_gbits_per_second.round() as u32 }
    }

    /// The network of its NICs.
    pub(crate) fn network_kind(&self) -> NetworkKind {
        match self.network {
            Network::InfiniBand => NetworkKind::InfiniBand,
            Network::Roce => NetworkKind::Roce,
            Network::Efa if self.gpu.generation() >= Generation::Blackwell => NetworkKind::EfaV4,
            Network::Efa if self.gpu.generation() >= Generation::Hopper => NetworkKind::EfaV2,
            Network::Efa => NetworkKind::EfaV1,
            Network::Slingshot => NetworkKind::Slingshot,
            Network::Tcpx => NetworkKind::TcpX,
            Network::Tcpxo => NetworkKind::TcpXo,
            Network::Tcp | Network::None => NetworkKind::Ethernet,
        }
    }
}

struct Wiring<'s> {
    builder: FabricBuilder,
    setup: &'s Setup,
    gpus: Vec<DeviceId>,
}

impl Wiring<'_> {
    fn node(&mut self, number: u32, leaf: Option<DeviceId>) {
        let setup = self.setup;
        let host = self.builder.host(format!("host{number}"), None);
        let numa = self.builder.add(Some(host), DeviceKind::Numa(Numa::default()));
        let slot = self.builder.spec(links::pcie(setup.pcie_generation.clamp(1, 6) as u8, 16));
        // GPUs that share a NIC are below one switch with it. NICs that share a GPU are one NIC with several cables: libraries use them
        // as one.
        let below_switch = match (setup.intra, setup.nics_per_node) {
            (Intra::PciePeers | Intra::PcieHost, _) | (_, 0) => setup.gpus_per_node,
            (_, nics) => nics.min(setup.gpus_per_node),
        } as usize;
        let switches: Vec<DeviceId> =
            (0..below_switch).map(|_| self.below(numa, host, DeviceKind::PcieSwitch, slot)).collect();
        for number in 0..setup.gpus_per_node as usize {
            let switch = switches[number * switches.len() / setup.gpus_per_node as usize];
            let model = Some(setup.gpu.model());
            let sm =
                model.filter(|model| model.vendor == gpus::Vendor::Nvidia).map(|model| model.architecture);
            let gpu = DeviceKind::Gpu(GpuDevice { model, sm, ranks: Vec::new() });
            let gpu = self.below(switch, host, gpu, slot);
            self.gpus.push(gpu);
        }
        let Some(leaf) = leaf else { return };
        let (network, gbit) = (setup.network_kind(), setup.nic_gbits_per_second.round() as u32);
        let cable = self.builder.spec(links::network(network, gbit));
        // The slot is as fast as the NIC, so that the line rate or the cost model limits it.
        let nic_slot = self.builder.spec(links::pcie(if gbit > 200 { 6 } else { 5 }, 16));
        let joined = setup.nics_per_node.min(setup.gpus_per_node).max(1);
        for nic in 0..joined {
            let rate = Rate::from_gbit(gbit.into());
            let port = Port { name: None, network: Some(network), rate, extra: Vec::new() };
            let at = nic as usize * switches.len() / joined as usize;
            let nics = (nic + 1) * setup.nics_per_node / joined - nic * setup.nics_per_node / joined;
            let nic = self.below(switches[at], host, DeviceKind::Nic(vec![port]), nic_slot);
            self.builder.connect(nic, leaf, nics, cable);
        }
    }

    fn below(&mut self, parent: DeviceId, host: HostId, kind: DeviceKind, slot: SpecId) -> DeviceId {
        let device = self.builder.add(Some(host), kind);
        self.builder.connect(parent, device, 1, slot);
        device
    }

    /// Adds the links between GPUs.
    fn join(&mut self) {
        let per_node = self.setup.gpus_per_node as usize;
        let all = self.gpus.clone();
        let (link, count) = gpu_links(self.setup.gpu);
        let spec = self.builder.spec(link);
        let domain = if self.setup.intra == Intra::Nvl72 { self.setup.rack_gpus as usize } else { per_node };
        for (number, gpus) in all.chunks(domain).enumerate() {
            match self.setup.intra {
                Intra::NvSwitch | Intra::Nvl72 => {
                    let host = (self.setup.intra == Intra::NvSwitch).then_some(HostId(number as u32));
                    let switch = self.builder.add(host, DeviceKind::NvSwitch { generation: None });
                    gpus.iter().for_each(|gpu| self.builder.connect(*gpu, switch, count, spec));
                }
                Intra::NvLinkMesh | Intra::Xgmi => {
                    // xGMI has a link for each of seven peers, present or not; NVLinks are divided among the peers present.
                    let others =
                        if self.setup.intra == Intra::Xgmi { 7 } else { gpus.len().max(2) as u32 - 1 };
                    for (at, a) in gpus.iter().enumerate() {
                        for b in &gpus[at + 1..] {
                            self.builder.connect(*a, *b, (count / others).max(1), spec);
                        }
                    }
                }
                Intra::CubeMesh => {
                    for (a, b, links) in V100_PAIRS.into_iter().filter(|(_, b, _)| *b < gpus.len()) {
                        self.builder.connect(gpus[a], gpus[b], links, spec);
                    }
                }
                Intra::NvLinkBridge => {
                    for pair in gpus.chunks_exact(2) {
                        self.builder.connect(pair[0], pair[1], count, spec);
                    }
                }
                Intra::PciePeers | Intra::PcieHost | Intra::None => {}
            }
        }
    }
}

/// A GPU's links to other GPUs, and their number.
pub(crate) fn gpu_links(gpu: Gpu) -> (LinkSpec, u32) {
    let known = gpu.model().gpu_links();
    let unknown = || (links::spec_of(LinkKind::NvLink { generation: None }), 1);
    known.map_or_else(unknown, |(link, count)| (link.clone(), count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gpu;
    use weftlink_fabric::{PathType, Paths};

    #[test]
    fn every_wiring_connects_its_gpus() {
        for intra in Intra::ALL {
            let gpu = if *intra == Intra::Xgmi { gpu("mi300x") } else { gpu("h100") };
            let setup = Setup {
                gpus_per_node: if *intra == Intra::None { 1 } else { 8 },
                nodes: 3,
                network: Network::InfiniBand,
                nics_per_node: if *intra == Intra::None { 1 } else { 4 },
                nic_gbits_per_second: 400.0,
                ..Setup::pair(gpu, *intra)
            };
            let fabric = setup.fabric().unwrap();
            let paths = Paths::of(&fabric);
            let gpus = fabric.gpus();
            assert_eq!(gpus.len() as u32, setup.ranks());
            for to in &gpus[1..] {
                assert_ne!(paths.path(gpus[0], *to).kind, PathType::Dis, "{}", setup.name());
            }
        }
    }
}
