//! Systems of GPUs with a CPU in the same package, connected within a node, a rack or a hall.

use super::System;
use super::chassis::{Chassis, GB10, GRACE};
use super::rack::Rack;
use crate::catalog::links;
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

/// The systems with Grace, Vera or GB10.
pub(super) static SYSTEMS: &[System] = &[
    System::new(
        "4x-gh200",
        "4x GH200, 6 NVLinks between each pair",
        "HPE Cray EX254n, as in Alps: docs.cscs.ch/alps/hardware",
        quad_gh200,
    ),
    System::new(
        "dgx-gh200",
        "256x GH200 in one NVLink domain: 96 + 36 trays of two NVSwitches",
        "NVIDIA GH200 Grace Hopper whitepaper: DGX GH200",
        dgx_gh200,
    ),
    System::new(
        "gb200-nvl72",
        "72x GB200 in one NVLink domain: 18 compute trays, 9 switch trays",
        "NVIDIA DGX GB200 user guide; multi-node NVLink tuning guide",
        |system| Rack::GB200.build(system),
    ),
    System::new(
        "gb300-nvl72",
        "72x GB300 in one NVLink domain, 4x 800G ConnectX-8 in each of 18 trays",
        "NVIDIA NVL72 AI Factory enterprise reference architecture",
        |system| Rack::GB300.build(system),
    ),
    System::new(
        "vr-nvl72",
        "72x Rubin in one NVLink domain, 8x 800G ConnectX-9 in each of 18 trays",
        "NVIDIA Vera Rubin NVL72 product page, preliminary (unverified)",
        |system| Rack::RUBIN.build(system),
    ),
    System::new(
        "dgx-spark",
        "1x GB10, 1x RoCE 200G; a pair is `2x dgx-spark`",
        "NVIDIA DGX Spark user guide; NCCL topology dump in NVIDIA/nccl pull request 2202",
        dgx_spark,
    ),
];

/// The GB10 reaches its CPU over C2C. The ConnectX-7 is on two links of four lanes (unverified), which are one of eight here.
fn dgx_spark(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(GB10, 1);
    chassis.gpu(numa[0], "gb10");
    chassis.nic(numa[0], LinkKind::Network { network: Network::Roce, gbit: 200 }, 5, 8);
    chassis.finish()
}

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
