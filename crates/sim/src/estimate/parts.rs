//! The closed form taken apart: what one hop, one link and one lane cost, for plans that are executed.

use weftlink_fabric::LinkKind;
use weftlink_plan::plan::Protocol;

use super::{Case, FILL_BYTES_MAX, LL_LANE_BYTES};
use crate::constants::Name;
use crate::setup::{Intra, LibraryAlgorithm, Operation, Setup};

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
        hop.max(self.constant(match self.protocol {
            Protocol::Simple => Name::StepNetworkSimpleUs,
            Protocol::Ll | Protocol::Ll128 => Name::StepNetworkLlUs,
        }))
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
            let rooted = matches!(self.operation, Operation::Broadcast | Operation::Reduce);
            let port = if rooted { self.machine.port_one_way } else { self.machine.port };
            let port = port * self.port() / self.machine.port;
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
            _ => f64::INFINITY,
        }
    }

    /// Bytes per second of a link of which a fabric says that it carries so many.
    pub(crate) fn link_carries(&self, setup: &Setup, kind: LinkKind, bytes_per_second: f64) -> f64 {
        let machine = self.machine;
        let rooted = matches!(self.operation, Operation::Broadcast | Operation::Reduce);
        let port = if rooted { machine.port_one_way } else { machine.port };
        let port = port * self.port() / machine.port;
        match kind {
            LinkKind::NvLink { .. } | LinkKind::Xgmi { .. } | LinkKind::XeLink => {
                let _ = bytes_per_second;
                let links = self.links_of_a_port(setup);
                port * 1e9 / links
            }
            LinkKind::Pcie { .. } if machine.pcie => port * 1e9,
            LinkKind::Network { .. } => {
                let nics =
                    f64::from(setup.nics_per_node.max(1)) * machine.island / f64::from(setup.gpus_per_node);
                machine.nics * 1e9 / nics
            }
            _ => f64::MAX / 1e6,
        }
    }

    /// Bundles of links that a GPU's port is made of.
    fn links_of_a_port(&self, setup: &Setup) -> f64 {
        let others = (self.machine.island - 1.0).max(1.0);
        match setup.intra {
            Intra::NvLinkMesh => others,
            Intra::Xgmi => others.min(7.0),
            _ => 1.0,
        }
    }
}
