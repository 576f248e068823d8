//! CPU libraries on the cores of hosts: Gloo, Open MPI and Weft, with a core per rank.
//!
//! Each library chooses by its own tables; the [engine] runs the choice as a plan on a fabric of cores, shared host memory and NICs. A
//! core's link models the core's copying: all data that a rank sends or reads crosses it, so a core does one thing at a time. Benchmarks
//! make calls back to back, and a call may begin on one rank before the previous call has ended on another: the predicted time is the time
//! per call.
//!
//! Deliberately absent: more ranks than cores, where the scheduler determines the time.

mod binomial;
mod choose;
mod costs;
mod open_mpi;
pub mod runs;
mod wiring;

use thiserror::Error;
use weftlink_fabric::{FabricError, Paths};
use weftlink_plan::choose::measured::Memory;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Collective, Layout, Recipe};

use crate::constants::Constants;
use crate::engine::{self, Load, SimError};
use crate::setup::{Library, Network, Operation};
use costs::HostCosts;

/// Number of calls after the first over which the time per call is averaged.
const CALLS: u32 = 4;
/// Maximum number of ranks: each message is simulated.
const RANKS_MAX: u32 = 1 << 10;

/// Ranks on the cores of hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    /// Number of hosts.
    pub hosts: u32,
    /// Cores per host that ranks may use.
    pub cores_per_host: u32,
    /// Ranks per host, with a core each.
    pub ranks_per_host: u32,
    /// Network between the hosts.
    pub network: Network,
    /// NICs per host.
    pub nics_per_host: u32,
    /// Line rate of one NIC.
    pub nic_gbits_per_second: f64,
    /// Gloo, Open MPI or Weft.
    pub library: Library,
    /// The memory of Weft's buffers; other libraries use ordinary memory.
    pub memory: Memory,
    /// Size of a core's private cache.
    pub cache_bytes: u64,
}

impl Hosts {
    /// One host.
    pub fn one(library: Library, cores: u32, ranks: u32) -> Self {
        Self {
            hosts: 1,
            cores_per_host: cores,
            ranks_per_host: ranks,
            network: Network::None,
            nics_per_host: 0,
            nic_gbits_per_second: 0.0,
            library,
            memory: Memory::Readable,
            cache_bytes: 2 << 20,
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    fn check(&self) -> Result<(), HostError> {
        let (ranks, cores) = (self.ranks_per_host, self.cores_per_host);
        if ranks > cores {
            return Err(HostError::Oversubscribed { ranks, cores });
        }
        if self.hosts > 1 && (self.network == Network::None || self.nics_per_host == 0) {
            return Err(HostError::NoNetwork { hosts: self.hosts });
        }
        if !(2..=RANKS_MAX).contains(&self.ranks()) {
            return Err(HostError::Ranks { ranks: self.ranks() });
        }
        if !matches!(self.library, Library::Gloo | Library::OpenMpi | Library::Weft) {
            return Err(HostError::Library { library: self.library.name() });
        }
        Ok(())
    }
}

/// Why a call between cores cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// More ranks than cores.
    #[error(
        "{ranks} ranks on {cores} cores of a host are not predicted, because the scheduler determines the time; use at most one rank per \
         core"
    )]
    Oversubscribed {
        /// Ranks per host.
        ranks: u32,
        /// Cores per host.
        cores: u32,
    },
    /// No network connects the hosts.
    #[error("no network connects the {hosts} hosts; name one")]
    NoNetwork {
        /// Number of hosts.
        hosts: u32,
    },
    /// Too few or too many ranks.
    #[error("calls of {ranks} ranks between cores are not predicted; use 2 to {RANKS_MAX}")]
    Ranks {
        /// Number of ranks.
        ranks: u32,
    },
    /// The library does not run on cores.
    #[error("{library} does not run between cores; gloo, openmpi and weft do")]
    Library {
        /// Name of the library.
        library: &'static str,
    },
    /// The library has no such call.
    #[error("the model of {library} has no {operation}")]
    Unsupported {
        /// Name of the library.
        library: &'static str,
        /// Name of the operation.
        operation: &'static str,
    },
    /// The fabric cannot be built.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The simulation failed.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// A predicted call between cores.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCall {
    /// The library's algorithm.
    pub algorithm: Algorithm,
    /// The protocol of its messages.
    pub protocol: Protocol,
    /// Time per call, in a series of calls.
    pub time: Picoseconds,
}

/// The library's choice for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    algorithm: Algorithm,
    protocol: Protocol,
    /// Largest message; longer ones are split.
    message_bytes_max: u64,
    /// Minimum number of parts of every chunk.
    parts_min: u32,
}

