//! Rings, trees, NVLS and reductions in the network.

use super::{Case, Estimate, FillTerm, Over, View};
use crate::constants::Name;
use crate::gpu::Generation;
use crate::setup::{LibraryAlgorithm, Operation};

/// Kinds of hops.
pub(super) const INSIDE: &str = "inside an island";
pub(super) const ACROSS: &str = "between islands";
const SWITCHES: &str = "through the NVSwitches";

impl Case<'_> {
    /// Rings, one for each lane: `2(n-1)` steps for an all-reduce, `n-1` for an all-gather, a reduce-scatter or a rooted collective. A
    /// port sends as much as it receives; so do the NICs of a node, over all rings.
    pub(super) fn ring(&self) -> Estimate {
        let machine = self.machine;
        let ranks = machine.ranks;
        let rounds = if self.operation == Operation::AllReduce { 2.0 } else { 1.0 };
        let rooted = matches!(self.operation, Operation::Broadcast | Operation::Reduce);
        let steps = rounds * (ranks - 1.0);
        let across = match (machine.islands, rooted || self.view == View::Tuner) {
            (1, _) => 0.0,
            // Tuners use this count for all collectives.
            (islands, true) => rounds * f64::from(islands - 1),
            // The data with the longest path leaves its island in the first step.
            (_, false) => 1.0 + ((steps - 1.0) / machine.island).floor(),
        };
        let (message, moved) =
            if rooted { (self.bytes, self.bytes) } else { (self.bytes / ranks, steps * self.bytes / ranks) };
        let hop_inside = self.step_inside(message, LibraryAlgorithm::Ring);
        let mut estimate = self.launch();
        let hops = [(INSIDE, steps - across, hop_inside), (ACROSS, across, self.hop_across(message))];
        Self::set_hops(&mut estimate, &hops);
        let moved = moved * self.wire_fraction(LibraryAlgorithm::Ring);
        let port = self.ring_port();
        if machine.islands == 1 {
            Self::set_wire(&mut estimate, moved, port, Over::Port);
            return self.with_fill(estimate, self.constant(Name::Fill));
        }
        let nics = self.nics(machine.lanes);
        let slowest = if machine.island > 1.0 { port.min(nics) } else { nics };
        let over = if slowest < nics { Over::Port } else { self.nics_or_lanes(machine.lanes) };
        Self::set_wire(&mut estimate, moved, slowest, over);
        estimate = self.with_fill(estimate, self.constant(Name::FillRing));
        if !rooted && !machine.waits_across && self.view == View::Actual {
            // While data waits for the narrowest link, other data crosses the faster links: this hides hops by the difference in step
            // times. Tuners ignore it.
            let inside = if machine.island > 1.0 { (steps - across) * slowest / port } else { 0.0 };
            let hidden = estimate.wire_us * (1.0 - (inside + across * slowest / nics) / steps);
            estimate.working.hidden_us = hidden.min(estimate.hops_us + estimate.fill_us);
            estimate.hops_us = (estimate.hops_us + estimate.fill_us - hidden).max(0.0);
            estimate.fill_us = 0.0;
        }
        estimate
    }

    /// GB/s of a GPU's port that rings use. Rooted collectives send data one way only; rings that leave the island divide its links
    /// better than rings that close inside it.
    pub(super) fn ring_port(&self) -> f64 {
        let machine = self.machine;
        let fraction = self.port() / machine.port;
        match (self.is_rooted(), machine.islands) {
            (true, _) => machine.port_one_way * fraction,
            (false, 1) => machine.port * fraction,
            (false, _) => machine.port_across * fraction,
        }
    }

    /// Two trees over the nodes, up and down, with chains inside. A GPU in a chain forwards all data twice. Between two nodes all data
    /// crosses once each way; between more nodes twice, since a node has two children in one tree and is a child in the other.
    pub(super) fn tree(&self) -> Estimate {
        let machine = self.machine;
        let message = self.bytes;
        let mut estimate = self.launch();
        let inside = 2.0 * (machine.island - 1.0);
        let across = 2.0 * machine.levels;
        let hops = [(INSIDE, inside, self.hop_inside(message)), (ACROSS, across, self.hop_across(message))];
        Self::set_hops(&mut estimate, &hops);
        let bytes = self.bytes * self.wire_fraction(LibraryAlgorithm::Tree);
        let chain = self.tree_inside();
        if machine.islands == 1 {
            Self::set_wire(&mut estimate, 2.0 * bytes, 2.0 * chain, Over::Chain);
            return self.with_fill(estimate, self.constant(Name::Fill));
        }
        let across = self.tree_across();
        if chain < across {
            Self::set_wire(&mut estimate, 2.0 * bytes, 2.0 * chain, Over::Chain);
        } else {
            let lane = self.tree_lane() * machine.lanes / 2.0;
            let over = if lane <= across { Over::Lanes } else { self.nics_or_lanes(machine.lanes) };
            let times = self.times_across();
            Self::set_wire(&mut estimate, times * bytes, times * across, over);
        }
        self.with_fill(estimate, self.fill_network())
    }

    /// GB/s of a call's bytes in a chain inside a node, where a GPU forwards data up and down.
    pub(super) fn tree_inside(&self) -> f64 {
        self.port() * self.constant(Name::TreeInside) / 2.0
    }

    /// GB/s of a call's bytes between nodes.
    pub(super) fn tree_across(&self) -> f64 {
        let machine = self.machine;
        let lane = self.tree_lane() * machine.lanes / 2.0;
        let part = match self.view {
            View::Tuner => self.constant(Name::TreeInside),
            View::Actual => self.tree_far(),
        };
        let nics = self.nics(machine.lanes) * part / self.times_across();
        lane.min(nics)
    }

    /// Fraction of the NICs' bandwidth that deep trees get.
    pub(super) fn tree_far(&self) -> f64 {
        let machine = self.machine;
        let near = self.constant(Name::TreeNearLevels);
        if machine.slingshot && machine.levels > near {
            libm::pow(self.constant(Name::TreeSlingshotFar), machine.levels - near)
        } else {
            1.0
        }
    }

    /// How often a tree's bytes cross a node's NICs each way. With sockets the CPU carries one direction at a time.
    pub(super) fn times_across(&self) -> f64 {
        if self.machine.islands == 2 && !self.machine.sockets { 1.0 } else { 2.0 }
    }

    /// GB/s of a tree's lane, in and out together.
    pub(super) fn tree_lane(&self) -> f64 {
        let lane = self.constant(match self.machine.generation {
            Generation::Pascal | Generation::Volta | Generation::Ampere => Name::TreeLaneAmpereGBps,
            Generation::Hopper | Generation::Blackwell | Generation::Instinct => Name::TreeLaneHopperGBps,
        });
        if self.machine.islands == 2 { lane } else { lane * self.constant(Name::TreeLaneMany) }
    }

    /// NVLS: the switch reduces all GPUs' data and multicasts the result; each GPU reads everything once and writes its share.
    pub(super) fn nvls(&self) -> Estimate {
        let mut estimate = self.launch();
        Self::set_hops(&mut estimate, &[(SWITCHES, 1.0, self.nvls_hops())]);
        let moved = self.bytes * (1.0 + 1.0 / self.machine.island);
        Self::set_wire(&mut estimate, moved, self.machine.nvls, Over::Switches);
        self.with_fill(estimate, self.constant(Name::FillNvls))
    }

    /// NVLS for all-gather and reduce-scatter, at a ring's bandwidth.
    pub(super) fn nvls_parts(&self) -> Estimate {
        let mut estimate = self.ring();
        if self.nvls_hops() < estimate.hops_us {
            Self::set_hops(&mut estimate, &[(SWITCHES, 1.0, self.nvls_hops())]);
            if estimate.working.hidden_us > 0.0 {
                (estimate.working.hidden_us, estimate.working.fill) = (0.0, FillTerm::Nothing);
            }
        }
        estimate
    }

    pub(crate) fn nvls_hops(&self) -> f64 {
        self.constant(Name::NvlsUs) + self.constant(Name::NvlsPerGpuUs) * self.machine.island
    }

    /// NVLS inside, trees between islands: every GPU's share goes up and down its own tree.
    pub(super) fn nvls_tree(&self) -> Estimate {
        let machine = self.machine;
        let mut estimate = self.launch();
        let hops = [(SWITCHES, 1.0, self.nvls_hops()), (ACROSS, 2.0 * machine.levels, self.hop_switched())];
        Self::set_hops(&mut estimate, &hops);
        if self.nvls_inside() < self.nvls_across() {
            let moved = self.bytes * (1.0 + 1.0 / machine.island);
            Self::set_wire(&mut estimate, moved, machine.nvls, Over::Switches);
        } else if self.nvls_tree_lanes() < machine.nics / self.times_across() {
            Self::set_wire(&mut estimate, self.bytes, self.nvls_tree_lanes(), Over::Lanes);
        } else {
            Self::set_wire(&mut estimate, self.bytes * self.times_across(), machine.nics, Over::Nics);
        }
        self.with_fill(estimate, self.constant(Name::FillNvls))
    }

    /// GB/s of a call's bytes through the NVSwitches.
    pub(super) fn nvls_inside(&self) -> f64 {
        self.machine.nvls / (1.0 + 1.0 / self.machine.island)
    }

    /// GB/s of a call's bytes between islands.
    pub(super) fn nvls_across(&self) -> f64 {
        (self.machine.nics / self.times_across()).min(self.nvls_tree_lanes())
    }

    /// GB/s of all lanes of an NVLSTree.
    pub(super) fn nvls_tree_lanes(&self) -> f64 {
        let machine = self.machine;
        let mut lane = self.constant(match machine.generation {
            Generation::Blackwell => Name::NvlsTreeLaneBlackwellGBps,
            _ => Name::NvlsTreeLaneHopperGBps,
        });
        if machine.islands > 2 {
            lane *= self.constant(Name::NvlsTreeLaneMany);
        }
        lane * machine.lanes * machine.ranks / (2.0 * (machine.ranks - 1.0))
    }

    /// Network switches reduce (SHARP).
    pub(super) fn collnet(&self, share: Name) -> Estimate {
        let mut estimate = self.launch();
        let inside = 2.0 * (self.machine.island - 1.0).max(1.0);
        let hops = [(INSIDE, inside, self.hop_inside(self.bytes)), (ACROSS, 2.0, self.hop_switched())];
        Self::set_hops(&mut estimate, &hops);
        let nics = self.machine.nics * self.collnet_share(share);
        Self::set_wire(&mut estimate, self.bytes, nics, Over::Nics);
        self.with_fill(estimate, self.fill_network())
    }

    /// Fraction of the NICs' bandwidth that reductions in the network get.
    pub(super) fn collnet_share(&self, share: Name) -> f64 {
        self.constant(share) / self.constant(Name::NetworkRdma)
    }
}
