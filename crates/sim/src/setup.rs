//! What a measurement was taken on: as much of a machine as its wiring tells, the library, and what it was told to do.

use std::fmt;

use weftlink_fabric::nearest::{did_you_mean, fold};
use weftlink_plan::plan::Protocol;

use crate::gpu::{Generation, Gpu};
use crate::what_if::WhatIf;

/// Declares an enum whose values have names in files.
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

            /// The one with that name.
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
    /// What is measured: collectives as nccl-tests runs them, and copies.
    Operation {
        /// Every rank gets the sum of all buffers.
        AllReduce = "all_reduce",
        /// Every rank gets all parts; the size is that of all together.
        AllGather = "all_gather",
        /// Every rank gets its part of the sum; the size is that of all together.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the sum.
        Reduce = "reduce",
        /// Every rank gets a part of every rank's buffer.
        AllToAll = "alltoall",
        /// Every rank sends its buffer to the next and receives that of the one before.
        SendReceive = "sendrecv",
        /// A copy from GPU to GPU by their copy engines.
        CopyOneWay = "p2p_unidir_bw",
        /// Two of them at once, there and back; the bandwidth is their sum.
        CopyBothWays = "p2p_bidir_bw",
    }
}

impl Operation {
    /// Whether copy engines do it, and no library.
    pub fn is_copy(self) -> bool {
        matches!(self, Operation::CopyOneWay | Operation::CopyBothWays)
    }

    /// What algbw is multiplied by to get busbw, as nccl-tests has it.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        match self {
            Operation::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }
}

named! {
    /// What connects the GPUs of a node.
    Intra {
        /// NVLinks to switches.
        NvSwitch = "nvswitch",
        /// NVLinks from every GPU to every other.
        NvLinkMesh = "nvlink-mesh",
        /// The wiring of a DGX-1: two quads, some links double.
        CubeMesh = "cube-mesh",
        /// NVLinks between pairs.
        NvLinkBridge = "nvlink-bridge",
        /// NVLinks to switches of a rack: nodes are not the domain.
        Nvl72 = "nvl72",
        /// AMD's links from every GPU to every other.
        Xgmi = "xgmi",
        /// PCIe, peers reach each other.
        PciePeers = "pcie-p2p",
        /// PCIe, through host memory.
        PcieHost = "pcie-host",
        /// One GPU a node.
        None = "none",
    }
}

named! {
    /// What connects nodes.
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
        /// Nothing: one node, or one rack.
        None = "none",
    }
}

named! {
    /// Libraries whose choices are known.
    Library {
        /// NVIDIA's.
        Nccl = "nccl",
        /// AMD's.
        Rccl = "rccl",
        /// Intel's.
        OneCcl = "oneccl",
        /// Programs that MSCCL's interpreter runs in NCCL's place.
        Msccl = "msccl",
        /// PyTorch's for CPUs; GPUs' buffers are copied to the host first.
        Gloo = "gloo",
        /// Open MPI; GPUs' buffers are copied to the host first.
        OpenMpi = "openmpi",
        /// This one.
        Weft = "weft",
    }
}

named! {
    /// Algorithms as libraries name them.
    LibraryAlgorithm {
        /// Around rings.
        Ring = "Ring",
        /// Up and down two trees; chains inside nodes.
        Tree = "Tree",
        /// Switches of a domain sum and multicast.
        Nvls = "NVLS",
        /// The same inside, trees between.
        NvlsTree = "NVLSTree",
        /// Switches of the network sum; inside, every GPU takes its share.
        CollnetDirect = "CollnetDirect",
        /// Switches of the network sum; inside, a chain.
        CollnetChain = "CollnetChain",
        /// A tree for every rank's part, all of them at once.
        Pat = "PAT",
        /// Kernels that reach into the buffers of all others, which were registered for it.
        Symmetric = "Symmetric",
        /// Everybody to everybody, or to a neighbour.
        Direct = "Direct",
    }
}

/// An algorithm that a row names; nothing where the library chose.
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

/// A protocol that a row names; nothing where the library chose.
pub fn protocol_from_name(name: &str) -> Result<Option<Protocol>, String> {
    match name.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "ll" => Ok(Some(Protocol::Ll)),
        "ll128" => Ok(Some(Protocol::Ll128)),
        "simple" => Ok(Some(Protocol::Simple)),
        _ => Err(format!("unknown protocol `{name}`. Known protocols: LL, LL128, Simple.")),
    }
}

