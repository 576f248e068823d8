//! Newer algorithms: PAT, and kernels for symmetric windows.

use weftlink_plan::cost::Form;
use weftlink_plan::plan::Protocol;

use super::{Case, Over, Side, Through};
use crate::constants::Name;
use crate::setup::Operation;
use crate::tuner::PAT_SHARE;

impl Case<'_> {
    /// PAT: a tree for every rank's part, all at once. As many hops as levels, and the bytes of a ring at a lower NIC bandwidth.
    pub(super) fn pat(&self) -> (Form, Through) {
        let machine = self.machine;
        let across = Side {
            hops: machine.levels,
            hop_us: self.hop_across(self.bytes / machine.ranks),
            bytes: self.bytes * (machine.ranks - 1.0) / machine.ranks,
            gbytes_per_second: self.pat_carries(),
        };
        (self.form_of(Side::default(), across, self.fill_network()), self.through_lanes())
    }

    /// GB/s that a rank sends with PAT.
    pub(super) fn pat_carries(&self) -> f64 {
        self.nics(self.machine.lanes) * PAT_SHARE
    }

    /// Every GPU accesses all peers' buffers. With LL each sends everything to all peers, once; otherwise a barrier comes before and
    /// after, and the switch reduces if it can, or each GPU reduces its share and distributes it.
    pub(super) fn symmetric(&self) -> (Form, Through) {
        let machine = self.machine;
        let others = machine.island - 1.0;
        let sums = self.operation == Operation::AllReduce;
        let mut through = Through::default();
        let inside = if self.protocol == Protocol::Ll {
            // All-reduce sends the whole buffer, other collectives one part. Half of LL's bytes are flags.
            let each = if sums { self.bytes } else { self.bytes / machine.island };
            Side {
                hops: 1.0,
                hop_us: self.hop_inside(self.bytes),
                bytes: 2.0 * others * each,
                gbytes_per_second: machine.port,
            }
        } else {
            through.hops[0] = "barriers of all GPUs";
            let (bytes, gbytes_per_second) = match sums {
                true if machine.has_nvls => {
                    through.bytes[0] = Over::Switches;
                    (self.bytes * (1.0 + 1.0 / machine.island), machine.nvls)
                }
                true => (2.0 * self.bytes * others / machine.island, machine.port),
                false => (self.bytes * others / machine.island, machine.port),
            };
            Side { hops: 2.0, hop_us: self.symmetric_hops() / 2.0, bytes, gbytes_per_second }
        };
        (self.form_of(inside, Side::default(), 0.0), through)
    }

    /// Two barriers of all GPUs: each is one message, as long as Simple's because memory is fenced.
    pub(crate) fn symmetric_hops(&self) -> f64 {
        2.0 * self.constant(Name::HopSimpleUs)
    }
}
