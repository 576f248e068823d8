//! Workstations and servers whose GPUs sit in PCIe slots.

use super::System;
use super::chassis::{Chassis, ROME};
use crate::fabric::Fabric;

/// The PCIe boxes.
pub(super) static SYSTEMS: &[System] = &[System {
    name: "2x-rtx4090",
    summary: "2x RTX 4090 in x16 slots of one CPU",
    source: "a workstation with two x16 slots on the CPU",
    build: |system| slots(system, "rtx4090", 2),
}];

/// GPUs in slots of one socket, each on its own root port.
fn slots(system: &'static System, gpu: &str, count: usize) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(ROME, 1);
    for _ in 0..count {
        chassis.gpu(numa[0], gpu);
    }
    chassis.finish()
}
