//! What the engine charges for a library's call: the constants of the closed form, for one hop, one link, one lane at a time.

use weftlink_fabric::{DeviceKind, Fabric, Link, LinkKind, Measure, PathType};
use weftlink_plan::Partial;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;

use super::{SLOTS, picoseconds};
use crate::constants::Constants;
use crate::engine::wires::Wire;
use crate::engine::{Charges, Sent};
use crate::estimate::{Case, Machine, View};
use crate::library::Prediction;
use crate::setup::{LibraryAlgorithm, Operation};

/// Bytes per second of links that nothing is charged for.
const UNLIMITED: f64 = 1e18;

/// Tiles of a call at most: buffers are not shorter than this.
const TILES_MAX: f64 = 65536.0;

/// What a fabric says of its links, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// All links of a GPU to others.
    port: f64,
    /// The fastest of them, those side by side together.
    link: f64,
    /// A NIC's, the fastest of all.
    nic: f64,
    /// NICs of an island.
    nics: f64,
}

impl Lines {
    pub(super) fn of(fabric: &Fabric, machine: &Machine) -> Self {
        let rate = |link: &Link| fabric.rate(link, Measure::Effective).bytes_per_second() as f64;
        let of_gpu = fabric.gpus().first().map_or(&[][..], |gpu| fabric.links_from(*gpu));
        let to_gpus = of_gpu.iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric()).map(rate);
        let port = to_gpus.clone().sum();
        // Through switches all of them reach everybody.
        let is_switched =
            of_gpu.iter().any(|link| matches!(fabric.device(link.target).kind, DeviceKind::NvSwitch { .. }));
        let link = if is_switched { port } else { to_gpus.fold(0.0, f64::max) };
        let is_nic = |link: &&Link| {
            matches!(fabric.device(link.source).kind, DeviceKind::Nic(_))
                && matches!(fabric.spec(link).kind, LinkKind::Network { .. })
        };
        let cables: Vec<f64> = fabric.links().iter().filter(is_nic).map(rate).collect();
        let nics = cables.len() as f64 / f64::from(machine.islands);
        Self { port, link, nic: cables.into_iter().fold(0.0, f64::max), nics }
    }
}

impl Lines {
    /// Those of a job that has this part of each island, and of its NICs.
    pub(super) fn of_part(self, part: f64) -> Self {
        Self { nics: (self.nics * part).max(1.0), ..self }
    }
}

pub(super) struct Charged<'a> {
    case: Case<'a>,
    chosen: &'a Prediction,
    lines: Lines,
    /// Lanes of a rank that do the same side by side.
    lanes: f64,
    /// How many such plans share the links, of which one is run: trees have a pair for each NIC.
    alike: f64,
}

impl<'a> Charged<'a> {
    pub(super) fn new(
        constants: &'a Constants,
        machine: &'a Machine,
        lines: Lines,
        chosen: &'a Prediction,
        operation: Operation,
        bytes: f64,
        plan: &Partial,
    ) -> Self {
        let case = Case { constants, machine, view: View::Real, operation, bytes, protocol: chosen.protocol };
        let alike = alike(machine, &lines, chosen.algorithm, operation);
        let lanes = match chosen.algorithm {
            LibraryAlgorithm::Direct => 1.0,
            // Every rank is the head of a part.
            LibraryAlgorithm::NvlsTree => machine.island * plan.well_formed().channels.len().max(1) as f64,
            _ => alike * f64::from(plan.well_formed().channels.len().max(1) as u32),
        };
        Self { case, chosen, lines, lanes, alike }
    }

    /// For a plan that is run whole: none are like it.
    pub(super) fn alone(self) -> Self {
        Self { lanes: self.lanes / self.alike, alike: 1.0, ..self }
    }

    /// Whether latency is charged at once. Messages are posted one after the other by one thread, which takes longer than any of
    /// them is on its way. Of sums in the network only the whole is known.
    fn is_late_at_once(&self) -> bool {
        matches!(self.chosen.algorithm, LibraryAlgorithm::Direct) || self.is_summed_across()
    }

    /// Whether the switches of the network sum. What goes on inside is in the shadow of the NICs.
    fn is_summed_across(&self) -> bool {
        matches!(self.chosen.algorithm, LibraryAlgorithm::CollnetDirect | LibraryAlgorithm::CollnetChain)
    }

    /// Whether tiles fill a pipeline of their own.
    fn is_tiled(&self) -> bool {
        self.case.stages(self.chosen.algorithm).is_some()
    }

