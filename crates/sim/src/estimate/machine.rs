//! A setup as the closed form sees it: islands, ports and NICs with their achievable rates.

use weftlink_plan::cost::HOSTS_OF_16_CORES;

use crate::constants::{Constants, Name};
use crate::gpu::{Generation, Gpu};
use crate::setup::{Intra, Launch, Library, Network, Setup};
use crate::tuner::{supports_ll128, uses_pxn};
use crate::what_if::CpuVendor;

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
    /// Latency of a hop between islands with LL.
    pub hop_across_us: f64,
    /// Latency of a hop between islands with Simple.
    pub hop_across_simple_us: f64,
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
        let islands = if is_rack { ranks.div_ceil(setup.rack_gpus) } else { setup.nodes };
        // Where islands differ, the average.
        let island = match is_rack {
            true => f64::from(ranks.min(setup.rack_gpus)),
            false => f64::from(ranks) / f64::from(islands),
        };
        let nodes_of_island = if is_rack { island / f64::from(setup.gpus_per_node) } else { 1.0 };
        let generation = setup.gpu.generation();
        let (port, port_one_way) = ports(constants, setup);
        let nic_count = f64::from(setup.nics_per_node) * nodes_of_island;
        let channels = f64::from(setup.what_if.channels_max.unwrap_or(u32::MAX).max(1));
        let lanes = nic_count.clamp(2.0, island.max(2.0)).min(channels);
        let line = setup.port_line_gbytes_per_second();
        let nvls = line
            * match (setup.intra, generation) {
                (Intra::Nvl72, _) if island > 8.0 => constants[Name::NvlsRack],
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
            port_across: if setup.intra == Intra::Xgmi { link(constants, setup) * lanes } else { port },
            nvls,
            nics: nics(constants, setup) * nodes_of_island,
            nics_line: nic_count * setup.nic_gbits_per_second / 8.0,
            cables_part: match setup.network {
                Network::Slingshot => constants[Name::NetworkSlingshot],
                _ => constants[Name::NetworkRdma],
            },
            port_line: setup.port_line_gbytes_per_second()
                * if setup.intra == Intra::Xgmi { xgmi_links(setup) / 7.0 } else { 1.0 },
            slot_line: x16_gbytes_per_second(setup.pcie_generation) * setup.slot_share,
            bridge: (setup.intra == Intra::NvLinkBridge && setup.gpus_per_node > 2)
                .then(|| nvlink_part(constants, setup.gpu) * setup.port_line_gbytes_per_second()),
            nic_count,
            lanes,
            hop_across_us: hop_across(constants, setup),
            hop_across_simple_us: match setup.network {
                Network::Slingshot => constants[Name::HopSlingshotSimpleUs] + staged(constants, setup),
                Network::Tcp => constants[Name::HopTcpSimpleUs],
                _ => constants[Name::HopNetworkSimple] * hop_across(constants, setup),
            },
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

/// Rate of one xGMI link of a full mesh.
fn link(constants: &Constants, setup: &Setup) -> f64 {
    constants[Name::Xgmi] * setup.port_line_gbytes_per_second() / 7.0
}

/// xGMI links of a GPU to others that are there.
fn xgmi_links(setup: &Setup) -> f64 {
    f64::from(setup.gpus_per_node.saturating_sub(1).clamp(1, 7))
}

/// Memory bandwidth of a GPU host, reads and writes together.
fn host_memory(constants: &Constants) -> f64 {
    HOSTS_OF_16_CORES * constants[Name::HostMemoryGBps]
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

/// Rate of a GPU's port, limited by the number of channels: both directions busy, and one.
fn ports(constants: &Constants, setup: &Setup) -> (f64, f64) {
    let (both, one_way) = wired_ports(constants, setup);
    let Some(channels) = setup.what_if.channels_max else { return (both, one_way) };
    let lane = match setup.gpu.generation() {
        Generation::Pascal | Generation::Volta | Generation::Ampere => Name::MessageLaneAmpereGBps,
        Generation::Hopper | Generation::Blackwell | Generation::Instinct => Name::MessageLaneGBps,
    };
    let filled = f64::from(channels.max(1)) * constants[lane];
    (both.min(filled), one_way.min(filled))
}

/// Fraction of the line rate of NVLinks that collectives get.
fn nvlink_part(constants: &Constants, gpu: Gpu) -> f64 {
    constants[match gpu.generation() {
        Generation::Pascal | Generation::Volta => Name::NvlinkVolta,
        Generation::Ampere => Name::NvlinkAmpere,
        Generation::Hopper => Name::NvlinkHopper,
        Generation::Blackwell | Generation::Instinct => Name::NvlinkBlackwell,
    }]
}

/// Rate of a GPU's port by its wiring: both directions busy, and one.
fn wired_ports(constants: &Constants, setup: &Setup) -> (f64, f64) {
    let slot = slot_line(setup);
    let same = |rate: f64| (rate, rate);
    let part = nvlink_part(constants, setup.gpu);
    // Data centre cards are on two sockets, whose link limits them; before PCIe 4 it carried as much as a slot, but in both
    // directions together.
    let peers_both = if setup.gpu.is_consumer() {
        let peers = constants[Name::PciePeersConsumer] * slot;
        (peers * constants[Name::PciePeersBothWays], peers)
    } else if setup.pcie_generation <= 3 {
        let peers = constants[Name::PcieHost] * slot;
        (peers / 2.0, peers)
    } else {
        let peers = constants[Name::PciePeers] * slot;
        (peers * constants[Name::PciePeersBothWays], peers)
    };
    match setup.intra {
        // A pair has lanes to one neighbour only, which do not fill the fastest ports.
        Intra::NvSwitch | Intra::Nvl72 if setup.ranks() == 2 => {
            let lanes = constants[Name::LanesInside] * constants[Name::MessageLaneGBps];
            same(lanes.min(part * setup.port_line_gbytes_per_second()))
        }
        Intra::NvSwitch | Intra::CubeMesh | Intra::Nvl72 => same(part * setup.port_line_gbytes_per_second()),
        Intra::NvLinkMesh => same(part * constants[Name::NvlinkMesh] * setup.port_line_gbytes_per_second()),
        // With more than a pair, rings cross PCIe.
        Intra::NvLinkBridge if setup.gpus_per_node > 2 => peers_both,
        Intra::NvLinkBridge => same(part * setup.port_line_gbytes_per_second()),
        Intra::Xgmi => same(link(constants, setup) * xgmi_links(setup)),
        Intra::PciePeers => peers_both,
        Intra::PcieHost => {
            let both = if setup.gpus_per_node > 2 { Name::PcieHostBothWays } else { Name::PcieHostPair };
            // All data is written to memory and read back.
            let memory = host_memory(constants) / 2.0 / f64::from(setup.gpus_per_node.max(1));
            ((constants[both] * slot).min(memory), (constants[Name::PcieHost] * slot).min(memory))
        }
        Intra::None => same(f64::INFINITY),
    }
}

/// Rate of all NICs of a node.
fn nics(constants: &Constants, setup: &Setup) -> f64 {
    let line = setup.nic_gbits_per_second / 8.0;
    let nic = match setup.network {
        Network::None => return f64::INFINITY,
        Network::InfiniBand | Network::Roce | Network::Efa | Network::Tcpxo => {
            line * constants[Name::NetworkRdma]
        }
        Network::Slingshot => line * constants[Name::NetworkSlingshot],
        Network::Tcpx => line * constants[Name::NetworkTcpx],
        Network::Tcp => (line * constants[Name::NetworkRdma]).min(constants[Name::TcpGBps]),
    };
    let mut all = nic * f64::from(setup.nics_per_node);
    if setup.gpus_per_node > setup.nics_per_node && setup.network != Network::Tcp {
        all *= constants[Name::NicShared];
    }
    if setup.network == Network::Roce && setup.gpus_per_node == 1 {
        all *= constants[Name::RoceAlone];
    }
    let slots = slot_line(setup) * f64::from(setup.gpus_per_node);
    if (setup.gpu.is_card() || setup.what_if.no_gpudirect) && setup.network != Network::Tcp {
        all = all.min(slots * constants[Name::PcieHostBothWays]);
    }
    if setup.what_if.no_gpudirect {
        // Outgoing and incoming data pass through memory twice each.
        all = all.min(host_memory(constants) / 4.0);
    }
    if setup.what_if.storage_gbytes_per_second > 0.0 {
        all = all.min(slots * constants[Name::Copy]);
    }
    all
}

/// Extra latency of a hop whose two ends stage data in host memory.
fn staged(constants: &Constants, setup: &Setup) -> f64 {
    let copies = setup.what_if.no_gpudirect && !matches!(setup.network, Network::None | Network::Tcp);
    if copies { 2.0 * constants[Name::HopSimpleUs] } else { 0.0 }
}

/// Latency of a hop between islands with LL.
fn hop_across(constants: &Constants, setup: &Setup) -> f64 {
    let hop = match setup.network {
        Network::None => 0.0,
        Network::InfiniBand => constants[Name::HopInfiniBandUs],
        Network::Roce => constants[Name::HopRoceUs],
        Network::Efa if setup.gpu.generation() >= Generation::Hopper => constants[Name::HopEfaUs],
        Network::Efa => constants[Name::HopEfaFirstUs],
        Network::Slingshot => constants[Name::HopSlingshotUs],
        Network::Tcp => constants[Name::HopTcpUs],
        Network::Tcpx => constants[Name::HopTcpxUs],
        Network::Tcpxo => constants[Name::HopEfaUs],
    };
    hop + staged(constants, setup)
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

    #[test]
    fn every_gpu_has_a_port_rate_for_every_wiring() {
        let constants = Constants::shipped();
        for gpu in Gpu::all() {
            for intra in Intra::ALL {
                let (both, one_way) = ports(&constants, &Setup::pair(gpu, *intra));
                assert!(both >= 0.0 && one_way >= both, "{gpu:?} {intra:?}: {both} {one_way}");
            }
        }
    }
}
