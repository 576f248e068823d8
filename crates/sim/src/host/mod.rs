//! Libraries on the cores of hosts: Gloo, Open MPI and Weft, a rank a core.
//!
//! What a library chooses, by its own tables, is run as a plan by the [engine] on a fabric of cores, the memory that all of a
//! host share, and NICs. A core's link is what the core copies: whatever a rank sends or reads passes it, so work of one core is never done
//! at once. Benchmarks make one call after the other, and a call may begin on one rank before the one before has ended on another: what is
//! told is how long a call takes among many.
//!
//! Deliberately absent: more ranks than cores, where the scheduler decides.

mod binomial;
mod charges;
mod choose;
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
use charges::Charged;

/// Calls that follow the first one, over which the time of a call is taken.
const CALLS: u32 = 4;
/// Ranks of a host whose messages are charged one by one; more are refused.
const RANKS_MAX: u32 = 1 << 10;

/// Ranks on the cores of hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    /// How many hosts.
    pub hosts: u32,
    /// Cores of each that ranks may use.
    pub cores_per_host: u32,
    /// Ranks of each, a core each.
    pub ranks_per_host: u32,
    /// What connects them.
    pub network: Network,
    /// NICs of each.
    pub nics_per_host: u32,
    /// Of one NIC.
    pub nic_gbits_per_second: f64,
    /// Gloo, Open MPI or Weft.
    pub library: Library,
    /// What Weft's buffers are; others know ordinary memory only.
    pub memory: Memory,
    /// Bytes of a core's own cache.
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

    /// All ranks.
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    fn check(&self) -> Result<(), HostError> {
        let (ranks, cores) = (self.ranks_per_host, self.cores_per_host);
        if ranks > cores {
            return Err(HostError::Crowded { ranks, cores });
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

/// Nothing can be foretold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// More ranks than cores.
    #[error(
        "{ranks} ranks share {cores} cores of a host: then the scheduler decides how long a call takes, which is not foretold; take at most a \
         rank a core"
    )]
    Crowded {
        /// Ranks of a host.
        ranks: u32,
        /// Its cores.
        cores: u32,
    },
    /// Hosts that nothing joins.
    #[error("there are {hosts} hosts and no network between them; say which")]
    NoNetwork {
        /// How many.
        hosts: u32,
    },
    /// Too few, or too many.
    #[error("{ranks} ranks: calls of 2 to {RANKS_MAX} are foretold between cores")]
    Ranks {
        /// How many.
        ranks: u32,
    },
    /// Not one for cores.
    #[error("{library} has no ranks on cores; gloo, openmpi and weft do")]
    Library {
        /// Its name.
        library: &'static str,
    },
    /// The library has no such call.
    #[error("{library} has no {operation} that is known")]
    NoWay {
        /// Its name.
        library: &'static str,
        /// The call's.
        operation: &'static str,
    },
    /// There is no such fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// It does not run.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// A call between cores.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCall {
    /// The algorithm that the library takes.
    pub algorithm: Algorithm,
    /// The protocol of its messages.
    pub protocol: Protocol,
    /// How long a call takes among many.
    pub time: Picoseconds,
}

/// What is chosen for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Chosen {
    algorithm: Algorithm,
    protocol: Protocol,
    /// Bytes of the longest message; longer ones are cut.
    message_bytes_max: u64,
    /// Parts that every chunk is cut into at least.
    parts_min: u32,
}

/// Executes a call of so many bytes, as nccl-tests counts them.
pub fn execute(
    constants: &Constants,
    hosts: &Hosts,
    operation: Operation,
    bytes: u64,
) -> Result<HostCall, HostError> {
    hosts.check()?;
    let no_way = || HostError::NoWay { library: hosts.library.name(), operation: operation.name() };
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
    let (chunk, tiles) = cut(&chosen, &recipe, bytes);
    let together = together(&chosen, &recipe, hosts.ranks());
    let charged = Charged::new(constants, hosts, &chosen, (chunk, together), (operation, bytes));
    let plan = recipe.partial(hosts.ranks());
    let run = |calls: u32| {
        let load = Load { bytes: bytes * u64::from(calls), tiles: tiles * calls };
        engine::run(&plan, &paths, load, &charged).map(|outcome| outcome.time.0)
    };
    // A message is waited for before the next is sent; other calls follow each other.
    let time = match operation {
        Operation::SendReceive => run(1)?,
        _ => (run(1 + CALLS)? - run(1)?) / u64::from(CALLS),
    };
    let time = Picoseconds(time + (charged.call_us() * 1e6).round() as u64);
    Ok(HostCall { algorithm: chosen.algorithm, protocol: chosen.protocol, time })
}

/// Bytes of a chunk's part, and how many of them follow one another.
fn cut(chosen: &Chosen, recipe: &Recipe<'_>, bytes: u64) -> (f64, u32) {
    let chunks = recipe.outline().chunks;
    let chunk = bytes as f64 / f64::from(chunks.input.max(chunks.output).max(1));
    let tiles = (chunk / chosen.message_bytes_max as f64).ceil().clamp(1.0, 4096.0) as u32;
    let tiles = tiles.max(chosen.parts_min);
    (chunk / f64::from(tiles), tiles)
}

/// Chunks that a message of the library carries, where a plan passes each by itself: those of a round of doubling distances go together.
fn together(chosen: &Chosen, recipe: &Recipe<'_>, ranks: u32) -> f64 {
    let doubling = matches!(
        chosen.algorithm,
        Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling | Algorithm::Bruck
    );
    let chunks = recipe.outline().chunks;
    if !doubling || chunks.input.max(chunks.output) == 1 {
        return 1.0;
    }
    f64::from(ranks - 1) / f64::from(ranks).log2().ceil()
}

/// A call as a collective; nothing for copies.
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
        Operation::CopyOneWay | Operation::CopyBothWays => return None,
    })
}

/// Hosts as islands.
fn layout(hosts: &Hosts) -> Layout {
    Layout::grid(hosts.hosts, hosts.ranks_per_host, 1)
}
