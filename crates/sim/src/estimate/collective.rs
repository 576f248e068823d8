//! Rings, trees, and switches that sum.

use super::{Case, Estimate, LL_LANE_BYTES};
use crate::constants::Name;
use crate::gpu::Generation;
use crate::setup::{LibraryAlgorithm, Operation};

/// Levels of a tree that stay in a group of a dragonfly: 16 nodes.
const TREE_LEVELS_NEAR: f64 = 4.0;

impl Case<'_> {
    /// Around rings, one for each lane: `2(n-1)` steps to sum and to spread, half of them for either, and as long a way for
    /// what has a root. A port passes on as much as it gets; so do the NICs of a node, all rings together.
    pub(super) fn ring(&self) -> Estimate {
        let machine = self.machine;
        let ranks = machine.ranks;
        let rounds = if self.operation == Operation::AllReduce { 2.0 } else { 1.0 };
        let rooted = matches!(self.operation, Operation::Broadcast | Operation::Reduce);
        let across = rounds * f64::from(machine.islands - 1);
        let inside = rounds * (ranks - 1.0) - across;
        let lanes = machine.lanes;
        let (message, moved) = if rooted {
            (self.bytes, self.bytes)
        } else {
            (self.bytes / ranks, rounds * self.bytes * (ranks - 1.0) / ranks)
        };
        let hop_inside = self.step_inside(message, LibraryAlgorithm::Ring);
        let mut estimate = self.launched();
        estimate.hops_us = inside * hop_inside + across * self.hop_across(message);
        // Sums across take LL's lanes one step after the other.
        let along = !rooted && (machine.islands == 1 || self.operation != Operation::AllReduce);
        let moved = moved * self.beyond(self.lanes_ll() * LL_LANE_BYTES * if along { ranks } else { 1.0 });
        let mut port = self.port();
        if rooted {
            port *= machine.port_one_way / machine.port.max(f64::MIN_POSITIVE);
        }
        if machine.islands == 1 {
            estimate.wire_us = Self::over(moved, port);
            return estimate.filled(self.constant(Name::FillInside), self.bytes);
        }
        port *= machine.port_across / machine.port;
        let nics = self.nics(lanes);
        estimate.wire_us = Self::over(moved, if port.is_nan() { nics } else { port.min(nics) });
        estimate.filled(self.constant(Name::FillRing), self.bytes)
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
        let bytes = self.bytes * self.beyond(self.lanes_ll() * LL_LANE_BYTES);
        let chain = self.port() * self.constant(Name::TreeInside) / 2.0;
        if machine.islands == 1 {
            estimate.wire_us = Self::over(bytes, chain);
            return estimate.filled(self.constant(Name::FillInside), self.bytes);
        }
        let twice = if machine.islands == 2 && !machine.sockets { 1.0 } else { 2.0 };
        let lane = self.tree_lane() * machine.lanes / 2.0;
        let mut nics = self.nics(machine.lanes) / twice;
        if machine.slingshot && machine.levels > TREE_LEVELS_NEAR {
            nics *= self.constant(Name::TreeSlingshotFar).powf(machine.levels - TREE_LEVELS_NEAR);
        }
        estimate.wire_us = Self::over(bytes, chain.min(lane).min(nics));
        estimate.filled(self.fill_network(), self.bytes)
    }

    /// What a lane of a tree carries, in and out together.
    pub(super) fn tree_lane(&self) -> f64 {
        let lane = self.constant(match self.machine.generation {
            Generation::Pascal | Generation::Volta => Name::TreeLaneVoltaGBps,
            Generation::Ampere => Name::TreeLaneAmpereGBps,
            Generation::Hopper | Generation::Instinct => Name::TreeLaneHopperGBps,
            Generation::Blackwell => Name::TreeLaneBlackwellGBps,
        });
        if self.machine.islands == 2 { lane } else { lane * self.constant(Name::TreeLaneMany) }
    }

    /// The switch sums what all GPUs have and gives everybody the sum: each reads everything once, and writes its share.
    pub(super) fn nvls(&self) -> Estimate {
        let mut estimate = self.launched();
        estimate.hops_us = self.nvls_hops();
        estimate.wire_us = Self::over(self.bytes * (1.0 + 1.0 / self.machine.island), self.machine.nvls);
        estimate.filled(self.constant(Name::FillNvls), self.bytes)
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
        let inside = machine.nvls / (1.0 + 1.0 / machine.island);
        let twice = if machine.islands == 2 && !machine.sockets { 1.0 } else { 2.0 };
        estimate.wire_us =
            Self::over(self.bytes, inside.min(machine.nics / twice).min(self.nvls_tree_lanes()));
        estimate.filled(self.constant(Name::FillNvls), self.bytes)
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
        estimate.wire_us = Self::over(
            self.bytes,
            self.machine.nics / self.constant(Name::NetworkRdma) * self.constant(part),
        );
        estimate.filled(self.fill_network(), self.bytes)
    }
}
