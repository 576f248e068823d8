//! AWS EC2 instances.

use super::super::System;
use super::super::chassis::{Chassis, EMERALD_RAPIDS, MILAN, ROME, SAPPHIRE_RAPIDS, SKYLAKE};
use super::super::dgx1::V100_PAIRS;
use super::super::hgx::BLACKWELL_BOARD;
use super::super::pcie_boxes::slots;
use super::super::rack::Rack;
use super::super::server::{Server, Wiring};
use super::{AMPERE, GPU_PER_SWITCH, PAIR_PER_SWITCH, blackwell, nics};
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

const TYPES: &str = "AWS EC2 accelerated computing instance types";

/// The AWS instances.
pub(in super::super) static SYSTEMS: &[System] = &[
    System::new("p3dn", "AWS p3dn.24xlarge: 8x V100, 1x EFA v1 100G", TYPES, p3dn),
    System::new(
        "p4d",
        "AWS p4d.24xlarge: 8x A100 40GB, 4x EFA v1 100G",
        "aws-ofi-nccl topology/p4d-24xl-topo.xml",
        |system| P4D.build(system),
    )
    .checked(),
    System::new(
        "p4de",
        "AWS p4de.24xlarge: 8x A100 80GB, 4x EFA v1 100G",
        "aws-ofi-nccl topology/p4de-24xl-topo.xml",
        |system| Server { gpu: "a100", ..P4D }.build(system),
    )
    .checked(),
    System::new(
        "p5",
        "AWS p5.48xlarge: 8x H100, 32x EFA v2 100G",
        "aws-ofi-nccl topology/p5.48xl-topo.xml for the switches; AWS EC2 instance types for the CPUs",
        |system| GPU_PER_SWITCH.with(MILAN, "h100", nics(4, Network::EfaV2, 100, (4, 8))).build(system),
    )
    .checked(),
    System::new(
        "p5e",
        "AWS p5e.48xlarge: 8x H200, 32x EFA v2 100G",
        "AWS EC2 accelerated computing instance types; the tree is that of p5 (unverified)",
        |system| GPU_PER_SWITCH.with(MILAN, "h200", nics(4, Network::EfaV2, 100, (4, 8))).build(system),
    ),
    System::new(
        "p5en",
        "AWS p5en.48xlarge: 8x H200, 16x EFA v3 200G",
        "aws-ofi-nccl tests/unit/fixtures/topology/p5en/topology.xml",
        |system| {
            let nics = nics(4, Network::EfaV3, 200, (5, 8));
            PAIR_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h200", nics).build(system)
        },
    )
    .checked(),
    System::new(
        "p6-b200",
        "AWS p6-b200.48xlarge: 8x B200, 8x EFA v4 400G",
        "aws-ofi-nccl tests/unit/fixtures/topology/p6-b200/topology.xml",
        |system| {
            let nics = nics(2, Network::EfaV4, 400, (5, 16));
            let hopper = PAIR_PER_SWITCH.with(EMERALD_RAPIDS, "b200", nics);
            Server { wiring: BLACKWELL_BOARD, ..hopper }.build(system)
        },
    )
    .checked(),
    System::new(
        "p6-b300",
        "AWS p6-b300.48xlarge: 8x B300, 16x EFA v4 400G",
        "aws-ofi-nccl tests/unit/fixtures/topology/p6-b300/topology.xml",
        |system| {
            // Gen6 from the switch to the GPU only: NICs and CPU have Gen5.
            let nics = nics(2, Network::EfaV4, 400, (5, 16));
            Server { pcie: 6, ..blackwell("b300", nics) }.build(system)
        },
    )
    .checked(),
    System::new(
        "p6e-gb200",
        "AWS P6e-GB200 UltraServer: 72x GB200, 8x EFA 200G in each of 18 trays",
        "aws-ofi-nccl tests/unit/fixtures/topology/p6e-gb200/topology.xml",
        |system| Rack::P6E_GB200.build(system),
    )
    .checked(),
    System::new(
        "p6e-gb300",
        "AWS P6e-GB300 UltraServer: 72x GB300, 8x EFA 200G in each of 18 trays",
        "AWS P6e-GB300 UltraServers announcement for the GPUs; tree and EFAs are those of p6e-gb200 (unverified)",
        |system| Rack::P6E_GB300.build(system),
    ),
    System::new(
        "g5",
        "AWS g5.48xlarge: 8x A10G, 1x EFA 100G",
        "aws-ofi-nccl topology/g5.48xl-topo.xml for the NUMA nodes; AWS EC2 instance types for the rest",
        g5,
    )
    .checked(),
    System::new("g6", "AWS g6.48xlarge: 8x L4, 1x EFA 100G", TYPES, |system| card_instance(system, "l4", 1)),
    System::new("g6e", "AWS g6e.48xlarge: 8x L40S, 4x EFA 100G", TYPES, |system| {
        card_instance(system, "l40s", 2)
    }),
];

/// Two GPUs and one EFA share a PCIe switch; the Cascade Lake host limits all of it to Gen3.
const P4D: Server = Server {
    gpu: "a100-40gb",
    cpus: SKYLAKE,
    pcie: 3,
    nics: nics(1, Network::EfaV1, 100, (3, 16)),
    ..AMPERE
};

/// A cube mesh as in DGX-1. Its one EFA is on a root port, so GPUs reach it only through host memory.
fn p3dn(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let numa =
        Server { gpu: "v100", nics: None, wiring: Wiring::Pairs(&V100_PAIRS), ..P4D }.assemble(&mut chassis);
    chassis.nic(numa[0], LinkKind::Network { network: Network::EfaV1, gbit: 100 }, 3, 16);
    chassis.finish()
}

/// GPUs and EFA on root ports; the EFA is on the second socket.
fn g5(system: &'static System) -> Fabric {
    let (mut chassis, _, numa) = slots(system, "a10g", ROME, &[4, 4]);
    chassis.nic(numa[1], LinkKind::Network { network: Network::Efa, gbit: 100 }, 3, 16);
    chassis.finish()
}

/// Cards on root ports, with EFAs on the sockets in turn; their tree is unverified.
fn card_instance(system: &'static System, gpu: &str, nics_per_node: usize) -> Fabric {
    let (mut chassis, _, numa) = slots(system, gpu, MILAN, &[4, 4]);
    let nodes = if nics_per_node == 1 { &numa[..1] } else { &numa[..] };
    for node in nodes {
        for _ in 0..nics_per_node {
            chassis.nic(*node, LinkKind::Network { network: Network::Efa, gbit: 100 }, 4, 16);
        }
    }
    chassis.finish()
}
