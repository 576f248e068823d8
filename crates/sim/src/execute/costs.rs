//! The cost model for a library's call: the constants of the closed form, for each hop, link and lane.

use weftlink_fabric::{DeviceKind, Fabric, Link, LinkKind, Measure, PathType};
use weftlink_plan::Partial;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;

use super::{SLOTS, picoseconds};
use crate::constants::Constants;
use crate::engine::wires::Wire;
use crate::engine::{CostModel, Sent};
use crate::estimate::{Case, Machine, View};
use crate::library::Prediction;
use crate::setup::{LibraryAlgorithm, Operation};

/// Bytes per second of links without a cost.
const UNLIMITED: f64 = 1e18;

/// Maximum number of tiles of a call.
const TILES_MAX: f64 = 65536.0;

/// Line rates of a fabric's links, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineRates {
    /// All links of a GPU to other GPUs.
    port: f64,
    /// The fastest link of a GPU, parallel links combined.
    link: f64,
    /// The fastest NIC.
    nic: f64,
    /// Number of NICs per island.
    nics: f64,
}

impl LineRates {
    pub(super) fn of(fabric: &Fabric, machine: &Machine) -> Self {
        let rate = |link: &Link| fabric.rate(link, Measure::Effective).bytes_per_second() as f64;
        let of_gpu = fabric.gpus().first().map_or(&[][..], |gpu| fabric.links_from(*gpu));
        let to_gpus = of_gpu.iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric()).map(rate);
        let port = to_gpus.clone().sum();
        // Through switches, all links together reach any peer.
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

impl LineRates {
    /// The rates for a job with this share of each island and its NICs.
    pub(super) fn for_share(self, share: f64) -> Self {
        Self { nics: (self.nics * share).max(1.0), ..self }
    }
}

pub(super) struct LibraryCosts<'a> {
    case: Case<'a>,
    chosen: &'a Prediction,
    lines: LineRates,
    /// Lanes of a rank that do the same in parallel.
    lanes: f64,
    /// Number of identical plans that share the links, of which one is simulated: trees have a pair for each NIC.
    identical_plans: f64,
}

impl<'a> LibraryCosts<'a> {
    pub(super) fn new(
        constants: &'a Constants,
        machine: &'a Machine,
        lines: LineRates,
        chosen: &'a Prediction,
        operation: Operation,
        bytes: f64,
        plan: &Partial,
    ) -> Self {
        let case =
            Case { constants, machine, view: View::Actual, operation, bytes, protocol: chosen.protocol };
        let identical_plans = identical_plans(machine, &lines, chosen.algorithm, operation);
        let lanes = match chosen.algorithm {
            LibraryAlgorithm::Direct => 1.0,
            // Every rank is the root of a share.
            LibraryAlgorithm::NvlsTree => machine.island * plan.well_formed().channels.len().max(1) as f64,
            _ => identical_plans * f64::from(plan.well_formed().channels.len().max(1) as u32),
        };
        Self { case, chosen, lines, lanes, identical_plans }
    }

    /// For a single plan that has the links to itself.
    pub(super) fn alone(self) -> Self {
        Self { lanes: self.lanes / self.identical_plans, identical_plans: 1.0, ..self }
    }

    /// Whether all latency is charged at launch. One thread posts messages in turn, which takes longer than any message's latency; and for
    /// reductions in the network only the total latency is known.
    fn charges_latency_once(&self) -> bool {
        matches!(self.chosen.algorithm, LibraryAlgorithm::Direct) || self.is_in_network()
    }

    /// Whether network switches reduce. The NICs then hide the traffic inside a node.
    fn is_in_network(&self) -> bool {
        matches!(self.chosen.algorithm, LibraryAlgorithm::CollnetDirect | LibraryAlgorithm::CollnetChain)
    }

    /// Whether the simulated tiles form a pipeline.
    fn is_tiled(&self) -> bool {
        self.case.stages(self.chosen.algorithm).is_some()
    }

    /// Number of tiles for which filling the pipeline takes as long as with the library's step length.
    pub(super) fn tiles(&self) -> u32 {
        let estimate = &self.chosen.estimate;
        let stages = self.case.stages(self.chosen.algorithm).unwrap_or(0.0);
        let mut most = TILES_MAX;
        if self.chosen.algorithm == LibraryAlgorithm::Ring {
            // In a chain, the slots together must cover the latency of a hop: with shorter tiles the sender would wait for slots.
            let hop_us = match self.case.machine.islands {
                1 => self.case.step_inside(self.case.bytes, self.chosen.algorithm),
                _ => self.case.hop_across(self.case.bytes),
            };
            most = most.min(estimate.wire_us * f64::from(SLOTS) / (2.0 * hop_us));
        }
        (stages * estimate.wire_us / estimate.fill_us.max(1e-3)).round().clamp(1.0, most.max(1.0)) as u32
    }

