//! What a measurement was taken on: as much of a machine as its wiring tells, the library, and what it was told to do.

use weftlink_plan::plan::Protocol;

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
}

named! {
    /// GPUs, by the names in files.
    Gpu {
        /// NVIDIA P100, SXM.
        P100 = "p100",
        /// NVIDIA P100, PCIe.
        P100Pcie = "p100-pcie",
        /// NVIDIA V100, SXM.
        V100 = "v100",
        /// NVIDIA A100, SXM.
        A100 = "a100",
        /// NVIDIA A100, PCIe.
        A100Pcie = "a100-pcie",
        /// NVIDIA H100, SXM.
        H100 = "h100",
        /// NVIDIA H100, PCIe.
        H100Pcie = "h100-pcie",
        /// NVIDIA H200, SXM.
        H200 = "h200",
        /// NVIDIA H20, SXM.
        H20 = "h20",
        /// NVIDIA GH200.
        Gh200 = "gh200",
        /// NVIDIA B200.
        B200 = "b200",
        /// NVIDIA B300.
        B300 = "b300",
        /// NVIDIA GB200.
        Gb200 = "gb200",
        /// NVIDIA GB300.
        Gb300 = "gb300",
        /// NVIDIA GB10, DGX Spark.
        Gb10 = "gb10",
        /// NVIDIA A10G.
        A10g = "a10g",
        /// NVIDIA RTX 2080 Ti.
        Rtx2080Ti = "rtx2080ti",
        /// NVIDIA RTX 3090.
        Rtx3090 = "rtx3090",
        /// NVIDIA RTX 4070 Ti Super.
        Rtx4070TiSuper = "rtx4070tis",
        /// NVIDIA RTX 4090.
        Rtx4090 = "rtx4090",
        /// NVIDIA RTX 5090.
        Rtx5090 = "rtx5090",
        /// NVIDIA RTX PRO 6000 Blackwell.
        RtxPro6000 = "rtxpro6000",
        /// AMD Instinct MI300X.
        Mi300x = "mi300x",
        /// AMD Instinct MI325X.
        Mi325x = "mi325x",
        /// AMD Instinct MI355X.
        Mi355x = "mi355x",
    }
}

/// What GPUs of one age have in common: kernels, copy engines, links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// P100.
    Pascal,
    /// V100, RTX 2080.
    Volta,
    /// A100, A10, RTX 3090.
    Ampere,
    /// H100, RTX 4090.
    Hopper,
    /// B200, RTX 5090.
    Blackwell,
    /// AMD's MI300 and MI350.
    Instinct,
}

impl Gpu {
    /// Its generation. RTX 4090 counts with Hopper and RTX 2080 with Volta, their contemporaries: tuners of libraries know
    /// no more rows than these.
    pub fn generation(self) -> Generation {
        match self {
            Gpu::P100 | Gpu::P100Pcie => Generation::Pascal,
            Gpu::V100 | Gpu::Rtx2080Ti => Generation::Volta,
            Gpu::A100 | Gpu::A100Pcie | Gpu::A10g | Gpu::Rtx3090 => Generation::Ampere,
            Gpu::H100 | Gpu::H100Pcie | Gpu::H200 | Gpu::H20 | Gpu::Gh200 => Generation::Hopper,
            Gpu::Rtx4070TiSuper | Gpu::Rtx4090 => Generation::Hopper,
            Gpu::B200 | Gpu::B300 | Gpu::Gb200 | Gpu::Gb300 | Gpu::Gb10 => Generation::Blackwell,
            Gpu::Rtx5090 | Gpu::RtxPro6000 => Generation::Blackwell,
            Gpu::Mi300x | Gpu::Mi325x | Gpu::Mi355x => Generation::Instinct,
        }
    }

    /// Whether it is a card in a slot, and not a module on a board that was laid out with its NIC beside it.
    pub fn is_card(self) -> bool {
        matches!(
            self,
            Gpu::P100Pcie | Gpu::A100Pcie | Gpu::H100Pcie | Gpu::A10g | Gpu::Rtx2080Ti | Gpu::Rtx3090
        ) || self.is_consumer()
    }

    /// Whether it is a card for desktops and workstations of the kind whose drivers send peers' data through bridges at full rate.
    pub fn is_consumer(self) -> bool {
        matches!(
            self,
            Gpu::Rtx2080Ti
                | Gpu::Rtx3090
                | Gpu::Rtx4070TiSuper
                | Gpu::Rtx4090
                | Gpu::Rtx5090
                | Gpu::RtxPro6000
        )
    }

    /// What all its links to other GPUs carry one way, as the vendor says; nothing where it has none.
    pub fn port_line_gbytes_per_second(self) -> f64 {
        match self {
            Gpu::P100 => 80.0,
            Gpu::V100 => 150.0,
            Gpu::A100 | Gpu::A100Pcie | Gpu::H100Pcie => 300.0,
            Gpu::H100 | Gpu::H200 | Gpu::H20 | Gpu::Gh200 => 450.0,
            Gpu::B200 | Gpu::B300 | Gpu::Gb200 | Gpu::Gb300 => 900.0,
            Gpu::Rtx2080Ti => 50.0,
            Gpu::Rtx3090 => 56.25,
            Gpu::Mi300x | Gpu::Mi325x => 7.0 * 64.0,
            Gpu::Mi355x => 7.0 * 76.8,
            _ => 0.0,
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
        /// Everybody to everybody, or to a neighbour.
        Direct = "Direct",
    }
}

/// An algorithm that a row names; nothing where the library chose.
pub fn algorithm_from_name(name: &str) -> Result<Option<LibraryAlgorithm>, &'static str> {
    if name.is_empty() {
        return Ok(None);
    }
    let found = LibraryAlgorithm::ALL.iter().copied().find(|known| known.name().eq_ignore_ascii_case(name));
    found.map(Some).ok_or("known are Ring, Tree, NVLS, NVLSTree, CollnetDirect, CollnetChain, or nothing")
}

/// A protocol that a row names; nothing where the library chose.
pub fn protocol_from_name(name: &str) -> Result<Option<Protocol>, &'static str> {
    match name.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "ll" => Ok(Some(Protocol::Ll)),
        "ll128" => Ok(Some(Protocol::Ll128)),
        "simple" => Ok(Some(Protocol::Simple)),
        _ => Err("known are LL, LL128, Simple, or nothing"),
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

/// A machine, a library, and what it was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The GPUs.
    pub gpu: Gpu,
    /// What connects those of a node.
    pub intra: Intra,
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

    /// Whether its parts fit together; otherwise what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        let island = self.intra == Intra::Nvl72 && self.ranks() <= 72;
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
        }
    }
}
