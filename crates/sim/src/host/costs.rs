//! The cost model for calls between cores.

use weftlink_fabric::{LinkKind, PathType};
use weftlink_plan::Algorithm;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;

use super::wiring::CORE;
use super::{Choice, Hosts, choose};
use crate::constants::{Constants, Name};
use crate::engine::wires::Wire;
use crate::engine::{CostModel, LinkLine, Sent};
use crate::setup::{Library, Network, Operation};

/// Open MPI's largest eager message (`btl_vader_eager_limit`).
const EAGER_BYTES: f64 = 4096.0;

/// Payload of an LL line, and number of lines that a core writes during one line's latency.
const LINE_BYTES: f64 = 56.0;
const LINES_AT_ONCE: f64 = 4.0;
/// Bytes per second of links whose cost is counted elsewhere.
const UNLIMITED: f64 = 1e18;

pub(super) struct HostCosts {
    /// Latency of a message within a host.
    hop_us: f64,
    /// Latency of a message between hosts.
    hop_across_us: f64,
    /// Time that a message occupies the sending core, besides its bytes.
    message_us: f64,
    /// GB/s of a core that sends messages.
    passes: f64,
    /// GB/s of a core that copies or reads peers' memory.
    reads: f64,
    /// Fraction of a NIC's line rate, and maximum GB/s.
    nic: (f64, f64),
    /// Whether sending occupies the core.
    sender_is_busy: bool,
    /// Whether input and output are different buffers.
    copies: bool,
    /// Time to poll a counter.
    counter_us: f64,
    /// Latency of a counter.
    slot_us: f64,
    call_us: f64,
}

impl HostCosts {
    pub(super) fn new(
        constants: &Constants,
        hosts: &Hosts,
        chosen: &Choice,
        (chunk, chunks_per_message): (f64, f64),
        (operation, bytes): (Operation, u64),
    ) -> Self {
        let of = |name: Name| constants[name];
        let line_us = of(Name::LineUs);
        let in_place = matches!(chosen.algorithm, Algorithm::OneShot | Algorithm::TwoShot);
        // Input and output larger than the core's private cache are slower.
        let warm = if 2 * bytes > hosts.cache_bytes { of(Name::ColdPart) } else { 1.0 };
        let core = of(Name::CoreGBps) * warm;
        // Memory accesses per byte, by all cores involved.
        let times = match hosts.library {
            Library::Weft if in_place => 1.0,
            Library::Weft => 2.0,
            _ => 4.0,
        };
        // All ranks use memory at once; in rooted collectives with messages, about a pair.
        let rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
        let at_once = if rooted && !in_place { 2 } else { hosts.ranks_per_host };
        let memory = of(Name::HostMemoryGBps) / times / f64::from(at_once);
        let (hop_us, message_us, passes) = match (hosts.library, chosen.protocol) {
            (Library::OpenMpi, _) => {
                let (hop_us, message_us, passes) = open_mpi(constants, operation, chunk * chunks_per_message);
                (hop_us, message_us / chunks_per_message, passes * warm)
            }
            (Library::Gloo, _) => {
                // Gloo's loops make one more round than there are peers; empty segments cost nothing.
                let around = f64::from(hosts.ranks()) / f64::from(hosts.ranks() - 1);
                let empty = operation == Operation::AllReduce && choose::has_empty_segments(hosts, bytes);
                let message = if empty { 0.0 } else { of(Name::TcpMessageUs) * around };
                (of(Name::TcpHopUs), message, of(Name::TcpCoreGBps))
            }
            // Several lines of a message are in flight.
            (_, Protocol::Ll) => (line_us, line_us, LINE_BYTES * LINES_AT_ONCE / line_us / 1e3),
            // One core writes a message, another reads it.
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
            // A core whose memory peers read is idle meanwhile.
            sender_is_busy: !in_place && chosen.algorithm != Algorithm::Staged,
            copies: !(hosts.library == Library::OpenMpi && operation == Operation::Broadcast),
            // A rank that only reads polls before and after; one that reads and writes polls once each time.
            counter_us: if chosen.algorithm == Algorithm::TwoShot { line_us } else { 2.0 * line_us },
            slot_us: of(Name::SlotUs),
            // One line announces a call.
            call_us: if hosts.library == Library::Weft { line_us } else { 0.0 },
        }
    }

    /// Time of every call besides its plan.
    pub(super) fn call_us(&self) -> f64 {
        self.call_us
    }
}

/// Open MPI's hop latency, core time per message, and GB/s. Short messages are copied in and then out; long ones need a rendezvous and are
/// copied once. Reductions go through memory allocated for the call.
fn open_mpi(constants: &Constants, operation: Operation, bytes: f64) -> (f64, f64, f64) {
    let is_short = bytes <= EAGER_BYTES;
    let sums = matches!(operation, Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce);
    let message = constants[Name::MpiMessageUs];
    // A rendezvous is one more message.
    let rendezvous = if is_short { 0.0 } else { message };
    let slower = if is_short || sums { 2.0 } else { 1.0 };
    (message * 0.75, message * 0.25 + rendezvous, constants[Name::MpiGBps] / slower)
}

/// Latency of a message between hosts: that of GPU proxies, an upper bound.
fn hop_across(constants: &Constants, network: Network) -> f64 {
    constants[match network {
        Network::InfiniBand | Network::None => Name::HopInfiniBandUs,
        Network::Roce => Name::HopRoceUs,
        Network::Efa => Name::HopEfaUs,
        Network::Slingshot => Name::HopSlingshotUs,
        Network::Tcp | Network::Tcpx | Network::Tcpxo => Name::HopTcpUs,
    }]
}

impl CostModel for HostCosts {
    fn launch(&self) -> Picoseconds {
        Picoseconds(0)
    }

    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, _sent: Sent) -> Picoseconds {
        let us = match (protocol, wire.path == PathType::Net) {
            (_, true) => self.hop_across_us,
            (Some(_), false) => self.hop_us,
            (None, false) => self.slot_us,
        };
        Picoseconds::from_us(us)
    }

    fn lane(&self, _wire: &Wire, protocol: Option<Protocol>) -> f64 {
        1e9 * if protocol.is_some() { self.passes } else { self.reads }
    }

    /// Counts a message's overhead as extra bytes, since it occupies the core.
    fn on_the_wire(&self, wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64 {
        let us = if protocol.is_some() { self.message_us } else { self.counter_us };
        bytes + us * 1e-6 * self.lane(wire, protocol)
    }

    fn capacity(&self, link: LinkLine) -> f64 {
        match link.kind {
            CORE => 1e9 * if self.sender_is_busy { self.passes } else { self.reads },
            LinkKind::Pcie { .. } => {
                if self.sender_is_busy {
                    1e9 * self.passes
                } else {
                    UNLIMITED
                }
            }
            _ => (link.bytes_per_second * self.nic.0).min(1e9 * self.nic.1),
        }
    }

    fn multicast(&self) -> f64 {
        1.0
    }

    fn copy(&self) -> f64 {
        if !self.copies {
            return UNLIMITED;
        }
        1e9 * self.reads
    }
}
