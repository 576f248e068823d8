//! A setup as the closed form sees it: islands, ports and NICs with their achievable rates.

use weftlink_fabric::LinkKind;
use weftlink_plan::cost::{Carried, Hops, Surroundings, host_memory_gbytes_per_second};

use crate::constants::{Constants, Name};
use crate::gpu::Generation;
use crate::setup::{Intra, Launch, Library, Network, Setup};
use crate::tuner::{supports_ll128, uses_pxn};
use crate::what_if::CpuVendor;
use crate::wiring::gpu_links;

/// Islands of GPUs and the links between them. Bandwidths are in GB/s.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Number of GPUs.
    pub ranks: f64,
    /// GPUs per island: a node, or a rack that is one NVLink domain.
    pub island: f64,
    /// Number of islands.
    pub islands: u32,
    /// Levels of a tree over the islands.
    pub levels: f64,
    /// The GPUs' generation.
    pub generation: Generation,
    /// Whether the library can use NVLS.
    pub has_nvls: bool,
    /// Domain size in GPUs from which NVLS is faster than rings.
    pub nvls_gpus: f64,
    /// Whether all links support LL128.
    pub ll128: bool,
    /// Whether the library uses PXN.
    pub pxn: bool,
    /// Vendor of the CPUs, if known.
    pub cpu: Option<CpuVendor>,
    /// Whether the GPUs of an island are connected by PCIe only.
    pub pcie: bool,
    /// Rate of a GPU's port each way, with both directions busy.
    pub port: f64,
    /// The same with one direction busy.
    pub port_one_way: f64,
    /// Rate of a GPU's port each way for messages between pairs.
    pub port_messages: f64,
    /// Rate of a GPU's port when rings feed all NICs of the island.
    pub port_across: f64,
    /// Rate of NVLS.
    pub nvls: f64,
    /// Rate of all NICs of an island, each way.
    pub nics: f64,
    /// Line rate of all NICs of an island, each way.
    pub nics_line: f64,
    /// Fraction of the line rate that cables between switches carry.
    pub cables_part: f64,
    /// Line rate of the links of a GPU to others.
    pub port_line: f64,
    /// Line rate of the slot of a GPU.
    pub slot_line: f64,
    /// Rate of the bridge of a pair of GPUs whose rings also cross PCIe.
    pub bridge: Option<f64>,
    /// Number of NICs of an island.
    pub nic_count: f64,
    /// Lanes between islands.
    pub lanes: f64,
    /// Launches and hops.
    pub hops: Hops,
    /// Whether the network is Slingshot, where longer messages need a rendezvous.
    pub slingshot: bool,
    /// Whether LL is slow between islands: every message is copied or needs a rendezvous.
    pub slow_ll: bool,
    /// Whether lanes cannot run ahead of the network: every message needs a rendezvous, or CPUs carry it.
    pub waits_across: bool,
    /// Whether the network is sockets: CPUs carry one direction of a tree at a time.
    pub sockets: bool,
    /// Whether the library is RCCL.
    pub rccl: bool,
    /// GPUs that one thread launches on; 0 with a process per GPU.
    pub launched_by_thread: u32,
    /// Messages that one thread enqueues for an all-to-all.
    pub messages_by_thread: f64,
    /// Rate of copies: one way, and each way with both directions busy.
    pub copies: (f64, f64),
}

