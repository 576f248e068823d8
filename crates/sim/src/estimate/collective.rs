//! Rings, trees, and switches that sum.

use super::{Case, Estimate, View};
use crate::constants::Name;
use crate::gpu::Generation;
use crate::setup::{LibraryAlgorithm, Operation};

impl Case<'_> {
    /// Around rings, one for each lane: `2(n-1)` steps to sum and to spread, half of them for either, and as long a way for
    /// what has a root. A port passes on as much as it gets; so do the NICs of a node, all rings together.
    pub(super) fn ring(&self) -> Estimate {
        let machine = self.machine;
        let ranks = machine.ranks;
        let rounds = if self.operation == Operation::AllReduce { 2.0 } else { 1.0 };
        let rooted = matches!(self.operation, Operation::Broadcast | Operation::Reduce);
        let steps = rounds * (ranks - 1.0);
        let across = match (machine.islands, rooted || self.view == View::Chooser) {
            (1, _) => 0.0,
            // Tuners count so for all.
            (islands, true) => rounds * f64::from(islands - 1),
            // What goes furthest leaves an island with its first step.
            (_, false) => 1.0 + ((steps - 1.0) / machine.island).floor(),
        };
        let (message, moved) =
            if rooted { (self.bytes, self.bytes) } else { (self.bytes / ranks, steps * self.bytes / ranks) };
        let hop_inside = self.step_inside(message, LibraryAlgorithm::Ring);
        let mut estimate = self.launched();
        estimate.hops_us = (steps - across) * hop_inside + across * self.hop_across(message);
        let moved = moved * self.part_on_wire(LibraryAlgorithm::Ring);
        let port = self.ring_port();
        if machine.islands == 1 {
            estimate.wire_us = Self::over(moved, port);
            return self.filled(estimate, self.constant(Name::Fill));
        }
        let nics = self.nics(machine.lanes);
        let slowest = if machine.island > 1.0 { port.min(nics) } else { nics };
        estimate.wire_us = Self::over(moved, slowest);
        estimate = self.filled(estimate, self.constant(Name::FillRing));
        if !rooted && !machine.waits_across && self.view == View::Real {
            // What waits for the narrowest link is on its way elsewhere meanwhile: hops are hidden by as much as steps over
            // other links are shorter. Tuners do not know.
            let inside = if machine.island > 1.0 { (steps - across) * slowest / port } else { 0.0 };
            let hidden = estimate.wire_us * (1.0 - (inside + across * slowest / nics) / steps);
            estimate.hops_us = (estimate.hops_us + estimate.fill_us - hidden).max(0.0);
            estimate.fill_us = 0.0;
        }
        estimate
    }

    /// GB/s of a GPU's port that rings use. With a root data goes one way only; rings that leave the island can share its links
    /// out among themselves better than rings that close in it.
    pub(super) fn ring_port(&self) -> f64 {
        let machine = self.machine;
        let part = self.port() / machine.port;
        match (self.is_rooted(), machine.islands) {
            (true, _) => machine.port_one_way * part,
            (false, 1) => machine.port * part,
            (false, _) => machine.port_across * part,
        }
    }

    /// Up and down two trees over the nodes, chains inside. A GPU in a chain passes everything on twice. Between two
    /// nodes everything crosses once each way; between more a node has two children in one tree and is a child in the other:
    /// twice.
    pub(super) fn tree(&self) -> Estimate {
        let machine = self.machine;
        let message = self.bytes;
        let mut estimate = self.launched();
        let inside = 2.0 * (machine.island - 1.0);
        let across = 2.0 * machine.levels;
        estimate.hops_us = inside * self.hop_inside(message) + across * self.hop_across(message);
        let bytes = self.bytes * self.part_on_wire(LibraryAlgorithm::Tree);
        let chain = self.tree_inside();
        if machine.islands == 1 {
            estimate.wire_us = Self::over(bytes, chain);
            return self.filled(estimate, self.constant(Name::Fill));
        }
        estimate.wire_us = Self::over(bytes, chain.min(self.tree_across()));
        self.filled(estimate, self.fill_network())
    }

    /// GB/s of a call's bytes in a chain inside, which a GPU passes on up and down.
    pub(super) fn tree_inside(&self) -> f64 {
        self.port() * self.constant(Name::TreeInside) / 2.0
    }

    /// GB/s of a call's bytes between nodes.
    pub(super) fn tree_across(&self) -> f64 {
        let machine = self.machine;
        let lane = self.tree_lane() * machine.lanes / 2.0;
        let part = match self.view {
            View::Chooser => self.constant(Name::TreeInside),
            View::Real => self.tree_far(),
        };
        let nics = self.nics(machine.lanes) * part / self.times_across();
        lane.min(nics)
    }

    /// What is left of the NICs where trees go far.
    pub(super) fn tree_far(&self) -> f64 {
        let machine = self.machine;
        let near = self.constant(Name::TreeNearLevels);
        if machine.slingshot && machine.levels > near {
            self.constant(Name::TreeSlingshotFar).powf(machine.levels - near)
        } else {
            1.0
        }
    }

    /// How often a tree's bytes cross a node's NICs each way. Where CPUs carry them they do so one way at a time.
    pub(super) fn times_across(&self) -> f64 {
        if self.machine.islands == 2 && !self.machine.sockets { 1.0 } else { 2.0 }
    }

    /// What a lane of a tree carries, in and out together.
    pub(super) fn tree_lane(&self) -> f64 {
        let lane = self.constant(match self.machine.generation {
            Generation::Pascal | Generation::Volta | Generation::Ampere => Name::TreeLaneAmpereGBps,
            Generation::Hopper | Generation::Blackwell | Generation::Instinct => Name::TreeLaneHopperGBps,
        });
        if self.machine.islands == 2 { lane } else { lane * self.constant(Name::TreeLaneMany) }
    }

    /// The switch sums what all GPUs have and gives everybody the sum: each reads everything once, and writes its share.
    pub(super) fn nvls(&self) -> Estimate {
        let mut estimate = self.launched();
        estimate.hops_us = self.nvls_hops();
        estimate.wire_us = Self::over(self.bytes * (1.0 + 1.0 / self.machine.island), self.machine.nvls);
        self.filled(estimate, self.constant(Name::FillNvls))
    }

    /// The same for parts: at a ring's bandwidth.
    pub(super) fn nvls_parts(&self) -> Estimate {
        let mut estimate = self.ring();
        estimate.hops_us = estimate.hops_us.min(self.nvls_hops());
        estimate
    }

    pub(crate) fn nvls_hops(&self) -> f64 {
        self.constant(Name::NvlsUs) + self.constant(Name::NvlsPerGpuUs) * self.machine.island
    }

    /// Switches sum inside, trees between: every GPU's share goes up and down a tree of its own.
    pub(super) fn nvls_tree(&self) -> Estimate {
        let machine = self.machine;
        let mut estimate = self.launched();
        estimate.hops_us = self.nvls_hops() + 2.0 * machine.levels * self.hop_switched();
        estimate.wire_us = Self::over(self.bytes, self.nvls_inside().min(self.nvls_across()));
        self.filled(estimate, self.constant(Name::FillNvls))
    }

    /// GB/s of a call's bytes that switches inside sum and spread.
    pub(super) fn nvls_inside(&self) -> f64 {
        self.machine.nvls / (1.0 + 1.0 / self.machine.island)
    }

    /// GB/s of a call's bytes between islands.
    pub(super) fn nvls_across(&self) -> f64 {
        (self.machine.nics / self.times_across()).min(self.nvls_tree_lanes())
    }

    /// What the lanes of an NVLSTree carry together.
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

    /// Switches of the network sum.
    pub(super) fn collnet(&self, part: Name) -> Estimate {
        let mut estimate = self.launched();
        estimate.hops_us = 2.0 * self.hop_inside(self.bytes) * (self.machine.island - 1.0).max(1.0)
            + 2.0 * self.hop_switched();
        estimate.wire_us = Self::over(self.bytes, self.machine.nics * self.collnet_part(part));
        self.filled(estimate, self.fill_network())
    }

    /// What sums by switches of the network get of what its NICs carry.
    pub(super) fn collnet_part(&self, part: Name) -> f64 {
        self.constant(part) / self.constant(Name::NetworkRdma)
    }
}
