//! Algorithms that came later: trees of parts, and kernels for symmetric windows.

use weftlink_plan::plan::Protocol;

use super::{Case, Estimate};
use crate::constants::Name;
use crate::setup::Operation;
use crate::tuner::PAT_SHARE;

impl Case<'_> {
    /// A tree for every rank's part, all at once: as many hops as there are levels, and the bytes of a ring, of which trees get less out
    /// of a NIC.
    pub(super) fn pat(&self) -> Estimate {
        let machine = self.machine;
        let mut estimate = self.launched();
        let message = self.bytes / machine.ranks;
        estimate.hops_us = machine.levels * self.hop_across(message);
        let moved = self.bytes * (machine.ranks - 1.0) / machine.ranks;
        estimate.wire_us = Self::over(moved, self.pat_carries());
        self.filled(estimate, self.fill_network())
    }

    /// GB/s that a rank sends with PAT.
    pub(super) fn pat_carries(&self) -> f64 {
        self.nics(self.machine.lanes) * PAT_SHARE
    }

    /// Every GPU reaches into all others. With LL everybody sends everything to everybody, once; otherwise all meet before and after,
    /// and the switch sums if it can, or each sums its share and hands it out.
    pub(super) fn symmetric(&self) -> Estimate {
        let machine = self.machine;
        let others = machine.island - 1.0;
        let mut estimate = self.launched();
        let sums = self.operation == Operation::AllReduce;
        if self.protocol == Protocol::Ll {
            estimate.hops_us = self.hop_inside(self.bytes);
            // Of parts, every rank has one; of sums, everything. Half of what LL sends is flags.
            let each = if sums { self.bytes } else { self.bytes / machine.island };
            estimate.wire_us = Self::over(2.0 * others * each, machine.port);
            return estimate;
        }
        estimate.hops_us = self.symmetric_hops();
        estimate.wire_us = match sums {
            true if machine.switch_sums => {
                Self::over(self.bytes * (1.0 + 1.0 / machine.island), machine.nvls)
            }
            true => Self::over(2.0 * self.bytes * others / machine.island, machine.port),
            false => Self::over(self.bytes * others / machine.island, machine.port),
        };
        estimate
    }

    /// Two meetings of all GPUs, before and after: each a message, but as long as Simple's since memory is fenced.
    pub(crate) fn symmetric_hops(&self) -> f64 {
        2.0 * self.constant(Name::HopSimpleUs)
    }
}
