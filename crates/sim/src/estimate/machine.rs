//! A setup as the closed form sees it: islands, ports, NICs, with what of their line rates is left.

use crate::constants::{Constants, Name};
use crate::gpu::Generation;
use crate::setup::{Intra, Launch, Library, Network, Setup};
use crate::tuner::{supports_ll128, uses_pxn};
use crate::what_if::CpuVendor;

/// Islands of GPUs with what connects them. Bandwidths are GB/s.
#[derive(Clone, Debug)]
pub struct Machine {
    /// All GPUs.
    pub ranks: f64,
    /// GPUs of an island: a node, or a rack that is one domain.
    pub island: f64,
    /// Islands.
    pub islands: u32,
    /// Levels of a tree over the islands.
    pub levels: f64,
    /// The GPUs' generation.
    pub generation: Generation,
    /// Whether switches inside an island sum.
    pub switch_sums: bool,
    /// GPUs of a domain from which on they do so sooner than rings.
    pub nvls_gpus: f64,
    /// Whether links keep 128 bytes together, inside and across, so that LL128 may be used.
    pub ll128: bool,
    /// Whether messages to the GPUs of a node go together.
    pub pxn: bool,
    /// Who made the CPUs, where it is known.
    pub cpu: Option<CpuVendor>,
    /// Whether GPUs of an island reach each other through slots only.
    pub pcie: bool,
    /// What a GPU's port carries each way, both ways busy.
    pub port: f64,
    /// The same with one way busy.
    pub port_one_way: f64,
    /// What a GPU's port carries each way of messages between pairs.
    pub port_messages: f64,
    /// What a GPU's port carries when the whole island's NICs are fed by rings.
    pub port_across: f64,
    /// What sums by switches get.
    pub nvls: f64,
    /// What all NICs of an island carry each way.
    pub nics: f64,
    /// Lanes across.
    pub lanes: f64,
    /// A hop across with LL.
    pub hop_across_us: f64,
    /// A hop across with Simple.
    pub hop_across_simple_us: f64,
    /// Whether the network asks before it takes longer messages.
    pub slingshot: bool,
    /// Whether LL is slow across: every message is copied, or asked for.
    pub slow_ll: bool,
    /// Whether no lane runs ahead of what crosses: the receiver is asked for every message, or CPUs carry it.
    pub waits_across: bool,
    /// Whether CPUs carry what crosses: trees between two nodes do not get both directions for one.
    pub sockets: bool,
    /// Whether the library is RCCL.
    pub rccl: bool,
    /// GPUs that one thread launches, none where each has its process.
    pub launched_by_thread: u32,
    /// Messages that one thread enqueues for an alltoall.
    pub messages_by_thread: f64,
    /// What copies get: one way, and each way with both busy.
    pub copies: (f64, f64),
}

