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
    System::new("2x-rtx3090", "2x RTX 3090 in x16 slots, no bridge", GEN4_BUILD, |system| {
        slots(system, "rtx3090", ROME, &[2]).0.finish()
    }),
    System::new(
        "2x-rtx3090-bridge",
        "2x RTX 3090 in x16 slots, with an NVLink bridge",
        GEN4_BUILD,
        |system| bridged(system, "rtx3090", ROME, &[2]),
    ),
    System::new("2x-rtx4090", "2x RTX 4090 in x16 slots", GEN4_BUILD, |system| {
        slots(system, "rtx4090", ROME, &[2]).0.finish()
    }),
    System::new("4x-rtx4090", "4x RTX 4090 in x16 slots of one socket", GEN4_BUILD, |system| {
        slots(system, "rtx4090", ROME, &[4]).0.finish()
    }),
    System::new("8x-rtx4090", "8x RTX 4090 in x16 slots of two sockets", GEN4_BUILD, |system| {
        slots(system, "rtx4090", ROME, &[4, 4]).0.finish()
    }),
    System::new("2x-rtx5090", "2x RTX 5090 in x16 slots", GEN5_BUILD, |system| {
        slots(system, "rtx5090", GENOA, &[2]).0.finish()
    }),
    System::new("4x-rtx5090", "4x RTX 5090 in x16 slots of one socket", GEN5_BUILD, |system| {
        slots(system, "rtx5090", GENOA, &[4]).0.finish()
    }),
    System::new("8x-rtx5090", "8x RTX 5090 in x16 slots of two sockets", GEN5_BUILD, |system| {
        slots(system, "rtx5090", GENOA, &[4, 4]).0.finish()
    }),
    System::new(
        "4x-a100-pcie-bridge",
        "4x A100 PCIe in two pairs, three NVLink bridges each",
        "NVIDIA A100 PCIe product brief; a typical build: two AMD Milan sockets",
        |system| bridged(system, "a100-pcie", MILAN, &[2, 2]),
    ),
    System::new(
        "2x-h100-nvl-bridge",
        "2x H100 NVL with NVLink bridges",
        "NVIDIA H100 NVL product brief; a typical host: AMD Genoa, x16 slots",
        |system| bridged(system, "h100-nvl", GENOA, &[2]),
    ),
    System::new(
        "2x-h200-nvl-bridge",
        "2x H200 NVL with an NVLink bridge",
        "NVIDIA H200 NVL product brief; a typical host: AMD Genoa, x16 slots",
        |system| bridged(system, "h200-nvl", GENOA, &[2]),
    ),
    System::new(
        "4x-h200-nvl-bridge",
        "4x H200 NVL on one bridge, 6 NVLinks between each pair",
        "NVIDIA H200 NVL product brief; a typical host: AMD Genoa, x16 slots",
        four_bridged,
    ),
    System::new("8x-l40s", "8x L40S in x16 slots of two sockets", GEN5_BUILD, |system| {
        slots(system, "l40s", GENOA, &[4, 4]).0.finish()
    }),
    System::new(
        "8x-rtxpro6000",
        "8x RTX PRO 6000 Server in x16 slots of two sockets",
        GEN5_BUILD,
        |system| slots(system, "rtxpro6000-server", GENOA, &[4, 4]).0.finish(),
    ),
];

/// Four H200 NVL on one bridge, which has an even share of the 18 links for each pair.
fn four_bridged(system: &'static System) -> Fabric {
    let (mut chassis, placed, _) = slots(system, "h200-nvl", GENOA, &[4]);
    chassis.wire_pairs(&placed, &[(0, 1, 6), (0, 2, 6), (0, 3, 6), (1, 2, 6), (1, 3, 6), (2, 3, 6)]);
    chassis.finish()
}

/// GPUs in slots, each on its own root port, with `gpus[s]` of them on socket `s`: the chassis, its GPUs and its sockets.
pub(super) fn slots(
    system: &'static System,
    gpu: &str,
    cpus: Cpus,
    gpus: &[usize],
) -> (Chassis, Vec<DeviceId>, Vec<DeviceId>) {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(cpus, gpus.len() as u32);
    let mut placed = Vec::new();
    for (&node, &count) in numa.iter().zip(gpus) {
        for _ in 0..count {
            placed.push(chassis.gpu(node, gpu));
        }
    }
    (chassis, placed, numa)
}

/// The same with a bridge between each two neighbours, over all their bridge connectors.
fn bridged(system: &'static System, gpu: &str, cpus: Cpus, gpus: &[usize]) -> Fabric {
    let (mut chassis, placed, _) = slots(system, gpu, cpus, gpus);
    for pair in placed.chunks_exact(2) {
        chassis.bridge(pair[0], pair[1]);
    }
    chassis.finish()
}
