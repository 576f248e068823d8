//! What the engine charges for a library's call: the constants of the closed form, for one hop, one link, one lane at a time.

use weftlink_fabric::{LinkKind, PathType};
use weftlink_plan::Partial;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;

use super::picoseconds;
use crate::constants::Constants;
use crate::engine::wires::Wire;
use crate::engine::{Charges, Sent};
use crate::estimate::{Case, Machine, View};
use crate::library::Prediction;
use crate::setup::{LibraryAlgorithm, Operation, Setup};

pub(super) struct Charged<'a> {
    case: Case<'a>,
    chosen: &'a Prediction,
    setup: &'a Setup,
    /// Lanes of a rank that do the same side by side.
    lanes: f64,
    /// How many such plans share the links, of which one is run: trees have a pair for each NIC.
    alike: f64,
}

impl<'a> Charged<'a> {
    pub(super) fn new(
        constants: &'a Constants,
        machine: &'a Machine,
        setup: &'a Setup,
        chosen: &'a Prediction,
        operation: Operation,
        bytes: f64,
        plan: &Partial,
    ) -> Self {
        let case = Case { constants, machine, view: View::Real, operation, bytes, protocol: chosen.protocol };
        let alike = alike(machine, chosen.algorithm);
        let lanes = match chosen.algorithm {
            LibraryAlgorithm::Direct => 1.0,
            _ => alike * f64::from(plan.well_formed().channels.len().max(1) as u32),
        };
        Self { case, chosen, setup, lanes, alike }
    }

    fn is_direct(&self) -> bool {
        self.chosen.algorithm == LibraryAlgorithm::Direct
    }

    /// Whether tiles fill a pipeline of their own.
    fn is_tiled(&self) -> bool {
        let rooted = matches!(self.case.operation, Operation::Broadcast | Operation::Reduce);
        rooted || !matches!(self.chosen.algorithm, LibraryAlgorithm::Ring | LibraryAlgorithm::Nvls)
    }

    /// What all lanes of a rank bring in one hop.
    fn message(&self, bytes: f64) -> f64 {
        bytes * self.lanes
    }
}

/// How many plans like the one that is run share the links.
pub(super) fn alike(machine: &Machine, algorithm: LibraryAlgorithm) -> f64 {
    if algorithm == LibraryAlgorithm::Tree { machine.lanes } else { 1.0 }
}

impl Charges for Charged<'_> {
    fn launch(&self) -> Picoseconds {
        // Messages are posted one after the other by one thread, which takes longer than any of them is on its way.
        let posted =
            if self.is_direct() { self.chosen.estimate.hops_us + self.chosen.estimate.fill_us } else { 0.0 };
        picoseconds(self.chosen.estimate.launch_us + posted)
    }

    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, sent: Sent) -> Picoseconds {
        if self.is_direct() {
            return Picoseconds(0);
        }
        let across = wire.path == PathType::Net;
        let hop_us = match (protocol, across) {
            _ if self.chosen.algorithm == LibraryAlgorithm::Nvls => self.case.nvls_hops(),
            (None, false) => self.case.nvls_hops() / 2.0,
            (None, true) => self.case.hop_switched(),
            (Some(_), true) if self.chosen.algorithm == LibraryAlgorithm::NvlsTree => {
                self.case.hop_switched()
            }
            (Some(_), true) => self.case.hop_across(self.message(sent.bytes)),
            (Some(_), false) => self.case.step_inside(self.message(sent.bytes), self.chosen.algorithm),
        };
        let fill = if self.is_tiled() { 0.0 } else { self.case.fill_part(self.chosen.algorithm) };
        let time_us = sent.time.0 as f64 / 1e6;
        picoseconds(hop_us + fill * (hop_us * time_us * self.case.growing()).sqrt())
    }

    fn message(&self, _wire: &Wire, _protocol: Protocol) -> Picoseconds {
        Picoseconds(0)
    }

    fn lane(&self, wire: &Wire, _protocol: Option<Protocol>) -> f64 {
        self.case.lane_carries(wire.path == PathType::Net, self.chosen.algorithm) / self.lanes * 1e9
    }

    fn on_the_wire(&self, _wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64 {
        match protocol {
            Some(Protocol::Ll) => (bytes - self.case.free_with_hops() / self.lanes).max(0.0),
            _ => bytes,
        }
    }

    fn capacity(&self, kind: LinkKind, bytes_per_second: f64) -> f64 {
        let carries = self.case.link_carries(self.setup, kind, bytes_per_second);
        match kind {
            LinkKind::Network { .. } if self.alike > 1.0 => self.case.machine.nics * 1e9 / self.alike,
            _ => carries / self.alike,
        }
    }

    fn multicast(&self, _kind: LinkKind) -> f64 {
        let machine = self.case.machine;
        if machine.port > 0.0 { machine.nvls / machine.port } else { 1.0 }
    }

    fn copy(&self) -> f64 {
        f64::INFINITY
    }
}