impl Machine {
    /// The machine of a setup.
    pub fn new(constants: &Constants, setup: &Setup) -> Self {
        let ranks = setup.ranks();
        let is_rack = setup.intra == Intra::Nvl72;
        let islands = setup.islands();
        // Where islands differ, the average.
        let island = match is_rack {
            true => f64::from(ranks.min(setup.rack_gpus)),
            false => f64::from(ranks) / f64::from(islands),
        };
        let nodes_of_island = if is_rack { island / f64::from(setup.gpus_per_node) } else { 1.0 };
        let generation = setup.gpu.generation();
        let links = Links::of(constants, setup);
        let (port, port_one_way) = links.ports();
        let nic_count = f64::from(setup.nics_per_node) * nodes_of_island;
        let channels = f64::from(setup.what_if.channels_max.unwrap_or(u32::MAX).max(1));
        let lanes = nic_count.clamp(2.0, island.max(2.0)).min(channels);
        let line = setup.port_line_gbytes_per_second();
        let nvls = line
            * match (setup.intra, generation) {
                (Intra::Nvl72, Generation::Blackwell) if island > 8.0 => constants[Name::NvlsRack],
                (_, Generation::Blackwell) => constants[Name::NvlsBlackwell],
                _ => constants[Name::NvlsHopper],
            };
        let one_thread = setup.launch() == Launch::OneThread;
        let launched_by_thread = if one_thread { setup.gpus_per_node } else { 0 };
        Self {
            ranks: f64::from(ranks),
            island,
            islands,
            levels: f64::from(islands.next_power_of_two().ilog2()),
            generation,
            has_nvls: matches!(setup.intra, Intra::NvSwitch | Intra::Nvl72)
                && generation >= Generation::Hopper
                && setup.library == Library::Nccl,
            nvls_gpus: constants[Name::NvlsGpus],
            ll128: supports_ll128(setup),
            pxn: uses_pxn(setup),
            cpu: setup.what_if.cpu,
            pcie: matches!(setup.intra, Intra::PciePeers | Intra::PcieHost),
            port,
            port_one_way,
            // Messages are not reduced on the way, so both directions of a slot get almost the full rate.
            port_messages: port_one_way.min(1.5 * port),
            port_across: if setup.intra == Intra::Xgmi { links.of_gpu() * lanes / 7.0 } else { port },
            nvls,
            nics: links.nics() * nodes_of_island,
            nics_line: nic_count * setup.nic_gbits_per_second / 8.0,
            cables_part: links.cables_part(),
            port_line: setup.port_line_gbytes_per_second()
                * if setup.intra == Intra::Xgmi { xgmi_links(setup) / 7.0 } else { 1.0 },
            slot_line: x16_gbytes_per_second(setup.pcie_generation) * setup.slot_share,
            bridge: crosses_pcie(setup).then(|| links.of_gpu()),
            nic_count,
            lanes,
            hops: Hops::new(
                constants,
                Some(setup.network_kind()),
                generation < Generation::Hopper,
                staged_us(constants, setup),
            ),
            slingshot: setup.network == Network::Slingshot,
            slow_ll: matches!(
                setup.network,
                Network::Slingshot | Network::Tcp | Network::Tcpx | Network::Tcpxo
            ),
            waits_across: matches!(setup.network, Network::Slingshot | Network::Tcp),
            sockets: matches!(setup.network, Network::Tcp | Network::Tcpx | Network::Tcpxo),
            rccl: setup.library == Library::Rccl,
            launched_by_thread,
            messages_by_thread: f64::from(ranks) * f64::from(launched_by_thread.max(1)),
            copies: copies(constants, setup),
        }
    }
}

/// xGMI links of a GPU to others that are there.
fn xgmi_links(setup: &Setup) -> f64 {
    f64::from(setup.gpus_per_node.saturating_sub(1).clamp(1, 7))
}

/// Line rate of 16 lanes of PCIe each way.
pub(crate) fn x16_gbytes_per_second(generation: u32) -> f64 {
    match generation {
        0..=3 => 15.75,
        4 => 31.5,
        5 => 63.0,
        _ => 121.0,
    }
}

/// Line rate of the slowest slot of a GPU each way, less the share of storage.
pub(crate) fn slot_line(setup: &Setup) -> f64 {
    let line = x16_gbytes_per_second(setup.pcie_generation) * setup.slot_share;
    // Slots share fairly: storage cannot take all of it.
    (line - setup.what_if.storage_gbytes_per_second).max(line / 4.0)
}

/// The rates that collectives get of a setup's links, in GB/s.
struct Links<'s> {
    constants: &'s Constants,
    setup: &'s Setup,
    carried: Carried,
}

impl<'s> Links<'s> {
    fn of(constants: &'s Constants, setup: &'s Setup) -> Self {
        let around = Surroundings {
            is_mesh: setup.intra == Intra::NvLinkMesh,
            is_over_pcie: matches!(setup.intra, Intra::PciePeers | Intra::PcieHost) || crosses_pcie(setup),
            is_through_host: setup.intra == Intra::PcieHost,
            is_consumer: setup.gpu.is_consumer(),
            gpus_per_host: setup.gpus_per_node,
            nics_per_host: setup.nics_per_node,
            is_roce: setup.network == Network::Roce,
        };
        Self { constants, setup, carried: Carried::new(constants, &around) }
    }

    /// The part of a line rate that a collective gets.
    fn part_of(&self, kind: LinkKind, one_way: bool, gbytes_per_second: f64) -> f64 {
        let line = (gbytes_per_second * 1e9).round() as u64;
        self.carried.rate(kind, false, one_way, line) as f64 / 1e9
    }

    /// All links of a GPU to others.
    fn of_gpu(&self) -> f64 {
        let (link, _) = gpu_links(self.setup.gpu);
        self.part_of(link.kind, false, self.setup.port_line_gbytes_per_second())
    }

    /// A GPU's slot, with data in both directions or in one.
    fn slot(&self, one_way: bool) -> f64 {
        let kind = LinkKind::Pcie { generation: self.setup.pcie_generation.clamp(1, 6) as u8, width: 16 };
        self.part_of(kind, one_way, slot_line(self.setup))
    }

