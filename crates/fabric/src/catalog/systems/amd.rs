//! AMD Instinct platforms.

use super::System;
use super::chassis::{Chassis, GENOA, MILAN, TRENTO, TURIN};
use super::pcie_boxes::slots;
use super::server::{Server, Wiring};
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

/// The Instinct platforms.
pub(super) static SYSTEMS: &[System] = &[
    System::new(
        "8x-mi300x",
        "8x MI300X, one xGMI link between each pair",
        "AMD Instinct MI300X platform data sheet; MLPerf system 8xMI300X_2xEPYC-9374F",
        |system| PLATFORM.build(system),
    ),
    System::new(
        "8x-mi325x",
        "8x MI325X, one xGMI link between each pair",
        "AMD Instinct MI325X platform data sheet; the host is that of 8x-mi300x (unverified)",
        |system| Server { gpu: "mi325x", ..PLATFORM }.build(system),
    ),
    System::new(
        "8x-mi350x",
        "8x MI350X, one xGMI link between each pair",
        "AMD Instinct MI350X platform data sheet; host unverified",
        |system| Server { gpu: "mi350x", cpus: TURIN, ..PLATFORM }.build(system),
    ),
    System::new(
        "8x-mi355x",
        "8x MI355X, one xGMI link between each pair",
        "AMD Instinct MI355X platform data sheet; host unverified",
        |system| Server { gpu: "mi355x", cpus: TURIN, ..PLATFORM }.build(system),
    ),
    System::new(
        "4x-mi250",
        "4x MI250, 8 dies joined by 1, 2 or 4 xGMI links",
        "RCCL src/graph/rome_models.cc, model 66, for the links; AMD ROCm documentation, MI250 microarchitecture, for the slots",
        mi250_node,
    )
    .checked(),
    System::new(
        "frontier-node",
        "4x MI250X, 8 dies joined by 1, 2 or 4 xGMI links, 4x Slingshot 200G",
        "RCCL src/graph/rome_models.cc, model 74, for links and NUMA nodes; OLCF Frontier user guide for the rest (unverified)",
        frontier_node,
    )
    .checked(),
];

/// Seven of a GPU's eight links go to the seven other GPUs; the eighth is its PCIe slot.
const PLATFORM: Server = Server {
    gpu: "mi300x",
    cpus: GENOA,
    numa_nodes: 2,
    switches: &[0, 0, 0, 0, 1, 1, 1, 1],
    pcie: 5,
    gpus_per_switch: 1,
    drives: false,
    nics: None,
    wiring: Wiring::FullMesh(1),
};

/// Two sockets with two packages each. Each die has a slot of its own, on the CPU; in some servers a PCIe switch or eight lanes.
fn mi250_node(system: &'static System) -> Fabric {
    let (mut chassis, dies, _) = slots(system, "mi250", MILAN, &[4, 4]);
    chassis.wire_pairs(&dies, &MI250_PAIRS);
    chassis.finish()
}

/// A node of Frontier, and of LUMI's partition G. Each die has an xGMI link to the CPU, which is a PCIe slot here. The NIC of
/// each package is on the last link of its odd die, which is a PCIe switch for both here.
fn frontier_node(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(TRENTO, 4);
    let mut dies = Vec::new();
    for node in [3, 1, 0, 2] {
        dies.push(chassis.gpu(numa[node], "mi250x"));
        let switch = chassis.pcie_switch(numa[node], 4);
        dies.push(chassis.gpu(switch, "mi250x"));
        chassis.nic(switch, LinkKind::Network { network: Network::Slingshot, gbit: 200 }, 4, 16);
    }
    chassis.wire_pairs(&dies, &MI250X_PAIRS);
    chassis.finish()
}

/// The same links as in [`MI250X_PAIRS`], with the packages numbered differently.
const MI250_PAIRS: [(usize, usize, u32); 12] = [
    (0, 1, 4),
    (2, 3, 4),
    (4, 5, 4),
    (6, 7, 4),
    (0, 4, 2),
    (2, 6, 2),
    (0, 6, 1),
    (1, 3, 1),
    (1, 7, 1),
    (2, 4, 1),
    (3, 5, 1),
    (5, 7, 1),
];

/// Four links inside a package, one or two between packages.
const MI250X_PAIRS: [(usize, usize, u32); 12] = [
    (0, 1, 4),
    (2, 3, 4),
    (4, 5, 4),
    (6, 7, 4),
    (0, 6, 2),
    (2, 4, 2),
    (0, 2, 1),
    (1, 3, 1),
    (1, 5, 1),
    (3, 7, 1),
    (4, 6, 1),
    (5, 7, 1),
];
