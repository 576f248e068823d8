//! DGX-2: sixteen GPUs on two boards, twelve NVSwitches between them.

use super::System;
use super::chassis::{Chassis, SKYLAKE};
use crate::catalog::links;
use crate::fabric::Fabric;

/// The DGX-2.
pub(super) static SYSTEMS: &[System] = &[System::new(
    "dgx-2",
    "16x V100 on two boards, 12 NVSwitches",
    "NVIDIA DGX-2 / NVSwitch whitepaper; nvidia-smi topo -m of a DGX-2 in NVIDIA/nccl-tests issue 78",
    dgx2,
)];

/// Each socket has one board: two PCIe switches, two more below each, two GPUs below each of those. Each of its six
/// NVSwitches has one link to each of the eight GPUs and eight to its counterpart on the other board: 16 of 18 ports.
fn dgx2(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (host, numa) = chassis.host(SKYLAKE, 2);
    let mut boards = Vec::new();
    for node in numa {
        let mut gpus = Vec::new();
        for _ in 0..2 {
            let upper = chassis.pcie_switch(node, 3);
            for _ in 0..2 {
                let lower = chassis.pcie_switch(upper, 3);
                gpus.extend([(); 2].map(|()| chassis.gpu(lower, "v100")));
            }
        }
        boards.push(chassis.nvswitches(Some(host), &gpus, &[1; 6]));
    }
    for (&a, &b) in boards[0].iter().zip(&boards[1]) {
        chassis.wire(a, b, 8, &links::NVLINK[1]);
    }
    chassis.finish()
}
