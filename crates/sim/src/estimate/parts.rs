//! The components of the closed form: the cost of one hop, one link and one lane, for executed plans.

use weftlink_plan::plan::Protocol;

use super::Case;
use crate::constants::Name;
use crate::setup::{LibraryAlgorithm, Operation};
use crate::tuner::network_overhead_us;

impl Case<'_> {
    /// Latency of a hop between islands in NVLSTree and SHARP.
    pub(crate) fn hop_switched(&self) -> f64 {
        self.machine.hops.across_switched().least.us()
    }

    /// Time of a step inside an island; in a ring that also crosses the network, at least the time of a proxy to post it.
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

    /// The factor of the square root of latency times transfer by which filling the pipeline lengthens a hop.
    pub(crate) fn fill_factor(&self, algorithm: LibraryAlgorithm) -> f64 {
        match (algorithm, self.machine.islands) {
            (LibraryAlgorithm::Nvls, _) => self.constant(Name::FillNvls),
            (LibraryAlgorithm::Ring, 1) => self.constant(Name::Fill),
            (LibraryAlgorithm::Ring, _) => self.constant(Name::FillRing),
            _ => 0.0,
        }
    }

    /// Steps grow with the size up to the buffers' size; this is the correction beyond it.
    pub(crate) fn step_growth(&self) -> f64 {
        (self.constant(Name::FillBytes) / self.bytes).min(1.0)
    }

    /// Whether the collective has a root, so that data flows one way only.
    pub(crate) fn is_rooted(&self) -> bool {
        matches!(self.operation, Operation::Broadcast | Operation::Reduce)
    }

    /// Fraction of the bytes that takes time on the wire: with LL, a hop includes the bytes that the threads of a lane hold, in every step
    /// of a ring. All-reduces between islands use LL's lanes one step after the other.
    pub(crate) fn wire_fraction(&self, algorithm: LibraryAlgorithm) -> f64 {
        if self.protocol != Protocol::Ll {
            return 1.0;
        }
        let along = algorithm == LibraryAlgorithm::Ring
            && !self.is_rooted()
            && (self.machine.islands == 1 || self.operation != Operation::AllReduce);
        let steps = if along { self.machine.ranks } else { 1.0 };
        (1.0 - self.lanes_ll() * self.constant(Name::LlLaneBytes) * steps / self.bytes).max(0.0)
    }

    /// Pipeline stages that a tile passes besides the slowest, in units of the slowest stage; `None` where tiles are not pipelined.
    pub(crate) fn stages(&self, algorithm: LibraryAlgorithm) -> Option<f64> {
        let machine = self.machine;
        let (inside, across) = match algorithm {
            LibraryAlgorithm::Ring if self.is_rooted() => {
                let across = f64::from(machine.islands - 1);
                let nics = self.nics(machine.lanes);
                ((machine.ranks - 1.0 - across, self.carried_port(algorithm)), (across, nics))
            }
            LibraryAlgorithm::Tree => {
                // The first tile has the links of a chain to itself: no data flows down yet.
                let chains = (2.0 * (machine.island - 1.0), self.carried_port(algorithm));
                (chains, (2.0 * machine.levels, self.tree_across()))
            }
            LibraryAlgorithm::NvlsTree => {
                // The step that reduces in the switch also sends; only the last step is the switch's alone.
                ((1.0, self.nvls_inside()), (2.0 * machine.levels, self.nvls_across()))
            }
            _ => return None,
        };
        let slowest = [inside, across]
            .into_iter()
            .filter(|(count, _)| *count > 0.0)
            .map(|(_, rate)| rate)
            .fold(f64::INFINITY, f64::min);
        let relative = |(count, rate): (f64, f64)| if count > 0.0 { count * slowest / rate } else { 0.0 };
        Some(relative(inside) + relative(across) - 1.0).filter(|stages| *stages > 0.0)
    }

    /// GB/s of all lanes of an algorithm.
    pub(crate) fn lane_carries(&self, across: bool, algorithm: LibraryAlgorithm) -> f64 {
        if algorithm == LibraryAlgorithm::Direct {
            return match self.operation {
                Operation::SendReceive => self.message_carries(across),
                _ => f64::INFINITY,
            };
        }
        // A lane is a thread block with a fixed share of the links: it cannot use bandwidth that others leave.
        if algorithm == LibraryAlgorithm::Ring {
            let port = self.ring_port();
            return match (across, self.machine.island > 1.0) {
                (false, _) if self.machine.waits_across => port.min(self.nics(self.machine.lanes)),
                (false, _) => port,
                (true, true) => port.min(self.nics(self.machine.lanes)),
                (true, false) => self.nics(self.machine.lanes),
            };
        }
        if !across {
            return f64::INFINITY;
        }
        match algorithm {
            LibraryAlgorithm::Tree => self.tree_across(),
            LibraryAlgorithm::NvlsTree => self.nvls_across(),
            LibraryAlgorithm::Pat => self.pat_carries(),
            _ => f64::INFINITY,
        }
    }

    /// GB/s of a GPU's port with this protocol and algorithm.
    pub(crate) fn carried_port(&self, algorithm: LibraryAlgorithm) -> f64 {
        let machine = self.machine;
        match (algorithm, self.operation) {
            (LibraryAlgorithm::Direct, Operation::SendReceive) => {
                machine.port_messages * self.messages_inside()
            }
            (LibraryAlgorithm::Direct, Operation::Gather | Operation::Scatter) => {
                machine.port_one_way * self.messages_inside()
            }
            (LibraryAlgorithm::Direct, _) => machine.port * self.messages_inside(),
            (LibraryAlgorithm::Tree, _) => 2.0 * self.tree_inside(),
            _ if self.is_rooted() => machine.port_one_way * self.port() / machine.port,
            _ => self.port(),
        }
    }

    /// Fraction of their line rate that links between devices of a host carry beside the collective's own.
    pub(crate) fn copied(&self) -> f64 {
        self.constant(Name::Copy)
    }

    /// GB/s of an island's NICs with this protocol and algorithm.
    pub(crate) fn carried_nics(&self, algorithm: LibraryAlgorithm) -> f64 {
        self.machine.nics * self.carried_part(algorithm)
    }

    /// Fraction of the line rate of the cables between switches, which no host limits, with this protocol and algorithm.
    pub(crate) fn carried_cables(&self, algorithm: LibraryAlgorithm) -> f64 {
        self.machine.cables_part * self.carried_part(algorithm)
    }

    /// Fraction of the network's rate that a protocol and an algorithm use.
    fn carried_part(&self, algorithm: LibraryAlgorithm) -> f64 {
        // In a plan the result crosses the requesting rank's NIC once more; real switches avoid that.
        let extra = 1.0 + 1.0 / f64::from(self.machine.islands);
        let share = match (algorithm, self.operation) {
            (LibraryAlgorithm::Direct, Operation::AllToAll | Operation::Gather | Operation::Scatter) => {
                self.constant(self.all_to_all_share())
            }
            (LibraryAlgorithm::Tree, _) => self.tree_far(),
            (LibraryAlgorithm::CollnetDirect, _) => self.collnet_share(Name::CollnetDirect) * extra,
            (LibraryAlgorithm::CollnetChain, _) => self.collnet_share(Name::CollnetChain) * extra,
            _ => 1.0,
        };
        // With sockets the CPU carries the two directions of a tree between two nodes in turn.
        let is_tree = matches!(algorithm, LibraryAlgorithm::Tree | LibraryAlgorithm::NvlsTree);
        let turns = if is_tree && self.machine.islands == 2 { self.times_across() } else { 1.0 };
        self.payload() * share / turns
    }
}
