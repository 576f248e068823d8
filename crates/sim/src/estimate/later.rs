//! Newer algorithms: PAT, and kernels for symmetric windows.

use weftlink_plan::plan::Protocol;

use super::{Case, Estimate};
use crate::constants::Name;
use crate::setup::Operation;
use crate::tuner::PAT_SHARE;

impl Case<'_> {
    /// PAT: a tree for every rank's part, all at once. As many hops as levels, and the bytes of a ring at a lower NIC bandwidth.
    pub(super) fn pat(&self) -> Estimate {
        let machine = self.machine;
        let mut estimate = self.launch();
        let message = self.bytes / machine.ranks;
        estimate.hops_us = machine.levels * self.hop_across(message);
        let moved = self.bytes * (machine.ranks - 1.0) / machine.ranks;
        estimate.wire_us = Self::transfer_us(moved, self.pat_carries());
        self.with_fill(estimate, self.fill_network())
    }

    /// GB/s that a rank sends with PAT.
    pub(super) fn pat_carries(&self) -> f64 {
        self.nics(self.machine.lanes) * PAT_SHARE
    }

    /// Every GPU accesses all peers' buffers. With LL each sends everything to all peers, once; otherwise a barrier comes before and
    /// after, and the switch reduces if it can, or each GPU reduces its share and distributes it.
    pub(super) fn symmetric(&self) -> Estimate {
        let machine = self.machine;
        let others = machine.island - 1.0;
        let mut estimate = self.launch();
        let sums = self.operation == Operation::AllReduce;
        if self.protocol == Protocol::Ll {
            estimate.hops_us = self.hop_inside(self.bytes);
            // All-reduce sends the whole buffer, other collectives one part. Half of LL's bytes are flags.
            let each = if sums { self.bytes } else { self.bytes / machine.island };
            estimate.wire_us = Self::transfer_us(2.0 * others * each, machine.port);
            return estimate;
        }
        estimate.hops_us = self.symmetric_hops();
        estimate.wire_us = match sums {
            true if machine.has_nvls => {
                Self::transfer_us(self.bytes * (1.0 + 1.0 / machine.island), machine.nvls)
            }
            true => Self::transfer_us(2.0 * self.bytes * others / machine.island, machine.port),
            false => Self::transfer_us(self.bytes * others / machine.island, machine.port),
        };
        estimate
    }

    /// Two barriers of all GPUs: each is one message, as long as Simple's because memory is fenced.
    pub(crate) fn symmetric_hops(&self) -> f64 {
        2.0 * self.constant(Name::HopSimpleUs)
    }
}