    /// Tiles, so that filling the pipeline takes what it does with steps of the library's length.
    pub(super) fn tiles(&self) -> u32 {
        let estimate = &self.chosen.estimate;
        let stages = self.case.stages(self.chosen.algorithm).unwrap_or(0.0);
        let mut most = TILES_MAX;
        if self.chosen.algorithm == LibraryAlgorithm::Ring {
            // Along a chain, all slots together are on their way for as long as a hop takes: shorter tiles would wait for slots.
            let hop_us = match self.case.machine.islands {
                1 => self.case.step_inside(self.case.bytes, self.chosen.algorithm),
                _ => self.case.hop_across(self.case.bytes),
            };
            most = most.min(estimate.wire_us * f64::from(SLOTS) / (2.0 * hop_us));
        }
        (stages * estimate.wire_us / estimate.fill_us.max(1e-3)).round().clamp(1.0, most.max(1.0)) as u32
    }

    /// What all lanes of a rank bring in one hop.
    fn message(&self, bytes: f64) -> f64 {
        bytes * self.lanes
    }
}

/// How many plans like the one that is run share the links: trees have a pair for each NIC, and what has a root goes along as many rings as
/// NICs or links of a mesh carry, of which a plan has one.
pub(super) fn alike(
    machine: &Machine,
    lines: &Lines,
    algorithm: LibraryAlgorithm,
    operation: Operation,
) -> f64 {
    let is_rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
    match algorithm {
        LibraryAlgorithm::Ring if !is_rooted => 1.0,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Tree if machine.islands > 1 => machine.lanes,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Tree if lines.link > 0.0 => {
            (lines.port / lines.link).round().max(1.0)
        }
        _ => 1.0,
    }
}

impl Charges for Charged<'_> {
    fn launch(&self) -> Picoseconds {
        let estimate = &self.chosen.estimate;
        let at_once = match self.chosen.algorithm {
            _ if self.is_late_at_once() => estimate.hops_us + estimate.fill_us,
            // To enter the switches' group and to leave it, once for all tiles.
            LibraryAlgorithm::NvlsTree => self.case.nvls_hops(),
            _ => 0.0,
        };
        picoseconds(estimate.launch_us + at_once)
    }

    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, sent: Sent) -> Picoseconds {
        if self.is_late_at_once() {
            return Picoseconds(0);
        }
        let across = wire.path == PathType::Net;
        let hop_us = match (protocol, across) {
            _ if self.chosen.algorithm == LibraryAlgorithm::Nvls => self.case.nvls_hops(),
            (None, _) if self.chosen.algorithm == LibraryAlgorithm::Symmetric => {
                self.case.symmetric_hops() / 2.0
            }
            // Signals of a tile pass while others are moved.
            (None, _) => 0.0,
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

    fn lane(&self, wire: &Wire, _protocol: Option<Protocol>) -> f64 {
        self.case.lane_carries(wire.path == PathType::Net, self.chosen.algorithm) / self.lanes * 1e9
    }

    fn on_the_wire(&self, _wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64 {
        match protocol {
            Some(_) => bytes * self.case.part_on_wire(self.chosen.algorithm),
            None => bytes,
        }
    }

    fn capacity(&self, kind: LinkKind, bytes_per_second: f64) -> f64 {
        let machine = self.case.machine;
        // What of its line rate a link carries is charged, so a link that is slower than its like stays slower.
        let algorithm = self.chosen.algorithm;
        match kind {
            LinkKind::Network { .. } => {
                let nics = self.lines.nic * self.lines.nics.max(self.alike);
                self.case.carried_nics(algorithm) * 1e9 * bytes_per_second / nics
            }
            kind if kind.is_gpu_fabric() && self.is_summed_across() => UNLIMITED,
            kind if kind.is_gpu_fabric() => {
                // Plans that are alike go other ways in a mesh: what one of them uses is its part of the whole port.
                let line = if self.alike > 1.0 { self.lines.link } else { self.lines.port };
                // Up and down a tree in a mesh are links of their own, and yet all trees together have the port once.
                let is_twice = algorithm == LibraryAlgorithm::Tree
                    && machine.islands == 1
                    && (self.alike + 1.0).round() >= machine.island;
                let part = if is_twice { 0.5 } else { 1.0 };
                part * self.case.carried_port(algorithm) * 1e9 * bytes_per_second / line / self.alike
            }
            LinkKind::Pcie { .. } if machine.pcie => self.case.carried_port(algorithm) * 1e9 / self.alike,
            _ => UNLIMITED,
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
