//! Workstations and servers with GPUs in PCIe slots.
//!
//! These are typical builds, not products: one socket for up to four GPUs, two sockets above, 16 lanes per GPU. Describe
//! boards with fewer lanes, or with slots behind a switch, in a file.

use super::System;
use super::chassis::{Chassis, Cpus, GENOA, MILAN, ROME};
use crate::fabric::Fabric;
use crate::id::DeviceId;

const GEN4_BUILD: &str = "a typical build: AMD Rome, x16 slots on the CPU";
const GEN5_BUILD: &str = "a typical build: AMD Genoa, x16 slots on the CPU";

/// The PCIe boxes.
pub(super) static SYSTEMS: &[System] = &[
    System {
        name: "2x-rtx3090",
        summary: "2x RTX 3090 in x16 slots, no bridge",
        source: GEN4_BUILD,
        build: |system| slots(system, "rtx3090", ROME, &[2]).0.finish(),
    },
    System {
        name: "2x-rtx3090-bridge",
        summary: "2x RTX 3090 in x16 slots, with an NVLink bridge",
        source: GEN4_BUILD,
        build: |system| bridged(system, "rtx3090", ROME, &[2]),
    },
    System {
        name: "2x-rtx4090",
        summary: "2x RTX 4090 in x16 slots",
        source: GEN4_BUILD,
        build: |system| slots(system, "rtx4090", ROME, &[2]).0.finish(),
    },
    System {
        name: "4x-rtx4090",
        summary: "4x RTX 4090 in x16 slots of one socket",
        source: GEN4_BUILD,
        build: |system| slots(system, "rtx4090", ROME, &[4]).0.finish(),
    },
    System {
        name: "8x-rtx4090",
        summary: "8x RTX 4090 in x16 slots of two sockets",
        source: GEN4_BUILD,
        build: |system| slots(system, "rtx4090", ROME, &[4, 4]).0.finish(),
    },
    System {
        name: "2x-rtx5090",
        summary: "2x RTX 5090 in x16 slots",
        source: GEN5_BUILD,
        build: |system| slots(system, "rtx5090", GENOA, &[2]).0.finish(),
    },
    System {
        name: "4x-rtx5090",
        summary: "4x RTX 5090 in x16 slots of one socket",
        source: GEN5_BUILD,
        build: |system| slots(system, "rtx5090", GENOA, &[4]).0.finish(),
    },
    System {
        name: "8x-rtx5090",
        summary: "8x RTX 5090 in x16 slots of two sockets",
        source: GEN5_BUILD,
        build: |system| slots(system, "rtx5090", GENOA, &[4, 4]).0.finish(),
    },
    System {
        name: "4x-a100-pcie-bridge",
        summary: "4x A100 PCIe in two pairs, three NVLink bridges each",
        source: "NVIDIA A100 PCIe product brief; a typical build: two AMD Milan sockets",
        build: |system| bridged(system, "a100-pcie", MILAN, &[2, 2]),
    },
];

/// GPUs in slots, each on its own root port, with `gpus[s]` of them on socket `s`.
fn slots(system: &'static System, gpu: &str, cpus: Cpus, gpus: &[usize]) -> (Chassis, Vec<DeviceId>) {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(cpus, gpus.len() as u32);
    let mut placed = Vec::new();
    for (&node, &count) in numa.iter().zip(gpus) {
        for _ in 0..count {
            placed.push(chassis.gpu(node, gpu));
        }
    }
    (chassis, placed)
}

/// The same with a bridge between each two neighbours, over all their bridge connectors.
fn bridged(system: &'static System, gpu: &str, cpus: Cpus, gpus: &[usize]) -> Fabric {
    let (mut chassis, placed) = slots(system, gpu, cpus, gpus);
    for pair in placed.chunks_exact(2) {
        chassis.bridge(pair[0], pair[1]);
    }
    chassis.finish()
}
