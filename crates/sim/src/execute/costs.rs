//! The cost model for a library's call: the constants of the closed form, for each hop, link and lane.

use std::collections::BTreeMap;

use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, PathType};
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::cost::lines;
use weftlink_plan::plan::Protocol;

use super::SLOTS;
use crate::constants::Constants;
use crate::engine::wires::Wire;
use crate::engine::{CostModel, LinkLine, Sent};
use crate::estimate::{Case, Machine, View};
use crate::library::Prediction;
use crate::setup::{LibraryAlgorithm, Operation};

/// Bytes per second of links without a cost.
const UNLIMITED: f64 = 1e18;

/// Maximum number of tiles of a call.
const TILES_MAX: f64 = 65536.0;

/// How a GPU's links to other GPUs are divided, and the NICs of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// The links of a GPU to others in units of its fastest, parallel links combined; 0 if it has none.
    links: f64,
    /// Number of NICs per island.
    nics: f64,
    /// Number of NICs of a host that are connected to the same switch.
    nics_on_switch: f64,
    /// GPUs of the host that has the fewest.
    gpus_least: f64,
}

impl Ports {
    pub(super) fn of(fabric: &Fabric, machine: &Machine) -> Self {
        let port = |gpu: &DeviceId| {
            let links = fabric.links_from(*gpu).iter();
            let to_gpus = links.filter(|link| fabric.spec(link).kind.is_gpu_fabric());
            let rates: Vec<f64> = to_gpus.clone().map(|link| lines::line(fabric, link)).collect();
            // Through switches, all links together reach any peer.
            let is_switched = to_gpus
                .clone()
                .any(|link| matches!(fabric.device(link.target).kind, DeviceKind::NvSwitch { .. }));
            let all = rates.iter().sum::<f64>();
            let fastest = if is_switched { all } else { rates.iter().copied().fold(0.0, f64::max) };
            (all, if fastest > 0.0 { all / fastest } else { 0.0 })
        };
        // The first of the slowest: its links count as those of all.
        let ports = fabric.gpus().iter().map(port).filter(|(all, _)| *all > 0.0);
        let slowest = ports.min_by(|one, other| one.0.total_cmp(&other.0));
        let links = slowest.map_or(0.0, |(_, links)| links);
        let mut hosts: BTreeMap<_, u32> = BTreeMap::new();
        for gpu in fabric.gpus() {
            *hosts.entry(fabric.device(*gpu).host).or_default() += 1;
        }
        Self {
            links,
            nics: machine.nic_count,
            nics_on_switch: f64::from(nics_on_switch(fabric)),
            gpus_least: f64::from(hosts.into_values().min().unwrap_or(1)),
        }
    }

    /// Those of a job with this share of each island and its NICs.
    pub(super) fn for_share(self, share: f64) -> Self {
        Self { nics: (self.nics * share).max(1.0), ..self }
    }
}

/// The most cables of the first host that lead to one network switch.
fn nics_on_switch(fabric: &Fabric) -> u32 {
    let host = fabric.gpus().first().and_then(|gpu| fabric.device(*gpu).host);
    let nics = fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_)));
    let mut switches: BTreeMap<DeviceId, u32> = BTreeMap::new();
    for nic in nics.filter(|nic| fabric.device(*nic).host == host) {
        for link in fabric.links_from(nic) {
            if matches!(fabric.spec(link).kind, LinkKind::Network { .. }) {
                *switches.entry(link.target).or_default() += link.count;
            }
        }
    }
    switches.into_values().max().unwrap_or(1)
}

pub(super) struct LibraryCosts<'a> {
    case: Case<'a>,
    chosen: &'a Prediction,
    ports: Ports,
    /// Lanes of a rank that do the same in parallel.
    lanes: f64,
    /// Number of identical plans that share the links, of which one is simulated: trees have a pair for each NIC.
    identical_plans: f64,
}

