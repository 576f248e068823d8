//! Grace systems: GPUs with a CPU in the same package, connected within a node, a rack or a hall.

use super::System;
use super::chassis::{Chassis, GRACE};
use crate::catalog::links;
use crate::fabric::Fabric;

/// The Grace systems.
pub(super) static SYSTEMS: &[System] = &[
    System {
        name: "4x-gh200",
        summary: "4x GH200, 6 NVLinks between each pair",
        source: "HPE Cray EX254n, as in Alps: docs.cscs.ch/alps/hardware",
        build: quad_gh200,
    },
    System {
        name: "dgx-gh200",
        summary: "256x GH200 in one NVLink domain: 96 + 36 switch trays",
        source: "NVIDIA GH200 Grace Hopper whitepaper: DGX GH200",
        build: dgx_gh200,
    },
    System {
        name: "gb200-nvl72",
        summary: "72x GB200 in one NVLink domain: 18 compute trays, 9 switch trays",
        source: "NVIDIA DGX GB200 user guide; multi-node NVLink tuning guide",
        build: |system| nvl72(system, "gb200", None),
    },
    System {
        name: "gb300-nvl72",
        summary: "72x GB300 in one NVLink domain: 18 compute trays, 9 switch trays",
        source: "NVIDIA NVL72 AI Factory enterprise reference architecture",
        // Each GPU is behind the PCIe switch of a ConnectX-8, Gen6 to the GPU and Gen5 to Grace (unverified).
        build: |system| nvl72(system, "gb300", Some(6)),
    },
];

/// Six of a GPU's 18 links to each of the three others; the even split is unverified.
fn quad_gh200(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(GRACE, 4);
    let gpus: Vec<_> = numa.iter().map(|&node| chassis.gpu(node, "gh200")).collect();
    let pairs = [(0, 1, 6), (0, 2, 6), (0, 3, 6), (1, 2, 6), (1, 3, 6), (2, 3, 6)];
    chassis.wire_pairs(&gpus, &pairs);
    chassis.finish()
}

/// 32 chassis of eight one-GPU hosts and three switch trays, and 36 trays above them. A tray has two NVSwitch chips of
/// 64 ports and is one device here, because its inner wiring is not public. A tray of a chassis has 6 links to each GPU
/// and 4 to each of 12 upper trays; an upper tray has 4 links to each of 32 chassis, which uses all its 128 ports.
fn dgx_gh200(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let mut lower_trays = Vec::new();
    for _ in 0..32 {
        let mut gpus = Vec::new();
        for _ in 0..8 {
            let (_, numa) = chassis.host(GRACE, 1);
            gpus.push(chassis.gpu(numa[0], "gh200"));
        }
        lower_trays.push(chassis.nvswitches(None, &gpus, &[6; 3]));
    }
    let upper_trays = [(); 36].map(|()| chassis.nvswitch(None, Some(3)));
    for lower in lower_trays {
        for (tray, group) in lower.into_iter().zip(upper_trays.chunks(12)) {
            for &upper in group {
                chassis.wire(tray, upper, 4, &links::NVLINK[3]);
            }
        }
    }
    chassis.finish()
}

/// 18 trays of two Grace CPUs and four GPUs; nine trays of two NVSwitch chips, with one link between each GPU and each
/// chip.
fn nvl72(system: &'static System, gpu: &str, switch_generation: Option<u8>) -> Fabric {
    let mut chassis = Chassis::new(system);
    let mut gpus = Vec::new();
    for _ in 0..18 {
        let (_, numa) = chassis.host(GRACE, 2);
        for node in numa {
            for _ in 0..2 {
                let parent = match switch_generation {
                    Some(generation) => chassis.pcie_switch(node, generation),
                    None => node,
                };
                gpus.push(chassis.gpu(parent, gpu));
            }
        }
    }
    chassis.nvswitches(None, &gpus, &[1; 18]);
    chassis.finish()
}
