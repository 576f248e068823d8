//! The closed form taken apart: what one hop, one link and one lane cost, for plans that are executed.

use weftlink_plan::plan::Protocol;

use super::{Case, FILL_BYTES_MAX, LL_LANE_BYTES};
use crate::constants::Name;
use crate::library::network_overhead_us;
use crate::setup::{LibraryAlgorithm, Operation};

impl Case<'_> {
    /// A hop across that switches sum for.
    pub(crate) fn hop_switched(&self) -> f64 {
        self.machine.hop_across_us * self.constant(Name::HopNetworkNvlsTree)
    }

    /// A step inside; where the ring also crosses the network, no faster than proxies post.
    pub(crate) fn step_inside(&self, message: f64, algorithm: LibraryAlgorithm) -> f64 {
        let hop = self.hop_inside(message);
        if self.machine.islands == 1 || algorithm != LibraryAlgorithm::Ring {
            return hop;
        }
        let posted = match self.machine.cpu {
            Some(vendor) => network_overhead_us(vendor, self.protocol),
            None => self.constant(match self.protocol {
                Protocol::Simple => Name::StepNetworkSimpleUs,
                Protocol::Ll | Protocol::Ll128 => Name::StepNetworkLlUs,
            }),
        };
        hop.max(posted)
    }

    /// How much of the root of latency times transfer a hop takes more.
    pub(crate) fn fill_part(&self, algorithm: LibraryAlgorithm) -> f64 {
        match (algorithm, self.machine.islands) {
            (LibraryAlgorithm::Nvls, _) => self.constant(Name::FillNvls),
            (LibraryAlgorithm::Ring, 1) => self.constant(Name::FillInside),
            (LibraryAlgorithm::Ring, _) => self.constant(Name::FillRing),
            _ => 0.0,
        }
    }

    /// Steps grow with the bytes as far as buffers do.
    pub(crate) fn growing(&self) -> f64 {
        (FILL_BYTES_MAX / self.bytes).min(1.0)
    }

    /// Bytes of one message that a hop with LL takes along, all lanes together.
    pub(crate) fn free_with_hops(&self) -> f64 {
        self.lanes_ll() * LL_LANE_BYTES
    }

    /// GB/s that all lanes of an algorithm carry together.
    pub(crate) fn lane_carries(&self, across: bool, algorithm: LibraryAlgorithm) -> f64 {
        if algorithm == LibraryAlgorithm::Direct {
            return match self.operation {
                Operation::SendReceive => self.message_carries(across),
                _ => f64::INFINITY,
            };
        }
        // A lane is a thread block that has its share of the links: what others leave it cannot use.
        if algorithm == LibraryAlgorithm::Ring {
            let port = self.carried_port();
            return match (across, self.machine.island > 1.0) {
                (false, _) => port,
                (true, true) => port.min(self.nics(self.machine.lanes)),
                (true, false) => self.nics(self.machine.lanes),
            };
        }
        if !across {
            return f64::INFINITY;
        }
        match algorithm {
            // Both trees together; a lane has what goes up and what comes down.
            LibraryAlgorithm::Tree => self.lanes_across().min(self.tree_lane() * self.machine.lanes / 2.0),
            LibraryAlgorithm::NvlsTree => self.nvls_tree_lanes(),
            LibraryAlgorithm::Pat => self.pat_carries(),
            _ => f64::INFINITY,
        }
    }

    /// GB/s of a GPU's port with this protocol: with a root, data goes one way only.
    pub(crate) fn carried_port(&self) -> f64 {
        let rooted = matches!(self.operation, Operation::Broadcast | Operation::Reduce);
        let port = if rooted { self.machine.port_one_way } else { self.machine.port };
        port * self.port() / self.machine.port
    }
}
