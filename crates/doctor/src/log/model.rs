//! What a log says, in the words of NCCL: processes, communicators and their ranks, the wires between them, warnings and settings.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::topology::Topology;

/// A line that showed something: its number, from 1, and its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// The number.
    pub line: usize,
    /// The text, cut if it is long.
    pub text: String,
}

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Log {
    /// Lines that were read.
    pub lines: usize,
    /// Messages of the library among them.
    pub messages: usize,
    /// Versions of the library, in the order in which they occur.
    pub versions: Vec<Version>,
    /// Processes, in the order in which they occur.
    pub processes: Vec<Process>,
    /// Ranks of communicators: a process has one for each communicator and GPU.
    pub ranks: Vec<Rank>,
    /// Communicators.
    pub communicators: Vec<Communicator>,
    /// Warnings of the library.
    pub warnings: Vec<Warning>,
    /// Settings that the library reported, such as environment variables.
    pub settings: Vec<Setting>,
    /// What the library detected of the machine.
    pub topologies: Vec<Topology>,
    /// Algorithm and protocol by call and size, from `NCCL_DEBUG_SUBSYS=TUNING`.
    pub choices: Vec<Choice>,
    /// Timeouts of PyTorch's watchdog.
    pub timeouts: Vec<Timeout>,
    /// Exceptions that name an error of the library, such as `ncclSystemError`.
    pub exceptions: Vec<Exception>,
    /// Errors of GPUs from the kernel's log.
    pub xids: Vec<Xid>,
    /// What was left out because it is too much.
    pub notes: Vec<String>,
}

/// A version of the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Version {
    /// `NCCL` or `RCCL`.
    pub library: &'static str,
    /// As printed: `2.21.5+cuda12.4`.
    pub text: String,
    /// The process that printed it, if its line says that: an index into `processes`.
    pub process: Option<usize>,
    /// The line.
    pub seen: Seen,
}

/// A network interface of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name: `eth0`.
    pub name: String,
    /// Its address: `10.0.0.1`.
    pub address: String,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Process {
    /// Its host.
    pub host: String,
    /// Its number.
    pub pid: u32,
    /// The CUDA version that the driver supports, as NCCL prints it: 12020 for 12.2.
    pub cuda_driver: Option<u32>,
    /// The interface of the rendezvous.
    pub bootstrap: Option<(Interface, Seen)>,
    /// The interface by which InfiniBand connections are set up.
    pub out_of_band: Option<(Interface, Seen)>,
    /// The interfaces of the socket transport.
    pub sockets: Vec<Interface>,
    /// The line that names them.
    pub sockets_seen: Option<Seen>,
    /// NICs of the InfiniBand transport: `mlx5_0:1/IB`.
    pub nics: Vec<String>,
    /// Why there are no InfiniBand devices.
    pub no_nics: Option<Seen>,
    /// The network that was chosen: `IB`, `Socket`, `AWS Libfabric`.
    pub network: Option<(String, Seen)>,
    /// What loading plugins said.
    pub plugins: Vec<Seen>,
    /// GPUDirect RDMA by NIC, on or off, with the line.
    pub gpudirect: BTreeMap<String, (bool, Seen)>,
    /// Whether switches can multicast (NVLS), by device.
    pub multicast: BTreeMap<i32, bool>,
    /// Calls to connect that failed and were repeated: how many, and the first.
    pub retries: Option<(usize, Seen)>,
    /// Pairs of GPUs between which the driver refuses peer access.
    pub refused: Vec<Seen>,
}

/// How far a rank came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It began.
    #[default]
    Started,
    /// All ranks have met, and the rank has detected its machine.
    Topology,
    /// It has computed rings and trees.
    Graphs,
    /// It is connecting to its neighbours.
    Connecting,
    /// Its rings are connected.
    Rings,
    /// Its trees are connected.
    Trees,
    /// It can be used.
    Complete,
    /// It was destroyed.
    Destroyed,
    /// It was aborted.
    Aborted,
}

