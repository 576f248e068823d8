//! DGX-1: eight GPUs in a hybrid cube mesh, no switch.

use super::System;
use super::chassis::{BROADWELL, Chassis};
use crate::catalog::links;
use crate::fabric::Fabric;

/// The DGX-1 systems.
pub(super) static SYSTEMS: &[System] = &[System {
    name: "dgx-1-v100",
    summary: "8x V100 in a hybrid cube mesh of 24 NVLinks",
    source: "NVIDIA DGX-1 with Tesla V100 system architecture whitepaper",
    build: |system| cube_mesh(system, "v100", &V100_PAIRS, 2),
}];

/// `(a, b, links)`: the V100's six links double two edges of each quad and one edge across.
const V100_PAIRS: [(usize, usize, u32); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];

fn cube_mesh(system: &'static System, gpu: &str, pairs: &[(usize, usize, u32)], nvlink: usize) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(BROADWELL, 2);
    let mut gpus = Vec::new();
    for node in numa {
        for _ in 0..2 {
            let switch = chassis.pcie_switch(node, 3, 16);
            gpus.extend([(); 2].map(|()| chassis.gpu(switch, gpu)));
        }
    }
    for &(a, b, count) in pairs {
        chassis.wire(gpus[a], gpus[b], count, &links::NVLINK[nvlink - 1]);
    }
    chassis.finish()
}
