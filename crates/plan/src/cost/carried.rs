//! The rates that collectives get of a fabric's links: fractions of line rates, from the [constants](super::constants).
//!
//! A link's own line rate counts, so slower slots and cables, and links that were measured to be slower than usual, carry less.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::domains::gpu_domains;
use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Link, LinkKind};

use super::constants::{Constants, Name};
use super::lines;

/// Millionths of one.
pub(super) const ONE: u64 = 1_000_000;

/// A GPU host in units of the measured 16-core host: two sockets of 32 cores with their memory channels.
const HOSTS_OF_16_CORES: f64 = 4.0;

/// A constant that is a ratio, in millionths.
pub fn millionths(ratio: f64) -> u64 {
    (ratio * ONE as f64).round() as u64
}

/// A part of a rate.
pub(super) fn part_of(rate: u64, millionths: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(millionths) / u128::from(ONE)).unwrap_or(u64::MAX)
}

/// The fractions of line rates that collectives get on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// NVLink to Volta, of Ampere, of Hopper, and later.
    nvlink: [u64; 4],
    xgmi: u64,
    /// PCIe, up to generation 3 and later, with data in both directions and in one.
    pcie: [[u64; 2]; 2],
    /// The most that a GPU gets of its host's memory, if its data goes through it: both directions, and one.
    memory: [u64; 2],
    /// InfiniBand, RoCE, EFA and TCPXO; Slingshot; TCPX: to NICs, and between switches.
    rdma: [u64; 2],
    slingshot: [u64; 2],
    tcpx: [u64; 2],
    /// The most that a host passes through the sockets of a NIC.
    tcp_bytes_per_second: u64,
}

/// What decides which fractions of line rates collectives get on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether direct links connect every GPU of a domain to every other.
    pub is_mesh: bool,
    /// Whether GPUs of a host communicate over PCIe.
    pub is_over_pcie: bool,
    /// Whether their data then goes through the host's memory, because they cannot access each other's.
    pub is_through_host: bool,
    /// Whether the GPUs are GeForce cards.
    pub is_consumer: bool,
    /// The most GPUs of a host.
    pub gpus_per_host: u32,
    /// The most NICs of a host.
    pub nics_per_host: u32,
    /// Whether the network is RoCE.
    pub is_roce: bool,
}

impl Surroundings {
    fn of(fabric: &Fabric) -> Self {
        let gpus = fabric.gpus();
        let nics = fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_)));
        let domains = gpu_domains(fabric);
        let is_roce =
            |link: &Link| matches!(fabric.spec(link).kind, LinkKind::Network { network: Network::Roce, .. });
        let first = gpus.first().and_then(|gpu| fabric.device(*gpu).kind.gpu_model());
        Self {
            is_mesh: is_mesh(fabric, &domains),
            is_over_pcie: communicates_over_pcie(fabric, &domains),
            is_through_host: fabric.lacks_peer_access(),
            is_consumer: first.is_some_and(GpuModel::is_consumer),
            gpus_per_host: largest(fabric, gpus.iter().copied()),
            nics_per_host: largest(fabric, nics),
            is_roce: fabric.links().iter().any(is_roce),
        }
    }
}

impl Carried {
    /// The fractions on a fabric.
    pub fn of(constants: &Constants, fabric: &Fabric) -> Self {
        Self::new(constants, &Surroundings::of(fabric))
    }

    /// The fractions in these surroundings.
    pub fn new(constants: &Constants, around: &Surroundings) -> Self {
        let mesh = if around.is_mesh { constants[Name::NvlinkMesh] } else { 1.0 };
        let nvlink = [Name::NvlinkVolta, Name::NvlinkAmpere, Name::NvlinkHopper, Name::NvlinkBlackwell]
            .map(|name| millionths(constants[name] * mesh));
        let (pcie, memory) = if around.is_over_pcie {
            (pcie(constants, around), memory(constants, around))
        } else {
            ([[millionths(constants[Name::Copy]); 2]; 2], [u64::MAX; 2])
        };
        // Alone with one NIC, a GPU has too few connections to fill RoCE.
        let is_alone = around.gpus_per_host == 1 && around.nics_per_host == 1 && around.is_roce;
        let shared =
            if around.gpus_per_host > around.nics_per_host { constants[Name::NicShared] } else { 1.0 };
        let alone = if is_alone { constants[Name::RoceAlone] } else { 1.0 };
        let network = |name| [millionths(constants[name] * shared * alone), millionths(constants[name])];
        Self {
            nvlink,
            xgmi: millionths(constants[Name::Xgmi]),
            pcie,
            memory,
            rdma: network(Name::NetworkRdma),
            slingshot: network(Name::NetworkSlingshot),
            tcpx: network(Name::NetworkTcpx),
            tcp_bytes_per_second: (constants[Name::TcpGBps] * 1e9).round() as u64,
        }
    }