impl Stage {
    /// In words, after `rank 3 `.
    pub fn words(self) -> &'static str {
        match self {
            Self::Started => "stopped at the rendezvous",
            Self::Topology => "stopped between the detection of the machine and the search for rings",
            Self::Graphs => "stopped before the first connection",
            Self::Connecting => "stopped while connecting to neighbours",
            Self::Rings => "stopped between rings and trees",
            Self::Trees => "stopped after the trees were connected",
            Self::Complete => "finished",
            Self::Destroyed => "was destroyed",
            Self::Aborted => "was aborted",
        }
    }
}

/// A rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rank {
    /// Its process: an index into `processes`.
    pub process: usize,
    /// The thread that began it; 0 where the line lacks it.
    pub thread: u32,
    /// Its communicator: an index into `communicators`; none if its number is unknown.
    pub communicator: Option<usize>,
    /// Its number.
    pub rank: Option<u32>,
    /// Ranks of the communicator.
    pub of: Option<u32>,
    /// The CUDA device.
    pub device: Option<i32>,
    /// NVML's number of the device.
    pub nvml: Option<i32>,
    /// The device's PCI address, as printed: `1b000`.
    pub bus: Option<String>,
    /// The communicator's address in its process.
    pub address: Option<String>,
    /// The communicator's id, or what it was split from: the same on all ranks.
    pub id: Option<String>,
    /// Hosts of the communicator.
    pub nodes: Option<u32>,
    /// How far it came.
    pub stage: Stage,
    /// The line that shows that.
    pub seen: Seen,
    /// Neighbours in each ring, by channel: previous and next.
    pub rings: BTreeMap<u32, (u32, u32)>,
    /// Whole rings, by channel, as rank 0 prints them; not those that the line has no room for.
    pub orders: BTreeMap<u32, Vec<u32>>,
    /// Places in trees, by channel.
    pub trees: BTreeMap<u32, TreePlace>,
    /// Channels of collectives, of NVLS, and of point-to-point calls.
    pub channels: Option<(Channels, Seen)>,
    /// Connections.
    pub edges: Vec<Edge>,
    /// Collectives called, as far as the log shows them.
    pub calls: u64,
    /// The last of them.
    pub last: VecDeque<Call>,
}

/// Numbers of channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// Of collectives.
    pub collectives: u32,
    /// Of CollNet.
    pub collnet: u32,
    /// Of NVLS.
    pub nvls: u32,
    /// Of point-to-point calls.
    pub point_to_point: u32,
}

/// A rank's place in a tree; None above the root and where there is no child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TreePlace {
    /// The parent.
    pub up: Option<u32>,
    /// The children.
    pub down: Vec<u32>,
}

/// A way that data takes between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Transport {
    /// The kind.
    pub kind: TransportKind,
    /// As printed: `P2P/CUMEM/read`.
    pub text: String,
    /// Whether the NIC accesses the GPU's memory.
    pub gpudirect: bool,
}

/// A kind of transport.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// GPUs access each other's memory, over NVLink or PCIe.
    Peer,
    /// Through host memory.
    SharedMemory,
    /// Over a network, by its name: `IB`, `Socket`.
    Network(String),
    /// Reductions in the network.
    CollNet(String),
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// The channel.
    pub channel: u32,
    /// The sending rank.
    pub source: u32,
    /// The receiving rank.
    pub target: u32,
    /// The transport.
    pub transport: Transport,
    /// Whether it was connected before the rings were complete.
    pub is_ring: bool,
    /// The line's number.
    pub line: usize,
}

/// A collective that a rank called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// How many collectives the rank had called before, as far as the log shows them.
    pub index: u64,
    /// NCCL's number: `opCount`.
    pub number: u64,
    /// `AllReduce`.
    pub name: String,
    /// Elements.
    pub count: u64,
    /// NCCL's number of the element type.
    pub datatype: u32,
    /// The line's number.
    pub line: usize,
}