    /// A GPU's port, limited by the number of channels: both directions busy, and one.
    fn ports(&self) -> (f64, f64) {
        let (both, one_way) = self.wired_ports();
        let Some(channels) = self.setup.what_if.channels_max else { return (both, one_way) };
        let lane = match self.setup.gpu.generation() {
            Generation::Pascal | Generation::Volta | Generation::Ampere => Name::MessageLaneAmpereGBps,
            Generation::Hopper | Generation::Blackwell | Generation::Instinct => Name::MessageLaneGBps,
        };
        let filled = f64::from(channels.max(1)) * self.constants[lane];
        (both.min(filled), one_way.min(filled))
    }

    /// A GPU's port by its wiring.
    fn wired_ports(&self) -> (f64, f64) {
        let same = |rate: f64| (rate, rate);
        match self.setup.intra {
            // A pair has lanes to one neighbour only, which do not fill the fastest ports.
            Intra::NvSwitch | Intra::Nvl72 if self.setup.ranks() == 2 => {
                let lanes = self.constants[Name::LanesInside] * self.constants[Name::MessageLaneGBps];
                same(lanes.min(self.of_gpu()))
            }
            Intra::PciePeers | Intra::PcieHost => (self.slot(false), self.slot(true)),
            Intra::NvLinkBridge if crosses_pcie(self.setup) => (self.slot(false), self.slot(true)),
            Intra::NvSwitch | Intra::Nvl72 | Intra::CubeMesh | Intra::NvLinkMesh | Intra::NvLinkBridge => {
                same(self.of_gpu())
            }
            Intra::Xgmi => same(self.of_gpu() * xgmi_links(self.setup) / 7.0),
            Intra::None => same(f64::INFINITY),
        }
    }

    /// All NICs of a node.
    fn nics(&self) -> f64 {
        let Self { constants, setup, .. } = self;
        if setup.network == Network::None {
            return f64::INFINITY;
        }
        let nic = self.part_of(setup.nic_kind(), false, setup.nic_gbits_per_second / 8.0);
        let mut all = nic * f64::from(setup.nics_per_node);
        let slots = slot_line(setup) * f64::from(setup.gpus_per_node);
        if (setup.gpu.is_card() || setup.what_if.no_gpudirect) && setup.network != Network::Tcp {
            all = all.min(slots * constants[Name::PcieHostBothWays]);
        }
        if setup.what_if.no_gpudirect {
            // Outgoing and incoming data pass through memory twice each.
            all = all.min(host_memory_gbytes_per_second(constants) / 4.0);
        }
        if setup.what_if.storage_gbytes_per_second > 0.0 {
            all = all.min(slots * constants[Name::Copy]);
        }
        all
    }

    /// The part of their line rate that cables between switches carry.
    fn cables_part(&self) -> f64 {
        const LINE: u64 = 1_000_000_000_000;
        self.carried.rate(self.setup.nic_kind(), true, false, LINE) as f64 / LINE as f64
    }
}

/// Whether the rings of bridged pairs cross PCIe.
fn crosses_pcie(setup: &Setup) -> bool {
    setup.intra == Intra::NvLinkBridge && setup.gpus_per_node > 2
}

/// Extra latency of a hop whose two ends stage data in host memory.
fn staged_us(constants: &Constants, setup: &Setup) -> f64 {
    let copies = setup.what_if.no_gpudirect && !matches!(setup.network, Network::None | Network::Tcp);
    if copies { 2.0 * constants[Name::HopSimpleUs] } else { 0.0 }
}

/// Rate of copies between a pair: one way, and each way with both busy.
fn copies(constants: &Constants, setup: &Setup) -> (f64, f64) {
    let slot = slot_line(setup);
    let port = setup.port_line_gbytes_per_second();
    let same = |rate: f64| (rate, rate);
    match setup.intra {
        Intra::NvSwitch | Intra::NvLinkBridge | Intra::Nvl72 => same(constants[Name::Copy] * port),
        Intra::NvLinkMesh => {
            same(constants[Name::Copy] * port / f64::from(setup.gpus_per_node.saturating_sub(1).max(1)))
        }
        // The best connected pairs have two of six links.
        Intra::CubeMesh => same(constants[Name::Copy] * port / 3.0),
        Intra::Xgmi => same(constants[Name::Copy] * port / 7.0),
        Intra::PciePeers | Intra::None => same(constants[Name::Copy] * slot),
        // Before PCIe 4, hosts carry both directions together.
        Intra::PcieHost if setup.pcie_generation <= 3 => {
            (constants[Name::CopyHost] * slot, constants[Name::CopyHost] * slot / 2.0)
        }
        Intra::PcieHost => (constants[Name::CopyHost] * slot, constants[Name::PcieHostPair] * slot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;

    #[test]
    fn every_gpu_has_a_port_rate_for_every_wiring() {
        let constants = Constants::shipped();
        for gpu in Gpu::all() {
            for intra in Intra::ALL {
                let setup = Setup::pair(gpu, *intra);
                let (both, one_way) = Links::of(&constants, &setup).ports();
                assert!(both >= 0.0 && one_way >= both, "{gpu:?} {intra:?}: {both} {one_way}");
            }
        }
    }
}
