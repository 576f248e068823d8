//! HGX baseboards: eight GPUs, all joined by NVSwitches.

use super::System;
use super::chassis::{Chassis, Cpus, SAPPHIRE_RAPIDS};
use crate::catalog::links;
use crate::fabric::Fabric;

/// The HGX systems.
pub(super) static SYSTEMS: &[System] = &[System {
    name: "hgx-h100",
    summary: "8x H100 SXM, 4 NVSwitches",
    source: "NVIDIA H100 architecture whitepaper; DGX H100 user guide",
    build: |system| hgx(system, "h100", SAPPHIRE_RAPIDS, 3, &[5, 4, 4, 5], 4),
}];

/// Two sockets, two PCIe switches each, two GPUs and a drive per switch; every GPU reaches NVSwitch `s` over
/// `pattern[s]` NVLinks of generation `nvlink`.
fn hgx(
    system: &'static System,
    gpu: &str,
    cpus: Cpus,
    nvswitch: u8,
    pattern: &[u32],
    nvlink: usize,
) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (host, numa) = chassis.host(cpus, 2);
    let mut gpus = Vec::new();
    for node in numa {
        for _ in 0..2 {
            let switch = chassis.pcie_switch(node, 5, 16);
            gpus.extend([(); 2].map(|()| chassis.gpu(switch, gpu)));
            chassis.nvme(switch, 4);
        }
    }
    chassis.nvswitches(Some(host), nvswitch, &gpus, pattern, &links::NVLINK[nvlink - 1]);
    chassis.finish()
}