impl Machine {
    /// As a setup says.
    pub fn new(constants: &Constants, setup: &Setup) -> Self {
        let ranks = setup.ranks();
        let island =
            if setup.intra == Intra::Nvl72 { ranks.min(setup.rack_gpus) } else { setup.gpus_per_node };
        let islands = ranks.div_ceil(island);
        let nodes_of_island = f64::from(island) / f64::from(setup.gpus_per_node);
        let generation = setup.gpu.generation();
        let (port, port_one_way) = ports(constants, setup);
        let nic_count = f64::from(setup.nics_per_node) * nodes_of_island;
        let channels = f64::from(setup.what_if.channels_max.unwrap_or(u32::MAX).max(1));
        let lanes = nic_count.clamp(2.0, f64::from(island).max(2.0)).min(channels);
        let line = setup.gpu.port_line_gbytes_per_second();
        let nvls = line
            * match (setup.intra, generation) {
                (Intra::Nvl72, _) if island > 8 => constants[Name::NvlsRack],
                (_, Generation::Blackwell) => constants[Name::NvlsBlackwell],
                _ => constants[Name::NvlsHopper],
            };
        let one_thread = setup.launch() == Launch::OneThread;
        let launched_by_thread = if one_thread { setup.gpus_per_node } else { 0 };
        Self {
            ranks: f64::from(ranks),
            island: f64::from(island),
            islands,
            levels: f64::from(islands).log2().ceil(),
            generation,
            switch_sums: matches!(setup.intra, Intra::NvSwitch | Intra::Nvl72)
                && generation >= Generation::Hopper
                && setup.library == Library::Nccl,
            nvls_gpus: constants[Name::NvlsGpus],
            ll128: supports_ll128(setup),
            pxn: uses_pxn(setup),
            cpu: setup.what_if.cpu,
            pcie: matches!(setup.intra, Intra::PciePeers | Intra::PcieHost),
            port,
            port_one_way,
            // Nothing is added up on the way: both ways of a slot nearly keep up.
            port_messages: port_one_way.min(1.5 * port),
            port_across: if setup.intra == Intra::Xgmi { link(constants, setup) * lanes } else { port },
            nvls,
            nics: nics(constants, setup) * nodes_of_island,
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

/// One xGMI link of a full mesh.
fn link(constants: &Constants, setup: &Setup) -> f64 {
    constants[Name::Xgmi] * setup.gpu.port_line_gbytes_per_second() / 7.0
}

/// Hosts of 16 cores, of whose memory something was measured, that a host of GPUs makes: two sockets of 32 cores and their channels.
const HOSTS_OF_16_CORES: f64 = 4.0;

/// What the memory of a host carries, reads and writes together.
fn host_memory(constants: &Constants) -> f64 {
    HOSTS_OF_16_CORES * constants[Name::HostMemoryGBps]
}

/// What a slot carries each way on paper: x16, less what storage takes of it.
pub(crate) fn slot_line(setup: &Setup) -> f64 {
    let line = match setup.pcie_generation {
        0..=3 => 15.75,
        4 => 31.5,
        5 => 63.0,
        _ => 121.0,
    };
    // Shares are fair: whatever storage wants, something is left.
    (line - setup.what_if.storage_gbytes_per_second).max(line / 4.0)
}

/// A GPU's port as far as channels fill it, both ways busy and one way.
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

/// A GPU's port, both ways busy and one way.
fn wired_ports(constants: &Constants, setup: &Setup) -> (f64, f64) {
    let slot = slot_line(setup);
    let alike = |rate: f64| (rate, rate);
    let part = match setup.gpu.generation() {
        Generation::Pascal | Generation::Volta => constants[Name::NvlinkVolta],
        Generation::Ampere => constants[Name::NvlinkAmpere],
        Generation::Hopper => constants[Name::NvlinkHopper],
        Generation::Blackwell | Generation::Instinct => constants[Name::NvlinkBlackwell],
    };
    // Data centre cards are on two sockets, whose link is what limits them; before the fourth generation it carried as much as a
    // slot, but both ways together.
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
        // A pair has the lanes of one neighbour, and they do not fill the fastest ports.
        Intra::NvSwitch | Intra::Nvl72 if setup.ranks() == 2 => {
            let lanes = constants[Name::LanesInside] * constants[Name::MessageLaneGBps];
            alike(lanes.min(part * setup.gpu.port_line_gbytes_per_second()))
        }
        Intra::NvSwitch | Intra::CubeMesh | Intra::Nvl72 => {
            alike(part * setup.gpu.port_line_gbytes_per_second())
        }
        Intra::NvLinkMesh => {
            alike(part * constants[Name::NvlinkMesh] * setup.gpu.port_line_gbytes_per_second())
        }
        // More than a pair, and rings cross PCIe.
        Intra::NvLinkBridge if setup.gpus_per_node > 2 => peers_both,
        Intra::NvLinkBridge => alike(part * setup.gpu.port_line_gbytes_per_second()),
        Intra::Xgmi => {
            alike(link(constants, setup) * f64::from(setup.gpus_per_node.saturating_sub(1).clamp(1, 7)))
        }
        Intra::PciePeers => peers_both,
        Intra::PcieHost => {
            let both = if setup.gpus_per_node > 2 { Name::PcieHostBothWays } else { Name::PcieHostPair };
            // What every GPU sends is written to memory and read from there.
            let memory = host_memory(constants) / 2.0 / f64::from(setup.gpus_per_node.max(1));
            ((constants[both] * slot).min(memory), (constants[Name::PcieHost] * slot).min(memory))
        }
        Intra::None => alike(f64::INFINITY),
    }
}

/// All NICs of a node.
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
        // What goes out and what comes in passes memory twice each.
        all = all.min(host_memory(constants) / 4.0);
    }
    if setup.what_if.storage_gbytes_per_second > 0.0 {
        all = all.min(slots * constants[Name::Copy]);
    }
    all
}

/// What a hop across takes longer where both ends copy through host memory.
fn staged(constants: &Constants, setup: &Setup) -> f64 {
    let copies = setup.what_if.no_gpudirect && !matches!(setup.network, Network::None | Network::Tcp);
    if copies { 2.0 * constants[Name::HopSimpleUs] } else { 0.0 }
}

/// A hop across with LL.
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

/// Copies between a pair: one way, and each way.
fn copies(constants: &Constants, setup: &Setup) -> (f64, f64) {
    let slot = slot_line(setup);
    let port = setup.gpu.port_line_gbytes_per_second();
    let alike = |rate: f64| (rate, rate);
    match setup.intra {
        Intra::NvSwitch | Intra::NvLinkBridge | Intra::Nvl72 => alike(constants[Name::Copy] * port),
        Intra::NvLinkMesh => {
            alike(constants[Name::Copy] * port / f64::from(setup.gpus_per_node.saturating_sub(1).max(1)))
        }
        // The pairs that have the most links have two of six.
        Intra::CubeMesh => alike(constants[Name::Copy] * port / 3.0),
        Intra::Xgmi => alike(constants[Name::Copy] * port / 7.0),
        Intra::PciePeers | Intra::None => alike(constants[Name::Copy] * slot),
        // Before the fourth generation hosts carry both ways together.
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
    fn every_gpu_and_link_has_a_port() {
        let constants = Constants::shipped();
        for gpu in Gpu::all() {
            for intra in Intra::ALL {
                let (both, one_way) = ports(&constants, &Setup::pair(gpu, *intra));
                assert!(both >= 0.0 && one_way >= both, "{gpu:?} {intra:?}: {both} {one_way}");
            }
        }
    }
}