    /// Bytes of all lanes of a rank in one hop.
    fn message(&self, bytes: f64) -> f64 {
        bytes * self.lanes
    }
}

/// Number of identical plans that share the links, of which one is simulated: trees have a pair for each NIC, and rooted collectives use a
/// ring for each NIC or link of a mesh.
pub(super) fn identical_plans(
    machine: &Machine,
    lines: &LineRates,
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

impl CostModel for LibraryCosts<'_> {
    fn launch(&self) -> Picoseconds {
        let estimate = &self.chosen.estimate;
        let at_once = match self.chosen.algorithm {
            _ if self.charges_latency_once() => estimate.hops_us + estimate.fill_us,
            // Synchronising with the switches' group, once for all tiles.
            LibraryAlgorithm::NvlsTree => self.case.nvls_hops(),
            _ => 0.0,
        };
        picoseconds(estimate.launch_us + at_once)
    }

    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, sent: Sent) -> Picoseconds {
        if self.charges_latency_once() {
            return Picoseconds(0);
        }
        let across = wire.path == PathType::Net;
        let hop_us = match (protocol, across) {
            _ if self.chosen.algorithm == LibraryAlgorithm::Nvls => self.case.nvls_hops(),
            (None, _) if self.chosen.algorithm == LibraryAlgorithm::Symmetric => {
                self.case.symmetric_hops() / 2.0
            }
            // Signals overlap with the transfers of other tiles.
            (None, _) => 0.0,
            (Some(_), true) if self.chosen.algorithm == LibraryAlgorithm::NvlsTree => {
                self.case.hop_switched()
            }
            (Some(_), true) => self.case.hop_across(self.message(sent.bytes)),
            (Some(_), false) => self.case.step_inside(self.message(sent.bytes), self.chosen.algorithm),
        };
        let fill = if self.is_tiled() { 0.0 } else { self.case.fill_factor(self.chosen.algorithm) };
        let time_us = sent.time.0 as f64 / 1e6;
        picoseconds(hop_us + fill * (hop_us * time_us * self.case.step_growth()).sqrt())
    }

    fn lane(&self, wire: &Wire, _protocol: Option<Protocol>) -> f64 {
        self.case.lane_carries(wire.path == PathType::Net, self.chosen.algorithm) / self.lanes * 1e9
    }

    fn on_the_wire(&self, _wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64 {
        match protocol {
            Some(_) => bytes * self.case.wire_fraction(self.chosen.algorithm),
            None => bytes,
        }
    }

    fn capacity(&self, kind: LinkKind, bytes_per_second: f64) -> f64 {
        let machine = self.case.machine;
        // Costs scale with the line rate, so a link slower than its peers stays slower.
        let algorithm = self.chosen.algorithm;
        match kind {
            LinkKind::Network { .. } => {
                let nics = self.lines.nic * self.lines.nics.max(self.identical_plans);
                self.case.carried_nics(algorithm) * 1e9 * bytes_per_second / nics
            }
            kind if kind.is_gpu_fabric() && self.is_in_network() => UNLIMITED,
            kind if kind.is_gpu_fabric() => {
                // In a mesh, identical plans use different links: each uses its share of the whole port.
                let line = if self.identical_plans > 1.0 { self.lines.link } else { self.lines.port };
                // In a mesh, the two directions of a tree use different links, but all trees together share one port.
                let is_twice = algorithm == LibraryAlgorithm::Tree
                    && machine.islands == 1
                    && (self.identical_plans + 1.0).round() >= machine.island;
                let share = if is_twice { 0.5 } else { 1.0 };
                share * self.case.carried_port(algorithm) * 1e9 * bytes_per_second
                    / line
                    / self.identical_plans
            }
            LinkKind::Pcie { .. } if machine.pcie => {
                self.case.carried_port(algorithm) * 1e9 / self.identical_plans
            }
            _ => UNLIMITED,
        }
    }

    fn multicast(&self) -> f64 {
        let machine = self.case.machine;
        if machine.port > 0.0 { machine.nvls / machine.port } else { 1.0 }
    }

    fn copy(&self) -> f64 {
        f64::INFINITY
    }
}
