//! NVL72 racks: 18 compute trays of four GPUs, nine switch trays of two NVSwitch chips, one NVLink domain.

use super::System;
use super::chassis::{Chassis, GRACE};
use crate::catalog::links;
use crate::fabric::Fabric;

/// The NVL72 racks.
pub(super) static SYSTEMS: &[System] = &[System {
    name: "gb200-nvl72",
    summary: "72x GB200 in one NVLink domain: 18 compute trays, 9 switch trays",
    source: "NVIDIA GB200 NVL72 data sheet and tuning guide",
    build: |system| nvl72(system, "gb200"),
}];

fn nvl72(system: &'static System, gpu: &str) -> Fabric {
    let mut chassis = Chassis::new(system);
    let mut gpus = Vec::new();
    for _ in 0..18 {
        let (_, numa) = chassis.host(GRACE, 2);
        for node in numa {
            gpus.extend([(); 2].map(|()| chassis.gpu(node, gpu)));
        }
    }
    // Two chips in each of nine trays: one of a GPU's eighteen links goes to each chip.
    chassis.nvswitches(None, 4, &gpus, &[1; 18], &links::NVLINK[4]);
    chassis.finish()
}
