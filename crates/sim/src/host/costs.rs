//! What the engine charges between cores.

use weftlink_fabric::{LinkKind, PathType};
use weftlink_plan::Algorithm;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;

use super::wiring::CORE;
use super::{Chosen, Hosts, choose};
use crate::constants::{Constants, Name};
use crate::engine::wires::Wire;
use crate::engine::{Charges, Sent};
use crate::setup::{Library, Network, Operation};

/// Open MPI's longest message that is sent without asking (`btl_vader_eager_limit`).
const EAGER_BYTES: f64 = 4096.0;

/// Bytes that a line carries beside its flag, and lines that a core writes while the first is on its way.
const LINE_BYTES: f64 = 56.0;
const LINES_AT_ONCE: f64 = 4.0;
/// Bytes per second of what is charged elsewhere.
const UNLIMITED: f64 = 1e18;

pub(super) struct Charged {
    /// From the end of a message until it is seen.
    hop_us: f64,
    /// The same between hosts.
    hop_across_us: f64,
    /// What a message takes of the core that passes it, beside its bytes.
    message_us: f64,
    /// GB/s of a core that passes messages, and of one that copies or reads peers' memory.
    passes: f64,
    reads: f64,
    /// What of a NIC's line rate is carried, and GB/s at most.
    nic: (f64, f64),
    /// Whether a core is busy with what it gives.
    gives: bool,
    /// Whether input and output are two buffers.
    copies: bool,
    /// What a counter takes of whoever looks at it.
    counter_us: f64,
    /// From the end of a step until its counter is seen.
    slot_us: f64,
    call_us: f64,
}

impl Charged {
    pub(super) fn new(
        constants: &Constants,
        hosts: &Hosts,
        chosen: &Chosen,
        (chunk, together): (f64, f64),
        (operation, bytes): (Operation, u64),
    ) -> Self {
        let of = |name: Name| constants[name];
        let line_us = of(Name::LineUs);
        let in_place = matches!(chosen.algorithm, Algorithm::OneShot | Algorithm::TwoShot);
        // Input and output that do not fit a core's own cache come from further away.
        let warm = if 2 * bytes > hosts.cache_bytes { of(Name::ColdPart) } else { 1.0 };
        let core = of(Name::CoreGBps) * warm;
        // How often what is passed goes through memory, by all that touch it.
        let times = match hosts.library {
            Library::Weft if in_place => 1.0,
            Library::Weft => 2.0,
            _ => 4.0,
        };
        // All move at a time, or where there is a root and messages, few: about a pair.
        let rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
        let at_once = if rooted && !in_place { 2 } else { hosts.ranks_per_host };
        let memory = of(Name::HostMemoryGBps) / times / f64::from(at_once);
        let (hop_us, message_us, passes) = match (hosts.library, chosen.protocol) {
            (Library::OpenMpi, _) => {
                let (hop_us, message_us, passes) = open_mpi(constants, operation, chunk * together);
                (hop_us, message_us / together, passes * warm)
            }
            (Library::Gloo, _) => {
                // Its loops go around once more than there are others, with segments that are empty at no cost.
                let around = f64::from(hosts.ranks()) / f64::from(hosts.ranks() - 1);
                let empty = operation == Operation::AllReduce && choose::leaves_empty(hosts, bytes);
                let message = if empty { 0.0 } else { of(Name::TcpMessageUs) * around };
                (of(Name::TcpHopUs), message, of(Name::TcpCoreGBps))
            }
            // Some lines of a message are on their way at a time.
            (_, Protocol::Ll) => (line_us, line_us, LINE_BYTES * LINES_AT_ONCE / line_us / 1e3),
            // A message is written by one core and read by another.
            _ => (of(Name::SlotUs), line_us, core / 2.0),
        };
        Self {
            hop_us,
            hop_across_us: hop_across(constants, hosts.network),
            message_us,
            passes: passes.min(memory),
            reads: core.min(memory),
            nic: match hosts.network {
                Network::Tcp | Network::None => (of(Name::NetworkRdma), of(Name::TcpGBps)),
                _ => (of(Name::NetworkRdma), f64::INFINITY),
            },
            // A core that gives its memory away to be read does nothing for it.
            gives: !in_place && chosen.algorithm != Algorithm::Staged,
            copies: !(hosts.library == Library::OpenMpi && operation == Operation::Broadcast),
            // Who reads looks before and after; who reads and writes, each time once.
            counter_us: if chosen.algorithm == Algorithm::TwoShot { line_us } else { 2.0 * line_us },
            slot_us: of(Name::SlotUs),
            // A call is announced by a line.
            call_us: if hosts.library == Library::Weft { line_us } else { 0.0 },
        }
    }

    /// What every call takes beside its plan.
    pub(super) fn call_us(&self) -> f64 {
        self.call_us
    }
}

/// Open MPI's hop, what a message takes of a core, and GB/s. Short messages are copied in and then out, long ones both at once, after the
/// receiver was asked. What is summed goes through memory that was allocated for the call.
fn open_mpi(constants: &Constants, operation: Operation, bytes: f64) -> (f64, f64, f64) {
    let is_short = bytes <= EAGER_BYTES;
    let sums = matches!(operation, Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce);
    let message = constants[Name::MpiMessageUs];
    // To ask is a message more.
    let asks = if is_short { 0.0 } else { message };
    let slower = if is_short || sums { 2.0 } else { 1.0 };
    (message * 0.75, message * 0.25 + asks, constants[Name::MpiGBps] / slower)
}

/// A message between hosts: as what GPUs' proxies take, of which this is a bound.
fn hop_across(constants: &Constants, network: Network) -> f64 {
    constants[match network {
        Network::InfiniBand | Network::None => Name::HopInfiniBandUs,
        Network::Roce => Name::HopRoceUs,
        Network::Efa => Name::HopEfaUs,
        Network::Slingshot => Name::HopSlingshotUs,
        Network::Tcp | Network::Tcpx | Network::Tcpxo => Name::HopTcpUs,
    }]
}

impl Charges for Charged {
    fn launch(&self) -> Picoseconds {
        Picoseconds(0)
    }

    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, _sent: Sent) -> Picoseconds {
        let us = match (protocol, wire.path == PathType::Net) {
            (_, true) => self.hop_across_us,
            (Some(_), false) => self.hop_us,
            (None, false) => self.slot_us,
        };
        Picoseconds((us * 1e6).round() as u64)
    }

    fn lane(&self, _wire: &Wire, protocol: Option<Protocol>) -> f64 {
        1e9 * if protocol.is_some() { self.passes } else { self.reads }
    }

    /// A core is busy with a message's overhead as it is with its bytes.
    fn on_the_wire(&self, wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64 {
        let us = if protocol.is_some() { self.message_us } else { self.counter_us };
        bytes + us * 1e-6 * self.lane(wire, protocol)
    }

    fn capacity(&self, kind: LinkKind, bytes_per_second: f64) -> f64 {
        match kind {
            CORE => 1e9 * if self.gives { self.passes } else { self.reads },
            LinkKind::Pcie { .. } => {
                if self.gives {
                    1e9 * self.passes
                } else {
                    UNLIMITED
                }
            }
            _ => (bytes_per_second * self.nic.0).min(1e9 * self.nic.1),
        }
    }

    fn multicast(&self, _kind: LinkKind) -> f64 {
        1.0
    }

    fn copy(&self) -> f64 {
        if !self.copies {
            return UNLIMITED;
        }
        1e9 * self.reads
    }
}
