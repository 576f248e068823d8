//! Cloud instances, with the NICs that carry GPU traffic. Front-end network cards and local drives are left out.
//!
//! The PCI trees of p4d, p4de, ND A100 v4 and ND H100 v5 and the two GPUs per NIC of A3 High are published. All other
//! trees, the PCIe widths of their NICs, and the CPU generations of p5 to p6 and of Google's instances are unverified:
//! there, NICs are spread evenly over the GPUs' PCIe switches.

use super::System;
use super::chassis::{Chassis, EMERALD_RAPIDS, MILAN, ROME, SAPPHIRE_RAPIDS, SKYLAKE};
use super::dgx1::V100_PAIRS;
use super::hgx::{AMPERE_BOARD, BLACKWELL_BOARD, HOPPER_BOARD};
use super::server::{Nics, Server, Wiring};
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

const AWS_TYPES: &str = "AWS EC2 accelerated computing instance types";
const GCP_TYPES: &str = "Google Cloud accelerator-optimized machine family";

/// The cloud instances.
pub(super) static SYSTEMS: &[System] = &[
    System {
        name: "p3dn",
        summary: "AWS p3dn.24xlarge: 8x V100, 1x EFA v1 100G",
        source: AWS_TYPES,
        build: p3dn,
    },
    System {
        name: "p4d",
        summary: "AWS p4d.24xlarge: 8x A100 40GB, 4x EFA v1 100G",
        source: "aws-ofi-nccl topology/p4d-24xl-topo.xml",
        build: |system| P4D.build(system),
    },
    System {
        name: "p4de",
        summary: "AWS p4de.24xlarge: 8x A100 80GB, 4x EFA v1 100G",
        source: "aws-ofi-nccl topology/p4de-24xl-topo.xml",
        build: |system| Server { gpu: "a100", ..P4D }.build(system),
    },
    System {
        name: "p5",
        summary: "AWS p5.48xlarge: 8x H100, 32x EFA v2 100G",
        source: AWS_TYPES,
        build: |system| {
            let nics = nics(4, Network::EfaV2, 100, (4, 8));
            GPU_PER_SWITCH.with(MILAN, "h100", nics).build(system)
        },
    },
    System {
        name: "p5en",
        summary: "AWS p5en.48xlarge: 8x H200, 16x EFA v3 200G",
        source: AWS_TYPES,
        build: |system| {
            let nics = nics(2, Network::EfaV3, 200, (5, 8));
            GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h200", nics).build(system)
        },
    },
    System {
        name: "p6-b200",
        summary: "AWS p6-b200.48xlarge: 8x B200, 8x EFA v4 400G",
        source: AWS_TYPES,
        build: |system| blackwell("b200", nics(1, Network::EfaV4, 400, (5, 16))).build(system),
    },
    System {
        name: "p6-b300",
        summary: "AWS p6-b300.48xlarge: 8x B300, 16x EFA v4 400G",
        source: AWS_TYPES,
        build: |system| {
            // Gen6 switches are inferred: a Gen5 slot carries only 63 of the 100 GB/s of each GPU's two NICs.
            let nics = nics(2, Network::EfaV4, 400, (5, 16));
            Server { pcie: 6, ..blackwell("b300", nics) }.build(system)
        },
    },
    System {
        name: "nd-a100-v4",
        summary: "Azure ND96asr_v4: 8x A100 40GB, 8x InfiniBand HDR",
        source: "Azure/azhpc-images topology/ndv4-topo.xml",
        build: |system| ND_A100_V4.build(system),
    },
    System {
        name: "nd-h100-v5",
        summary: "Azure ND96isr_H100_v5: 8x H100, 8x InfiniBand NDR",
        source: "Azure/azhpc-images topology/ndv5-topo.xml",
        build: |system| {
            let nics = nics(1, Network::InfiniBand, 400, (5, 16));
            GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", nics).build(system)
        },
    },
    System {
        name: "a3-high",
        summary: "Google a3-highgpu-8g: 8x H100, 4x 200G for GPUDirect-TCPX",
        source: "Google Cloud accelerator-optimized machine family; NVIDIA/JAX-Toolbox pull request 716",
        build: |system| {
            let nics = nics(1, Network::TcpX, 200, (5, 16));
            PAIR_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", nics).build(system)
        },
    },
    System {
        name: "a3-mega",
        summary: "Google a3-megagpu-8g: 8x H100, 8x 200G for GPUDirect-TCPXO",
        source: GCP_TYPES,
        build: |system| {
            let nics = nics(2, Network::TcpXo, 200, (5, 16));
            PAIR_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", nics).build(system)
        },
    },
    System {
        name: "a3-ultra",
        summary: "Google a3-ultragpu-8g: 8x H200, 8x RoCE 400G",
        source: GCP_TYPES,
        build: |system| {
            let nics = nics(1, Network::Roce, 400, (5, 16));
            GPU_PER_SWITCH.with(EMERALD_RAPIDS, "h200", nics).build(system)
        },
    },
    System {
        name: "a4",
        summary: "Google a4-highgpu-8g: 8x B200, 8x RoCE 400G",
        source: GCP_TYPES,
        build: |system| blackwell("b200", nics(1, Network::Roce, 400, (5, 16))).build(system),
    },
];

/// Two GPUs and one EFA share a PCIe switch; the Cascade Lake host limits all of it to Gen3.
const P4D: Server = Server {
    gpu: "a100-40gb",
    cpus: SKYLAKE,
    numa_nodes: 2,
    switches: &[0, 0, 1, 1],
    pcie: 3,
    gpus_per_switch: 2,
    drives: false,
    nics: nics(1, Network::EfaV1, 100, (3, 16)),
    wiring: AMPERE_BOARD,
};

/// Two sockets of two NUMA nodes; GPUs 0 and 1 are on node 1, and so on as in the published tree.
const ND_A100_V4: Server = Server {
    cpus: ROME,
    numa_nodes: 4,
    switches: &[1, 0, 3, 2],
    pcie: 4,
    nics: nics(2, Network::InfiniBand, 200, (4, 16)),
    ..P4D
};

/// Hopper boards with a PCIe switch for each GPU.
const GPU_PER_SWITCH: Server =
    Server { switches: &[0, 0, 0, 0, 1, 1, 1, 1], gpus_per_switch: 1, ..PAIR_PER_SWITCH };

/// Hopper boards with a PCIe switch for each two GPUs.
const PAIR_PER_SWITCH: Server = Server { gpu: "h100", pcie: 5, wiring: HOPPER_BOARD, ..P4D };

/// Blackwell boards of the clouds: a PCIe switch for each GPU, Emerald Rapids hosts.
fn blackwell(gpu: &'static str, nics: Option<Nics>) -> Server {
    Server { wiring: BLACKWELL_BOARD, ..GPU_PER_SWITCH.with(EMERALD_RAPIDS, gpu, nics) }
}

const fn nics(per_switch: usize, network: Network, gbit: u32, pcie: (u8, u8)) -> Option<Nics> {
    Some(Nics { per_switch, network: LinkKind::Network { network, gbit }, pcie })
}

/// A cube mesh as in DGX-1. Its one EFA is on a root port, so GPUs reach it only through host memory.
fn p3dn(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let numa =
        Server { gpu: "v100", nics: None, wiring: Wiring::Pairs(&V100_PAIRS), ..P4D }.assemble(&mut chassis);
    let efa = LinkKind::Network { network: Network::EfaV1, gbit: 100 };
    chassis.nic(numa[0], efa, 3, 16);
    chassis.finish()
}
