//! A setup: the machine as far as its wiring determines it, the library, and the library's settings.

use std::fmt;

use weftlink_fabric::nearest::{did_you_mean, fold};
use weftlink_plan::plan::Protocol;

use crate::gpu::{Generation, Gpu};
use crate::what_if::WhatIf;

/// Declares an enum whose variants have names in files.
macro_rules! named {
    ($(#[$about:meta])* $kind:ident { $($(#[$what:meta])* $value:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind {
            $($(#[$what])* $value,)+
        }

        impl $kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// Its name in files.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }

            /// The variant with that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }

            /// All names, for messages.
            pub fn names() -> String {
                Self::ALL.iter().map(|value| value.name()).collect::<Vec<_>>().join(", ")
            }
        }
    };
}

named! {
    /// Operations: collectives, with sizes as nccl-tests counts them, and copies.
    Operation {
        /// Every rank gets the sum of all buffers.
        AllReduce = "all_reduce",
        /// Every rank gets all parts; the size is their total.
        AllGather = "all_gather",
        /// Every rank gets its part of the sum; the size is the total of all parts.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the sum.
        Reduce = "reduce",
        /// Every rank gets a part of every rank's buffer.
        AllToAll = "alltoall",
        /// Every rank sends its buffer to the next rank and receives from the previous one.
        SendReceive = "sendrecv",
        /// A copy from GPU to GPU by a copy engine.
        CopyOneWay = "p2p_unidir_bw",
        /// Two copies at once, in both directions; the bandwidth is their sum.
        CopyBothWays = "p2p_bidir_bw",
        /// The root gets all ranks' buffers; the size is their total.
        Gather = "gather",
        /// Every rank gets its part of the root's buffer; the size is the total of all parts.
        Scatter = "scatter",
        /// Every rank gets the sum of the buffers of the ranks up to it.
        Scan = "scan",
        /// Every rank gets the sum of the buffers of the ranks before it.
        ExclusiveScan = "exclusive_scan",
        /// Every rank sends a part of its buffer to each neighbour on a torus.
        Neighbours = "neighbours",
        /// No rank leaves before all have entered; no data moves.
        Barrier = "barrier",
    }
}

impl Operation {
    /// Whether a copy engine executes it, not a library.
    pub fn is_copy(self) -> bool {
        matches!(self, Operation::CopyOneWay | Operation::CopyBothWays)
    }

    /// Whether files of measurements contain it.
    pub fn is_measured(self) -> bool {
        !matches!(
            self,
            Operation::Gather
                | Operation::Scatter
                | Operation::Scan
                | Operation::ExclusiveScan
                | Operation::Neighbours
                | Operation::Barrier
        )
    }

    /// Whether GPU libraries execute it as messages between pairs of ranks.
    pub fn is_messages(self) -> bool {
        matches!(self, Operation::AllToAll | Operation::SendReceive | Operation::Gather | Operation::Scatter)
    }

    /// The ratio of busbw to algbw, as in nccl-tests.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        match self {
            Operation::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Operation::AllGather
            | Operation::ReduceScatter
            | Operation::AllToAll
            | Operation::Gather
            | Operation::Scatter => (ranks - 1.0) / ranks,
            Operation::Barrier => 0.0,
            _ => 1.0,
        }
    }
}

named! {
    /// The links between the GPUs of a node.
    Intra {
        /// NVLink through switches.
        NvSwitch = "nvswitch",
        /// NVLink from every GPU to every other.
        NvLinkMesh = "nvlink-mesh",
        /// NVLink as in a DGX-1: two quads, some links double.
        CubeMesh = "cube-mesh",
        /// NVLink between pairs.
        NvLinkBridge = "nvlink-bridge",
        /// NVLink through the switches of a rack: the domain spans nodes.
        Nvl72 = "nvl72",
        /// xGMI from every GPU to every other.
        Xgmi = "xgmi",
        /// PCIe with peer access.
        PciePeers = "pcie-p2p",
        /// PCIe through host memory.
        PcieHost = "pcie-host",
        /// One GPU per node.
        None = "none",
    }
}