/// A library's version, as far as behaviour depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Before the first dot.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// From `2.22.3`; nothing where nothing is said.
    pub fn parse(text: &str) -> Result<Option<Self>, &'static str> {
        if text.is_empty() {
            return Ok(None);
        }
        let mut parts = text.trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Some(Self { major, minor })),
            _ => Err("it is like 2.22.3, or empty where it is not known"),
        }
    }
}

/// Who starts the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launch {
    /// A process for each GPU: all start at once.
    ProcessPerGpu,
    /// One thread for all GPUs of the node, one after the other.
    OneThread,
}

/// GPUs of a rack that is one domain.
pub const RACK_GPUS: u32 = 72;

/// A machine, a library, and what it was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The GPUs.
    pub gpu: Gpu,
    /// What connects those of a node.
    pub intra: Intra,
    /// GPUs of one domain where that is a rack: [`RACK_GPUS`] unless said otherwise.
    pub rack_gpus: u32,
    /// Of the slots.
    pub pcie_generation: u32,
    /// GPUs in use.
    pub gpus_per_node: u32,
    /// Nodes in use.
    pub nodes: u32,
    /// What connects them.
    pub network: Network,
    /// NICs in use, none where there is no network.
    pub nics_per_node: u32,
    /// Of one NIC.
    pub nic_gbits_per_second: f64,
    /// The library.
    pub library: Library,
    /// Its version; the newest where it is not said.
    pub version: Option<Version>,
    /// What it was told to take.
    pub algorithm: Option<LibraryAlgorithm>,
    /// What it was told to take.
    pub protocol: Option<Protocol>,
    /// Who starts the kernels, where it is known; see [`Setup::launch`].
    pub launch: Option<Launch>,
    /// What is not as it usually is.
    pub what_if: WhatIf,
}

impl Setup {
    /// GPUs altogether.
    pub fn ranks(&self) -> u32 {
        self.gpus_per_node * self.nodes
    }

    /// Who starts the kernels. Where nobody says it: a process per GPU across nodes, on modules since Hopper, and with RCCL,
    /// since those are started by MPI; one thread on a single older or PCIe node, since there nccl-tests is started by hand.
    pub fn launch(&self) -> Launch {
        let by_hand = self.nodes == 1
            && self.library == Library::Nccl
            && (self.gpu.generation() < Generation::Hopper
                || matches!(self.intra, Intra::PciePeers | Intra::PcieHost));
        self.launch.unwrap_or(if by_hand { Launch::OneThread } else { Launch::ProcessPerGpu })
    }

    /// Whether a call's data ends on other rails than it begins on: between everybody, and around rings over meshes and racks. How rails
    /// are joined few descriptions say, so a network that joins all NICs is the better ground for it.
    pub fn crosses_rails(&self, operation: Operation) -> bool {
        let messages = matches!(operation, Operation::AllToAll | Operation::SendReceive);
        let meshed = matches!(self.intra, Intra::Xgmi | Intra::NvLinkMesh | Intra::Nvl72);
        self.nodes > 1 && (messages || meshed)
    }

    /// Whether its parts fit together; otherwise what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        let island = self.intra == Intra::Nvl72 && self.ranks() <= self.rack_gpus;
        if self.nodes > 1 && self.network == Network::None && !island {
            return Err("there are several nodes and no network between them; say which");
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
            pcie_generation: 4,
            gpus_per_node: 2,
            nodes: 1,
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
    /// The same NICs with sockets instead of RDMA.
    pub fn over_sockets(mut self) -> Self {
        if self.network != Network::None {
            self.network = Network::Tcp;
        }
        self
    }

    /// The same GPUs that do not reach each other: what they exchange goes through host memory, whatever links there are
    /// (`NCCL_P2P_DISABLE=1`). Links of a rack are no longer of use, so its nodes need their NICs.
    pub fn without_peer_access(mut self) -> Self {
        if self.intra != Intra::None && self.gpus_per_node > 1 {
            self.intra = Intra::PcieHost;
        }
        self
    }

    /// So many NICs of the same kind for each GPU.
    pub fn with_nics_per_gpu(mut self, nics: u32) -> Self {
        if self.network != Network::None {
            self.nics_per_node = self.gpus_per_node * nics.max(1);
        }
        self
    }
}