    /// The rate that a collective gets of a link of this line rate, in bytes per second. With `one_way`, data flows in one direction only.
    pub fn rate(&self, kind: LinkKind, is_between_switches: bool, one_way: bool, line: u64) -> u64 {
        let place = usize::from(is_between_switches);
        match kind {
            LinkKind::NvLink { generation } => {
                let at = generation.map_or(2, |generation| usize::from(generation.clamp(2, 5)) - 2);
                part_of(line, self.nvlink[at])
            }
            LinkKind::Xgmi { .. } | LinkKind::XeLink | LinkKind::UaLink => part_of(line, self.xgmi),
            LinkKind::Pcie { .. } | LinkKind::C2c => {
                let is_old = matches!(kind, LinkKind::Pcie { generation: 1..=3, .. });
                let part = self.pcie[usize::from(!is_old)][usize::from(one_way)];
                part_of(line, part).min(self.memory[usize::from(one_way)])
            }
            LinkKind::Socket(_) => line,
            LinkKind::Network { network, gbit } => match network {
                Network::Slingshot => part_of(line, self.slingshot[place]),
                Network::TcpX => part_of(line, self.tcpx[place]),
                Network::Ethernet | Network::Unknown if !is_between_switches => {
                    let ports = (line / (u64::from(gbit).max(1) * 125_000_000)).max(1);
                    part_of(line, self.rdma[1]).min(ports.saturating_mul(self.tcp_bytes_per_second))
                }
                _ => part_of(line, self.rdma[place]),
            },
        }
    }

    /// The rate that a collective gets of a link of a fabric.
    pub(super) fn on(&self, fabric: &Fabric, link: &Link, one_way: bool) -> u64 {
        let is_switch = |id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::NetSwitch(_));
        let between = is_switch(link.source) && is_switch(link.target);
        self.rate(fabric.spec(link).kind, between, one_way, lines::line(fabric, link) as u64)
    }
}

/// The most devices that a host has.
fn largest(fabric: &Fabric, devices: impl Iterator<Item = DeviceId>) -> u32 {
    let mut hosts: BTreeMap<_, u32> = BTreeMap::new();
    for id in devices {
        *hosts.entry(fabric.device(id).host).or_default() += 1;
    }
    hosts.into_values().max().unwrap_or(0)
}

/// Whether some GPUs of a host have no links of their own to others of it.
fn communicates_over_pcie(fabric: &Fabric, domains: &[Vec<DeviceId>]) -> bool {
    let mut hosts: Vec<_> = domains.iter().map(|domain| fabric.device(domain[0]).host).collect();
    hosts.sort_unstable();
    hosts.windows(2).any(|pair| pair[0] == pair[1])
}

/// Whether direct links connect every GPU of a domain of more than two to every other.
fn is_mesh(fabric: &Fabric, domains: &[Vec<DeviceId>]) -> bool {
    let Some(domain) = domains.iter().max_by_key(|domain| domain.len()).filter(|domain| domain.len() > 2)
    else {
        return false;
    };
    domain.iter().all(|id| {
        let links = fabric.links_from(*id).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        let mut peers: Vec<DeviceId> =
            links.map(|link| link.target).filter(|to| domain.contains(to)).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.len() + 1 == domain.len()
    })
}

/// The fractions of PCIe where GPUs communicate over it.
fn pcie(constants: &Constants, around: &Surroundings) -> [[u64; 2]; 2] {
    let both = |both: f64, one_way: f64| [millionths(both), millionths(one_way)];
    let one_way = constants[Name::PcieHost];
    if around.is_through_host {
        let name = if around.gpus_per_host > 2 { Name::PcieHostBothWays } else { Name::PcieHostPair };
        return [both(constants[name], one_way); 2];
    }
    if around.is_consumer {
        let peers = constants[Name::PciePeersConsumer];
        return [both(peers * constants[Name::PciePeersBothWays], peers); 2];
    }
    // Data centre cards are on two sockets, whose link limits them; before PCIe 4 it carried as much as a slot, but in both
    // directions together.
    let peers = constants[Name::PciePeers];
    [both(one_way / 2.0, one_way), both(peers * constants[Name::PciePeersBothWays], peers)]
}

/// The most that a GPU gets of its host's memory, to which all data is written and from which it is read back.
fn memory(constants: &Constants, around: &Surroundings) -> [u64; 2] {
    let each = host_memory_gbytes_per_second(constants) / 2.0 / f64::from(around.gpus_per_host.max(1));
    [if around.is_through_host { (each * 1e9) as u64 } else { u64::MAX }; 2]
}

/// The memory bandwidth of a GPU host, reads and writes together.
pub fn host_memory_gbytes_per_second(constants: &Constants) -> f64 {
    HOSTS_OF_16_CORES * constants[Name::HostMemoryGBps]
}