named! {
    /// The network between nodes.
    Network {
        /// InfiniBand.
        InfiniBand = "ib",
        /// RDMA over Ethernet.
        Roce = "roce",
        /// AWS's Elastic Fabric Adapter.
        Efa = "efa",
        /// HPE Slingshot through libfabric.
        Slingshot = "slingshot",
        /// Sockets.
        Tcp = "tcp",
        /// Google's GPUDirect-TCPX.
        Tcpx = "tcpx",
        /// Google's GPUDirect-TCPXO.
        Tcpxo = "tcpxo",
        /// None: one node or one rack.
        None = "none",
    }
}

named! {
    /// Libraries with a model of their choices.
    Library {
        /// NVIDIA's library.
        Nccl = "nccl",
        /// AMD's library.
        Rccl = "rccl",
        /// Intel's library.
        OneCcl = "oneccl",
        /// MSCCL: its interpreter runs programs in place of NCCL's algorithms.
        Msccl = "msccl",
        /// PyTorch's library for CPUs; GPU buffers are staged in host memory.
        Gloo = "gloo",
        /// Open MPI; GPU buffers are staged in host memory.
        OpenMpi = "openmpi",
        /// Weft.
        Weft = "weft",
    }
}

named! {
    /// Algorithms as libraries name them.
    LibraryAlgorithm {
        /// Rings.
        Ring = "Ring",
        /// Two trees between nodes, chains inside.
        Tree = "Tree",
        /// NVSwitches reduce and multicast.
        Nvls = "NVLS",
        /// NVLS inside nodes, trees between them.
        NvlsTree = "NVLSTree",
        /// Network switches reduce; inside a node, every GPU handles a share.
        CollnetDirect = "CollnetDirect",
        /// Network switches reduce; inside a node, a chain.
        CollnetChain = "CollnetChain",
        /// Parallel aggregated trees, one for every rank's part.
        Pat = "PAT",
        /// Kernels that access all peers' registered buffers directly.
        Symmetric = "Symmetric",
        /// Messages between pairs of ranks.
        Direct = "Direct",
    }
}

/// Parses an algorithm; an empty name is `None`, the library's choice.
pub fn algorithm_from_name(name: &str) -> Result<Option<LibraryAlgorithm>, String> {
    if name.is_empty() {
        return Ok(None);
    }
    let typed = fold(name);
    let found = LibraryAlgorithm::ALL.iter().copied().find(|known| fold(known.name()) == typed);
    found.map(Some).ok_or_else(|| {
        let names = ["Ring", "Tree", "NVLS", "NVLSTree", "CollnetDirect", "CollnetChain", "PAT", "Symmetric"];
        let hint = did_you_mean(name, names.into_iter());
        format!("unknown algorithm `{name}`.{hint} Known algorithms: {}.", names.join(", "))
    })
}

/// Parses a protocol; an empty name is `None`, the library's choice.
pub fn protocol_from_name(name: &str) -> Result<Option<Protocol>, String> {
    match name.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "ll" => Ok(Some(Protocol::Ll)),
        "ll128" => Ok(Some(Protocol::Ll128)),
        "simple" => Ok(Some(Protocol::Simple)),
        _ => {
            let names = ["LL", "LL128", "Simple"];
            let hint = did_you_mean(name, names.into_iter());
            Err(format!("unknown protocol `{name}`.{hint} Known protocols: {}.", names.join(", ")))
        }
    }
}

/// A library's version, as far as the model depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Parses `2.22.3`; an empty text is `None`.
    pub fn parse(text: &str) -> Result<Option<Self>, &'static str> {
        if text.is_empty() {
            return Ok(None);
        }
        let mut parts = text.trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Some(Self { major, minor })),
            _ => Err("expected a version like 2.22.3, or nothing if it is unknown"),
        }
    }
}

/// How kernels are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launch {
    /// A process per GPU: all launch at once.
    ProcessPerGpu,
    /// One thread launches on all GPUs of the node in turn.
    OneThread,
}

/// GPUs in a rack that is one NVLink domain.
pub const RACK_GPUS: u32 = 72;