/// Ranks that communicate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Communicator {
    /// Its id, if the library printed one.
    pub id: Option<String>,
    /// Its number of ranks.
    pub size: u32,
    /// Its ranks in the log: indices into `ranks`, in the order of their numbers.
    pub ranks: Vec<usize>,
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The process: an index into `processes`.
    pub process: usize,
    /// The CUDA device.
    pub device: Option<i32>,
    /// Where in the source: `transport/net_ib.cc:101`.
    pub place: String,
    /// The message.
    pub text: String,
    /// The line.
    pub seen: Seen,
    /// Where the result was passed on, from the inside out: `transport/shm.cc:114 -> 2`.
    pub context: Vec<Seen>,
}

/// A setting that the library reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The variable: `NCCL_IB_HCA`.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The processes that reported it: indices into `processes`.
    pub processes: Vec<usize>,
    /// The first line.
    pub seen: Seen,
}

/// The algorithm of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Choice {
    /// `AllReduce`; empty where the version does not print it.
    pub call: String,
    /// Bytes.
    pub bytes: u64,
    /// `Ring`, `Tree`, `NVLS`.
    pub algorithm: String,
    /// `LL`, `LL128`, `Simple`.
    pub protocol: String,
    /// The line's number.
    pub line: usize,
}

/// What PyTorch's watchdog said of one rank and process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeout {
    /// The rank: that of the job where a prefix has it, otherwise that of the group.
    pub rank: u32,
    /// The process group.
    pub group: String,
    /// The work that timed out.
    pub work: Option<u64>,
    /// Its operation: `ALLREDUCE`.
    pub operation: String,
    /// Its number of input elements.
    pub elements: Option<u64>,
    /// The last work that was enqueued.
    pub enqueued: Option<u64>,
    /// The last work that was completed.
    pub completed: Option<u64>,
    /// The first line.
    pub seen: Seen,
}

/// An exception that names an error of the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exception {
    /// The error: `ncclSystemError`.
    pub name: &'static str,
    /// The line.
    pub seen: Seen,
}

/// An error of a GPU from the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Xid {
    /// The number.
    pub code: u32,
    /// The GPU's PCI address.
    pub bus: String,
    /// The line.
    pub seen: Seen,
}

impl Log {
    /// The host of a rank.
    pub fn host_of(&self, rank: &Rank) -> &str {
        self.processes.get(rank.process).map_or("", |process| process.host.as_str())
    }

    /// The hosts, sorted.
    pub fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self
            .processes
            .iter()
            .map(|process| process.host.as_str())
            .filter(|host| !host.is_empty())
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// The ranks of a communicator, in the order of their numbers.
    pub fn ranks_of<'l>(&'l self, communicator: &'l Communicator) -> impl Iterator<Item = &'l Rank> {
        communicator.ranks.iter().filter_map(|index| self.ranks.get(*index))
    }

    /// The communicator with the most ranks, the first of several: the world of most jobs.
    pub fn largest(&self) -> Option<&Communicator> {
        self.communicators.iter().rev().max_by_key(|communicator| communicator.size)
    }

    /// Whether ranks are on several hosts; unknown if no line says how many hosts there are.
    pub fn is_distributed(&self) -> Option<bool> {
        if self.hosts().len() > 1 || self.ranks.iter().any(|rank| rank.nodes.is_some_and(|nodes| nodes > 1)) {
            return Some(true);
        }
        let mut edges = self.ranks.iter().flat_map(|rank| &rank.edges);
        let is_network = |edge: &Edge| {
            matches!(edge.transport.kind, TransportKind::Network(_) | TransportKind::CollNet(_))
        };
        if self.ranks.iter().any(|rank| rank.nodes == Some(1)) {
            return Some(false);
        }
        if edges.any(is_network) {
            return Some(true);
        }
        let is_whole = |communicator: &Communicator| communicator.ranks.len() == communicator.size as usize;
        let is_known = !self.communicators.is_empty() && self.communicators.iter().all(is_whole);
        is_known.then_some(false)
    }
}