/// Executes a call. `bytes` is counted as in nccl-tests.
pub fn execute(
    constants: &Constants,
    hosts: &Hosts,
    operation: Operation,
    bytes: u64,
) -> Result<HostCall, HostError> {
    hosts.check()?;
    let no_way = || HostError::Unsupported { library: hosts.library.name(), operation: operation.name() };
    let collective = collective(operation, hosts.ranks()).ok_or_else(no_way)?;
    let chosen = choose::choose(hosts, &collective, bytes).ok_or_else(no_way)?;
    let fabric = wiring::fabric(hosts)?;
    let paths = Paths::of(&fabric);
    let layout = layout(hosts);
    let recipe = match (hosts.library, chosen.algorithm, &collective) {
        (Library::OpenMpi | Library::Gloo, Algorithm::Tree, Collective::Broadcast { .. }) => {
            binomial::broadcast(hosts.ranks())
        }
        (Library::OpenMpi, Algorithm::Tree, Collective::Reduce { .. }) => binomial::reduce(hosts.ranks()),
        _ => chosen.algorithm.recipe(&collective, &layout).map_err(|_| no_way())?,
    };
    let recipe = match chosen.protocol {
        Protocol::Simple => recipe,
        protocol => recipe.with_protocol(protocol).with_depth_of(hosts.ranks()),
    };
    let (chunk, tiles) = split(&chosen, &recipe, bytes);
    let chunks_per_message = chunks_per_message(&chosen, &recipe, hosts.ranks());
    let costs = HostCosts::new(constants, hosts, &chosen, (chunk, chunks_per_message), (operation, bytes));
    let plan = recipe.partial(hosts.ranks());
    let run = |calls: u32| {
        let load = Load { bytes: bytes * u64::from(calls), tiles: tiles * calls };
        engine::run(&plan, &paths, load, &costs).map(|outcome| outcome.time.0)
    };
    // A benchmark of messages waits for each before it sends the next; other calls overlap.
    let time = match operation {
        Operation::SendReceive => run(1)?,
        _ => (run(1 + CALLS)? - run(1)?) / u64::from(CALLS),
    };
    let time = Picoseconds(time) + Picoseconds::from_us(costs.call_us());
    Ok(HostCall { algorithm: chosen.algorithm, protocol: chosen.protocol, time })
}

/// Size and number of the parts of a chunk.
fn split(chosen: &Choice, recipe: &Recipe<'_>, bytes: u64) -> (f64, u32) {
    let chunks = recipe.outline().chunks;
    let chunk = bytes as f64 / f64::from(chunks.input.max(chunks.output).max(1));
    let tiles = (chunk / chosen.message_bytes_max as f64).ceil().clamp(1.0, 4096.0) as u32;
    let tiles = tiles.max(chosen.parts_min);
    (chunk / f64::from(tiles), tiles)
}

/// Number of chunks in a message of the library, where the plan sends each chunk separately: recursive doubling sends the chunks of a
/// round together.
fn chunks_per_message(chosen: &Choice, recipe: &Recipe<'_>, ranks: u32) -> f64 {
    let doubling = matches!(
        chosen.algorithm,
        Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling | Algorithm::Bruck
    );
    let chunks = recipe.outline().chunks;
    if !doubling || chunks.input.max(chunks.output) == 1 {
        return 1.0;
    }
    f64::from(ranks - 1) / f64::from(ranks.next_power_of_two().ilog2())
}

/// The collective of an operation; `None` for copies.
pub(crate) fn collective(operation: Operation, ranks: u32) -> Option<Collective> {
    Some(match operation {
        Operation::AllReduce => Collective::AllReduce,
        Operation::AllGather => Collective::AllGather,
        Operation::ReduceScatter => Collective::ReduceScatter,
        Operation::Broadcast => Collective::Broadcast { root: 0 },
        Operation::Reduce => Collective::Reduce { root: 0 },
        Operation::AllToAll => Collective::AllToAll,
        Operation::SendReceive => {
            Collective::SendReceive { messages: (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect() }
        }
        Operation::Gather => Collective::Gather { root: 0 },
        Operation::Scatter => Collective::Scatter { root: 0 },
        Operation::Scan => Collective::Scan,
        Operation::ExclusiveScan => Collective::ExclusiveScan,
        Operation::Neighbours => Collective::Neighbours { torus: [1, 1, ranks] },
        Operation::Barrier => Collective::Barrier,
        Operation::CopyOneWay | Operation::CopyBothWays => return None,
    })
}

/// The layout, with hosts as islands.
fn layout(hosts: &Hosts) -> Layout {
    Layout::grid(hosts.hosts, hosts.ranks_per_host, 1)
}