/// A machine, a library and the library's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// GPU model.
    pub gpu: Gpu,
    /// Links between the GPUs of a node.
    pub intra: Intra,
    /// GPUs per NVLink domain where that is a rack: [`RACK_GPUS`] by default.
    pub rack_gpus: u32,
    /// Rate of the links of the slowest GPU to others, relative to all links of its model.
    pub links_share: f64,
    /// PCIe generation of the slowest slot of a GPU.
    pub pcie_generation: u32,
    /// Its rate relative to a slot of 16 lanes of that generation.
    pub slot_share: f64,
    /// GPUs in use per node; on the largest node, where nodes differ.
    pub gpus_per_node: u32,
    /// Nodes in use.
    pub nodes: u32,
    /// GPUs that smaller nodes have less than the largest, in total.
    pub missing_gpus: u64,
    /// Network between the nodes.
    pub network: Network,
    /// NICs in use per node, on the node with the slowest; 0 without a network.
    pub nics_per_node: u32,
    /// Line rate of one of these NICs, on average.
    pub nic_gbits_per_second: f64,
    /// The library.
    pub library: Library,
    /// Its version; `None` is the newest known.
    pub version: Option<Version>,
    /// The algorithm that the library is set to use.
    pub algorithm: Option<LibraryAlgorithm>,
    /// The protocol that the library is set to use.
    pub protocol: Option<Protocol>,
    /// How kernels are launched, if known; see [`Setup::launch`].
    pub launch: Option<Launch>,
    /// Deviations from the usual machine.
    pub what_if: WhatIf,
}

impl Setup {
    /// Number of GPUs.
    pub fn ranks(&self) -> u32 {
        let all = u64::from(self.gpus_per_node) * u64::from(self.nodes);
        all.saturating_sub(self.missing_gpus) as u32
    }

    /// Line rate of the links of the slowest GPU to others, one way.
    pub fn port_line_gbytes_per_second(&self) -> f64 {
        self.gpu.port_line_gbytes_per_second() * self.links_share
    }

    /// How kernels are launched. By default, a process per GPU on several nodes, on modules since Hopper and with RCCL, where MPI starts
    /// the benchmark; one thread on a single older or PCIe node, where people start nccl-tests by hand.
    pub fn launch(&self) -> Launch {
        let by_hand = self.nodes == 1
            && self.library == Library::Nccl
            && (self.gpu.generation() < Generation::Hopper
                || matches!(self.intra, Intra::PciePeers | Intra::PcieHost));
        self.launch.unwrap_or(if by_hand { Launch::OneThread } else { Launch::ProcessPerGpu })
    }

    /// Groups of GPUs that reach each other without the network: nodes, or racks.
    pub fn islands(&self) -> u32 {
        if self.intra == Intra::Nvl72 { self.ranks().div_ceil(self.rack_gpus) } else { self.nodes }
    }

    /// Checks that the parts are consistent; an error says what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        let island = self.intra == Intra::Nvl72 && self.ranks() <= self.rack_gpus;
        if self.nodes > 1 && self.network == Network::None && !island {
            return Err("several nodes need a network between them; name one");
        }
        Ok(())
    }

    /// Two GPUs of a node, for tests.
    #[cfg(test)]
    pub(crate) fn pair(gpu: Gpu, intra: Intra) -> Self {
        Self {
            gpu,
            intra,
            rack_gpus: RACK_GPUS,
            links_share: 1.0,
            pcie_generation: 4,
            slot_share: 1.0,
            gpus_per_node: 2,
            nodes: 1,
            missing_gpus: 0,
            network: Network::None,
            nics_per_node: 0,
            nic_gbits_per_second: 0.0,
            library: Library::Nccl,
            version: None,
            algorithm: None,
            protocol: None,
            launch: None,
            what_if: WhatIf::default(),
        }
    }
}

impl Setup {
    /// Uses sockets instead of RDMA on the same NICs.
    pub fn over_sockets(mut self) -> Self {
        if self.network != Network::None {
            self.network = Network::Tcp;
        }
        self
    }

    /// Disables peer access: all GPU traffic goes through host memory, whatever links there are (`NCCL_P2P_DISABLE=1`). The nodes of a
    /// rack then communicate through their NICs.
    pub fn without_peer_access(mut self) -> Self {
        if self.intra != Intra::None && self.gpus_per_node > 1 {
            self.intra = Intra::PcieHost;
        }
        self
    }

    /// Uses `nics` NICs of the same kind per GPU.
    pub fn with_nics_per_gpu(mut self, nics: u32) -> Self {
        if self.network != Network::None {
            self.nics_per_node = self.gpus_per_node * nics.max(1);
        }
        self
    }
}