impl<'a> LibraryCosts<'a> {
    pub(super) fn new(
        constants: &'a Constants,
        machine: &'a Machine,
        ports: Ports,
        chosen: &'a Prediction,
        (operation, bytes): (Operation, f64),
        channels: usize,
    ) -> Self {
        let case =
            Case { constants, machine, view: View::Actual, operation, bytes, protocol: chosen.protocol };
        let identical_plans = identical_plans(machine, &ports, chosen.algorithm, operation);
        let channels = channels.max(1) as f64;
        let lanes = match chosen.algorithm {
            LibraryAlgorithm::Direct => 1.0,
            // Every rank is the root of a share.
            LibraryAlgorithm::NvlsTree => machine.island * channels,
            _ => identical_plans * channels,
        };
        Self { case, chosen, ports, lanes, identical_plans }
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
    ports: &Ports,
    algorithm: LibraryAlgorithm,
    operation: Operation,
) -> f64 {
    let is_rooted = matches!(operation, Operation::Broadcast | Operation::Reduce);
    match algorithm {
        LibraryAlgorithm::Ring if !is_rooted => 1.0,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Tree if machine.islands > 1 => machine.lanes,
        LibraryAlgorithm::Ring | LibraryAlgorithm::Tree => ports.links.round().max(1.0),
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
        Picoseconds::from_us(estimate.launch_us + at_once)
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
        let time_us = sent.time.us();
        Picoseconds::from_us(hop_us + fill * (hop_us * time_us * self.case.step_growth()).sqrt())
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

    fn capacity(&self, link: LinkLine) -> f64 {
        let machine = self.case.machine;
        let algorithm = self.chosen.algorithm;
        // The model's rates are those of the slowest GPU and host; a link has its part of them by its line rate.
        let part_of = |carried: f64, line: f64| carried * link.bytes_per_second / line;
        match link.kind {
            LinkKind::Network { .. } if link.is_between_switches => {
                // So do the cables of a switch to which a host has only that NIC.
                let sharing = self.identical_plans * self.ports.nics_on_switch / self.ports.nics;
                part_of(self.case.carried_cables(algorithm), 1.0) / sharing.max(1.0)
            }
            LinkKind::Network { .. } => {
                // A plan of several identical ones has a NIC to itself, or its share of one.
                let shared = self.ports.nics / self.ports.nics.max(self.identical_plans);
                part_of(self.case.carried_nics(algorithm), machine.nics_line) * shared
            }
            kind if kind.is_gpu_fabric() && self.is_in_network() => UNLIMITED,
            kind if kind.is_gpu_fabric() => {
                // In a mesh, identical plans use different links: each uses its share of the whole port.
                let times = if self.identical_plans > 1.0 { self.ports.links } else { 1.0 };
                // In a mesh, the two directions of a tree use different links, but all trees together share one port.
                let is_twice = algorithm == LibraryAlgorithm::Tree
                    && machine.islands == 1
                    && (self.identical_plans + 1.0).round() >= machine.island;
                let share = if is_twice { 0.5 } else { 1.0 };
                let carried = match machine.bridge {
                    Some(bridge) => bridge * self.case.carried_port(algorithm) / machine.port,
                    None => self.case.carried_port(algorithm),
                };
                share * times * part_of(carried, machine.port_line) / self.identical_plans
            }
            LinkKind::Pcie { .. } if machine.pcie || machine.bridge.is_some() => {
                part_of(self.case.carried_port(algorithm), machine.slot_line) / self.identical_plans
            }
            _ if self.is_in_network() => UNLIMITED,
            LinkKind::Pcie { .. } | LinkKind::C2c => {
                // Each of several identical plans leaves from another GPU, as long as there are enough.
                let sharing = self.identical_plans / self.ports.gpus_least;
                part_of(self.case.copied(), 1.0) / sharing.max(1.0)
            }
            LinkKind::Socket(_) => link.bytes_per_second / self.identical_plans,
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
