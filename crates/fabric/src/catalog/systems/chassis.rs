//! What systems are put together from: a host with sockets, root ports, PCIe switches, GPUs, NICs and drives.

use crate::catalog::gpus::{self, GpuModel};
use crate::catalog::links;
use crate::catalog::systems::System;
use crate::device::{Cpu, DeviceId, DeviceKind, Gpu, HostId, Numa, Port};
use crate::fabric::{Fabric, FabricBuilder};
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
}

/// Intel Broadwell.
pub(super) const BROADWELL: Cpus = intel(Socket::IntelBroadwell, 0x4f);
/// Intel Skylake and Cascade Lake.
pub(super) const SKYLAKE: Cpus = intel(Socket::IntelSkylake, 0x55);
/// Intel Sapphire Rapids.
pub(super) const SAPPHIRE_RAPIDS: Cpus = intel(Socket::IntelSapphireRapids, 0x8f);
/// Intel Emerald Rapids.
pub(super) const EMERALD_RAPIDS: Cpus = intel(Socket::IntelEmeraldRapids, 0xcf);
/// Intel Granite Rapids.
pub(super) const GRANITE_RAPIDS: Cpus = intel(Socket::IntelEmeraldRapids, 0xad);
/// AMD Rome (Zen 2).
pub(super) const ROME: Cpus = amd(Socket::AmdZen2, 23, 49);
/// AMD Genoa (Zen 4).
pub(super) const GENOA: Cpus = amd(Socket::AmdZen4, 25, 17);
/// AMD Turin (Zen 5).
pub(super) const TURIN: Cpus = amd(Socket::AmdZen5, 26, 2);
/// NVIDIA Grace.
pub(super) const GRACE: Cpus = Cpus {
    socket: Socket::Grace,
    arch: "arm64",
    vendor: "NVIDIA",
    family: 0,
    model: 0,
};

const fn intel(socket: Socket, model: u32) -> Cpus {
    Cpus {
        socket,
        arch: "x86_64",
        vendor: "GenuineIntel",
        family: 6,
        model,
    }
}

const fn amd(socket: Socket, family: u32, model: u32) -> Cpus {
    Cpus {
        socket,
        arch: "x86_64",
        vendor: "AuthenticAMD",
        family,
        model,
    }
}

/// A fabric under construction, with the words that systems are described in.
pub(super) struct Chassis {
    pub(super) builder: FabricBuilder,
    system: &'static System,
}

impl Chassis {
    pub(super) fn new(system: &'static System) -> Self {
        Self {
            builder: FabricBuilder::new(system.name),
            system,
        }
    }

    /// A host with NUMA nodes, each joined to every other by one inter-socket link.
    pub(super) fn host(&mut self, cpus: Cpus, numa_nodes: u32) -> (HostId, Vec<DeviceId>) {
        let name = format!("host{}", self.host_count());
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
            let node = self
                .builder
                .add(Some(host), DeviceKind::Numa(Numa { id: id as i32, cpu }));
            for &other in &nodes {
                self.builder.connect(other, node, 1, spec);
            }
            nodes.push(node);
        }
        (host, nodes)
    }

    /// A PCIe switch on a root port of its own.
    pub(super) fn pcie_switch(&mut self, numa: DeviceId, generation: u8, width: u8) -> DeviceId {
        self.slot(numa, DeviceKind::PcieSwitch, generation, width)
    }

    /// A GPU in its slot: below a PCIe switch, or on a root port of its own where the parent is a NUMA node. A GPU
    /// with C2C links gets them to `numa` as well.
    pub(super) fn gpu(&mut self, parent: DeviceId, id: &str) -> DeviceId {
        let model = model(id);
        let sm = (model.vendor == gpus::Vendor::Nvidia).then_some(model.architecture);
        let kind = DeviceKind::Gpu(Gpu {
            model: Some(model),
            sm,
            ranks: Vec::new(),
        });
        let gpu = self.slot(parent, kind, model.pcie.0, model.pcie.1);
        if model.c2c_links > 0 {
            let c2c = self.builder.spec(links::C2C.clone());
            self.builder.connect(parent, gpu, model.c2c_links, c2c);
        }
        gpu
    }

    /// A NIC with `ports` ports of a network kind.
    pub(super) fn nic(
        &mut self,
        parent: DeviceId,
        kind: LinkKind,
        ports: usize,
        generation: u8,
        width: u8,
    ) -> DeviceId {
        let port = port_of(kind);
        self.slot(parent, DeviceKind::Nic(vec![port; ports]), generation, width)
    }

    /// An NVMe drive.
    pub(super) fn nvme(&mut self, parent: DeviceId, generation: u8) -> DeviceId {
        self.slot(parent, DeviceKind::Storage, generation, 4)
    }

    /// `count` links of the GPU fabric between two devices.
    pub(super) fn wire(&mut self, a: DeviceId, b: DeviceId, count: u32, link: &LinkSpec) {
        let spec = self.builder.spec(link.clone());
        self.builder.connect(a, b, count, spec);
    }

    /// NVSwitches, each joined to every GPU: `pattern[s]` links from a GPU to switch `s`.
    pub(super) fn nvswitches(
        &mut self,
        host: Option<HostId>,
        generation: u8,
        gpus: &[DeviceId],
        pattern: &[u32],
        link: &LinkSpec,
    ) -> Vec<DeviceId> {
        let mut switches = Vec::new();
        for &count in pattern {
            let switch = self.builder.add(
                host,
                DeviceKind::NvSwitch {
                    generation: Some(generation),
                },
            );
            for &gpu in gpus {
                self.wire(gpu, switch, count, link);
            }
            switches.push(switch);
        }
        switches
    }

    /// Puts a device below a parent, through a root port where the parent is a NUMA node.
    fn slot(&mut self, parent: DeviceId, kind: DeviceKind, generation: u8, width: u8) -> DeviceId {
        slot(&mut self.builder, parent, kind, links::pcie(generation, width))
    }

    fn host_count(&self) -> usize {
        self.builder.host_count()
    }

    pub(super) fn finish(self) -> Fabric {
        self.builder.finish().expect("a catalog system is well formed")
    }
}

/// Puts a device below a parent; below a NUMA node it gets a root port of its own.
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
    Port {
        name: None,
        network,
        rate,
        extra: Vec::new(),
    }
}

fn model(id: &str) -> &'static GpuModel {
    gpus::by_id(id).unwrap_or_else(|| panic!("the catalog has no GPU `{id}`"))
}
