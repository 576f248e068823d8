//! The parts of systems: hosts with sockets, root ports, PCIe switches, GPUs, NICs and drives.

use rustc_hash::FxHashMap;

use crate::catalog::gpus::{self, GpuModel};
use crate::catalog::links;
use crate::catalog::systems::System;
use crate::device::{Cpu, DeviceKind, Gpu, Numa, Port};
use crate::fabric::{Fabric, FabricBuilder};
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, Socket};
use crate::rate::{Link, OneWay, Rate};

/// The CPUs of a host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpus {
    pub(super) socket: Socket,
    pub(super) arch: &'static str,
    pub(super) vendor: &'static str,
    pub(super) family: u32,
    pub(super) model: u32,
    /// PCIe generation of its root ports.
    pub(super) pcie: u8,
}

/// Intel Broadwell.
pub(super) const BROADWELL: Cpus = intel(Socket::IntelBroadwell, 0x4f, 3);
/// Intel Skylake and Cascade Lake.
pub(super) const SKYLAKE: Cpus = intel(Socket::IntelSkylake, 0x55, 3);
/// Intel Sapphire Rapids.
pub(super) const SAPPHIRE_RAPIDS: Cpus = intel(Socket::IntelSapphireRapids, 0x8f, 5);
/// Intel Emerald Rapids.
pub(super) const EMERALD_RAPIDS: Cpus = intel(Socket::IntelEmeraldRapids, 0xcf, 5);
/// Intel Granite Rapids.
pub(super) const GRANITE_RAPIDS: Cpus = intel(Socket::IntelEmeraldRapids, 0xad, 5);
/// AMD Rome (Zen 2).
pub(super) const ROME: Cpus = amd(Socket::AmdZen2, 23, 49, 4);
/// AMD Milan (Zen 3).
pub(super) const MILAN: Cpus = amd(Socket::AmdZen4, 25, 1, 4);
/// AMD Genoa (Zen 4).
pub(super) const GENOA: Cpus = amd(Socket::AmdZen4, 25, 17, 5);
/// AMD Trento, the Milan of Frontier.
pub(super) const TRENTO: Cpus = amd(Socket::AmdZen4, 25, 48, 4);
/// AMD Turin (Zen 5).
pub(super) const TURIN: Cpus = amd(Socket::AmdZen5, 26, 2, 5);
/// NVIDIA Grace.
pub(super) const GRACE: Cpus =
    Cpus { socket: Socket::Grace, arch: "arm64", vendor: "NVIDIA", family: 0, model: 0, pcie: 5 };
/// NVIDIA Vera. Its NUMA nodes are connected as those of Grace, as far as NCCL's constants say.
pub(super) const VERA: Cpus = Cpus { pcie: 6, ..GRACE };
/// The CPU of the GB10, which has one NUMA node.
pub(super) const GB10: Cpus = Cpus { vendor: "ARM", socket: Socket::Other, ..GRACE };

const fn intel(socket: Socket, model: u32, pcie: u8) -> Cpus {
    Cpus { socket, arch: "x86_64", vendor: "GenuineIntel", family: 6, model, pcie }
}

const fn amd(socket: Socket, family: u32, model: u32, pcie: u8) -> Cpus {
    Cpus { socket, arch: "x86_64", vendor: "AuthenticAMD", family, model, pcie }
}

/// A fabric under construction, with methods that add the parts of a system.
pub(super) struct Chassis {
    builder: FabricBuilder,
    system: &'static System,
    /// The devices that others attach to: NUMA nodes and PCIe switches.
    parents: FxHashMap<DeviceId, Upstream>,
}

/// The upstream side of an attached device.
#[derive(Debug, Clone, Copy)]
struct Upstream {
    numa: DeviceId,
    /// PCIe generation of the ports.
    generation: u8,
}

impl Chassis {
    pub(super) fn new(system: &'static System) -> Self {
        Self { builder: FabricBuilder::new(system.name), system, parents: FxHashMap::default() }
    }

    /// A host with NUMA nodes and one inter-socket link between each two. Nodes of the same socket get one too: NCCL
    /// does not distinguish them.
    pub(super) fn host(&mut self, cpus: Cpus, numa_nodes: u32) -> (HostId, Vec<DeviceId>) {
        let name = format!("host{}", self.builder.host_count());
        let host = self.builder.host(name, Some(self.system.name));
        let spec = self.builder.spec(links::socket(cpus.socket));
        let mut nodes: Vec<DeviceId> = Vec::new();
        for id in 0..numa_nodes {
            let cpu = Cpu {
                arch: Some(cpus.arch.into()),
                vendor: Some(cpus.vendor.into()),
                family: Some(cpus.family),
                model: Some(cpus.model),
            };
            let node = self.builder.add(Some(host), DeviceKind::Numa(Numa { id: id as i32, cpu }));
            for &other in &nodes {
                self.builder.connect(other, node, 1, spec);
            }
            let generation = cpus.pcie;
            self.parents.insert(node, Upstream { numa: node, generation });
            nodes.push(node);
        }
        (host, nodes)
    }

    /// A PCIe switch of a generation below a parent, over 16 lanes.
    pub(super) fn pcie_switch(&mut self, parent: DeviceId, generation: u8) -> DeviceId {
        self.pcie_switch_over(parent, generation, (generation, 16))
    }

    /// A PCIe switch of a generation below a parent, over an uplink of a generation and width.
    pub(super) fn pcie_switch_over(
        &mut self,
        parent: DeviceId,
        generation: u8,
        uplink: (u8, u8),
    ) -> DeviceId {
        let switch = self.slot(parent, DeviceKind::PcieSwitch, uplink.0, uplink.1);
        let numa = self.parents[&parent].numa;
        self.parents.insert(switch, Upstream { numa, generation });
        switch
    }

