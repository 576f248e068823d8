//! Google Cloud machines.

use super::super::System;
use super::super::chassis::{Chassis, EMERALD_RAPIDS, SAPPHIRE_RAPIDS, SKYLAKE};
use super::super::rack::Rack;
use super::super::server::Server;
use super::{AMPERE, GPU_PER_SWITCH, PAIR_PER_SWITCH, blackwell, nics};
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

const TYPES: &str = "Google Cloud accelerator-optimized machine family";

/// The Google Cloud machines.
pub(in super::super) static SYSTEMS: &[System] = &[
    System::new("a2-high", "Google a2-highgpu-8g: 8x A100 40GB, 1x Ethernet 100G", TYPES, |system| {
        a2(system, "a100-40gb")
    }),
    System::new("a2-ultra", "Google a2-ultragpu-8g: 8x A100 80GB, 1x Ethernet 100G", TYPES, |system| {
        a2(system, "a100")
    }),
    System::new(
        "a3-high",
        "Google a3-highgpu-8g: 8x H100, 4x 200G for GPUDirect-TCPX",
        "Google Cloud accelerator-optimized machine family; NVIDIA/JAX-Toolbox pull request 716",
        |system| {
            let nics = nics(1, Network::TcpX, 200, (5, 16));
            PAIR_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", nics).build(system)
        },
    ),
    System::new("a3-mega", "Google a3-megagpu-8g: 8x H100, 8x 200G for GPUDirect-TCPXO", TYPES, |system| {
        let nics = nics(2, Network::TcpXo, 200, (5, 16));
        PAIR_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", nics).build(system)
    }),
    System::new("a3-ultra", "Google a3-ultragpu-8g: 8x H200, 8x RoCE 400G", TYPES, |system| {
        let nics = nics(1, Network::Roce, 400, (5, 16));
        GPU_PER_SWITCH.with(EMERALD_RAPIDS, "h200", nics).build(system)
    }),
    // Sources conflict: other hosts of the same board have two GPUs and two NICs below each of four switches.
    System::new("a4", "Google a4-highgpu-8g: 8x B200, 8x RoCE 400G", TYPES, |system| {
        blackwell("b200", nics(1, Network::Roce, 400, (5, 16))).build(system)
    }),
    System::new(
        "a4x",
        "Google a4x-highgpu-4g: 72x GB200, 4x RoCE 400G in each of 18 trays",
        "Google Cloud accelerator-optimized machine family; the place of the NICs is unverified",
        |system| Rack::GB200.with_nic(Network::Roce, 400).build(system),
    ),
    System::new(
        "a4x-max",
        "Google a4x-maxgpu-4g: 72x GB300, 4x RoCE 800G in each of 18 trays",
        "Google Cloud accelerator-optimized machine family (unverified)",
        |system| Rack::GB300.with_nic(Network::Roce, 800).build(system),
    ),
];

/// One NIC for everything, on a root port: GPU traffic passes through host memory.
fn a2(system: &'static System, gpu: &'static str) -> Fabric {
    let mut chassis = Chassis::new(system);
    let numa = Server { cpus: SKYLAKE, pcie: 3, gpu, ..AMPERE }.assemble(&mut chassis);
    chassis.nic(numa[0], LinkKind::Network { network: Network::Ethernet, gbit: 100 }, 3, 16);
    chassis.finish()
}
