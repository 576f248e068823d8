//! Newer algorithms: PAT, and kernels for symmetric windows.

use weftlink_plan::plan::Protocol;

use super::collective::{ACROSS, INSIDE};
use super::{Case, Estimate, Over};
use crate::constants::Name;
use crate::setup::Operation;
use crate::tuner::PAT_SHARE;

impl Case<'_> {
    /// PAT: a tree for every rank's part, all at once. As many hops as levels, and the bytes of a ring at a lower NIC bandwidth.
    pub(super) fn pat(&self) -> Estimate {
        let machine = self.machine;
        let mut estimate = self.launch();
        let message = self.bytes / machine.ranks;
        Self::set_hops(&mut estimate, &[(ACROSS, machine.levels, self.hop_across(message))]);
        let moved = self.bytes * (machine.ranks - 1.0) / machine.ranks;
        Self::set_wire(&mut estimate, moved, self.pat_carries(), self.nics_or_lanes(machine.lanes));
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
            Self::set_hops(&mut estimate, &[(INSIDE, 1.0, self.hop_inside(self.bytes))]);
            // All-reduce sends the whole buffer, other collectives one part. Half of LL's bytes are flags.
            let each = if sums { self.bytes } else { self.bytes / machine.island };
            Self::set_wire(&mut estimate, 2.0 * others * each, machine.port, Over::Port);
            return estimate;
        }
        Self::set_hops(&mut estimate, &[("barriers of all GPUs", 2.0, self.symmetric_hops() / 2.0)]);
        let (moved, rate, over) = match sums {
            true if machine.has_nvls => {
                (self.bytes * (1.0 + 1.0 / machine.island), machine.nvls, Over::Switches)
            }
            true => (2.0 * self.bytes * others / machine.island, machine.port, Over::Port),
            false => (self.bytes * others / machine.island, machine.port, Over::Port),
        };
        Self::set_wire(&mut estimate, moved, rate, over);
        estimate
    }

    /// Two barriers of all GPUs: each is one message, as long as Simple's because memory is fenced.
    pub(crate) fn symmetric_hops(&self) -> f64 {
        2.0 * self.constant(Name::HopSimpleUs)
    }
}