    /// A GPU below a PCIe switch, or on its own root port where the parent is a NUMA node. Its C2C links, if any, lead
    /// to its NUMA node.
    pub(super) fn gpu(&mut self, parent: DeviceId, id: &str) -> DeviceId {
        self.gpu_in_slot(parent, id, model(id).pcie)
    }

    /// The same in a slot of another generation and width than the GPU's own.
    pub(super) fn gpu_in_slot(&mut self, parent: DeviceId, id: &str, pcie: (u8, u8)) -> DeviceId {
        let model = model(id);
        let sm = (model.vendor == gpus::Vendor::Nvidia).then_some(model.architecture);
        let kind = DeviceKind::Gpu(Gpu { model: Some(model), sm, ranks: Vec::new() });
        let gpu = self.slot(parent, kind, pcie.0, pcie.1);
        if let Some((link, count)) = model.c2c {
            let numa = self.parents[&parent].numa;
            self.wire(numa, gpu, count, link);
        }
        gpu
    }

    /// A NIC with one port of a network kind.
    pub(super) fn nic(&mut self, parent: DeviceId, network: LinkKind, generation: u8, width: u8) -> DeviceId {
        self.slot(parent, DeviceKind::Nic(vec![port_of(network)]), generation, width)
    }

    /// An NVMe drive.
    pub(super) fn nvme(&mut self, parent: DeviceId, generation: u8) -> DeviceId {
        self.slot(parent, DeviceKind::Storage, generation, 4)
    }

    /// Adds `count` links of a kind between two devices.
    pub(super) fn wire(&mut self, a: DeviceId, b: DeviceId, count: u32, link: &LinkSpec) {
        let spec = self.builder.spec(link.clone());
        self.builder.connect(a, b, count, spec);
    }

    /// `(a, b, count)`: `count` of the GPUs' own links between GPUs `a` and `b`.
    pub(super) fn wire_pairs(&mut self, gpus: &[DeviceId], pairs: &[(usize, usize, u32)]) {
        for &(a, b, count) in pairs {
            let (link, _) = self.gpu_links(gpus[a]);
            self.wire(gpus[a], gpus[b], count, link);
        }
    }

    /// All links of a card to its neighbour, over every bridge connector it has.
    pub(super) fn bridge(&mut self, a: DeviceId, b: DeviceId) {
        let (link, count) = self.gpu_links(a);
        self.wire(a, b, count, link);
    }

    /// An NVSwitch without links.
    pub(super) fn nvswitch(&mut self, host: Option<HostId>, generation: Option<u8>) -> DeviceId {
        self.builder.add(host, DeviceKind::NvSwitch { generation })
    }

    /// NVSwitches with links to every GPU: `pattern[s]` of a GPU's links go to switch `s`. The first NVSwitch came with
    /// NVLink 2, so its generation is the link's minus one.
    pub(super) fn nvswitches(
        &mut self,
        host: Option<HostId>,
        gpus: &[DeviceId],
        pattern: &[u32],
    ) -> Vec<DeviceId> {
        let (link, _) = self.gpu_links(gpus[0]);
        let generation = match link.kind {
            LinkKind::NvLink { generation } => generation.map(|nvlink| nvlink - 1),
            _ => None,
        };
        let mut switches = Vec::new();
        for &count in pattern {
            let switch = self.nvswitch(host, generation);
            for &gpu in gpus {
                self.wire(gpu, switch, count, link);
            }
            switches.push(switch);
        }
        switches
    }

    /// The links of a GPU toward other GPUs.
    pub(super) fn gpu_links(&self, gpu: DeviceId) -> (&'static LinkSpec, u32) {
        let model = self.builder.device(gpu).kind.gpu_model();
        model.and_then(GpuModel::gpu_links).expect("only GPUs with links are wired")
    }

    pub(super) fn finish(self) -> Fabric {
        self.builder.finish().expect("a catalog system is well formed")
    }

    /// Adds a device below a parent, through a root port where the parent is a NUMA node. The link runs at the speed
    /// that both ends support.
    fn slot(&mut self, parent: DeviceId, kind: DeviceKind, generation: u8, width: u8) -> DeviceId {
        let generation = generation.min(self.parents[&parent].generation);
        slot(&mut self.builder, parent, kind, links::pcie(generation, width))
    }
}

/// Adds a device below a parent; below a NUMA node it gets its own root port.
pub(crate) fn slot(
    builder: &mut FabricBuilder,
    parent: DeviceId,
    kind: DeviceKind,
    link: LinkSpec,
) -> DeviceId {
    let host = builder.device(parent).host;
    let spec = builder.spec(link);
    let above = match builder.device(parent).kind {
        DeviceKind::Numa(_) => {
            let port = builder.add(host, DeviceKind::RootPort);
            builder.connect(parent, port, 1, spec);
            port
        }
        _ => parent,
    };
    let device = builder.add(host, kind);
    builder.connect(above, device, 1, spec);
    device
}

/// A NIC port of a network kind; its line rate is the kind's.
pub(crate) fn port_of(kind: LinkKind) -> Port {
    let (network, rate) = match kind {
        LinkKind::Network { network, gbit } => (Some(network), Rate::from_gbit(gbit.into())),
        _ => (None, Rate::<Link, OneWay>::ZERO),
    };
    Port { name: None, network, rate, extra: Vec::new() }
}

fn model(id: &str) -> &'static GpuModel {
    gpus::by_id(id).unwrap_or_else(|| panic!("the catalog has no GPU `{id}`"))
}
