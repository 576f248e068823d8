//! Azure virtual machines.

use super::super::System;
use super::super::chassis::{MILAN, ROME, SAPPHIRE_RAPIDS, SKYLAKE};
use super::super::dgx1::V100_PAIRS;
use super::super::pcie_boxes::slots;
use super::super::rack::Rack;
use super::super::server::{Nics, Server, Wiring};
use super::{AMPERE, GPU_PER_SWITCH, nics};
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

const NDR: Option<Nics> = nics(1, Network::InfiniBand, 400, (5, 16));

/// The Azure virtual machines.
pub(in super::super) static SYSTEMS: &[System] = &[
    System::new(
        "ndv2",
        "Azure ND40rs_v2: 8x V100 32GB, 1x InfiniBand EDR",
        "Azure/azhpc-images topology/ndv2-topo.xml for the NUMA nodes; Azure NDv2-series page for the rest",
        ndv2,
    )
    .checked(),
    System::new(
        "nc-a100-v4",
        "Azure NC96ads_A100_v4: 4x A100 PCIe in two pairs with NVLink bridges",
        "Azure/azhpc-images topology/ncv4-topo.xml for the NUMA nodes; the pairs are unverified",
        nc_a100_v4,
    )
    .checked(),
    System::new(
        "nd-a100-v4",
        "Azure ND96asr_v4: 8x A100 40GB, 8x InfiniBand HDR",
        "Azure/azhpc-images topology/ndv4-topo.xml",
        |system| ND_A100_V4.build(system),
    )
    .checked(),
    System::new(
        "nd-h100-v5",
        "Azure ND96isr_H100_v5: 8x H100, 8x InfiniBand NDR",
        "Azure/azhpc-images topology/ndv5-topo.xml",
        |system| GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", NDR).build(system),
    )
    .checked(),
    System::new(
        "nd-h200-v5",
        "Azure ND96isr_H200_v5: 8x H200, 8x InfiniBand NDR",
        "Azure ND-H200-v5 series page; the tree is that of nd-h100-v5 (unverified)",
        |system| GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h200", NDR).build(system),
    ),
    System::new(
        "nd-mi300x-v5",
        "Azure ND96isr_MI300X_v5: 8x MI300X, 8x InfiniBand NDR",
        "Azure ND-MI300X-v5 series page; tree unverified",
        |system| {
            let server = GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "mi300x", NDR);
            Server { wiring: Wiring::FullMesh(1), ..server }.build(system)
        },
    ),
    System::new(
        "nd-gb200-v6",
        "Azure ND128isr_GB200_v6: 72x GB200, 4x InfiniBand NDR in a tray",
        "Azure ND-GB200-v6 series page; the place of the NICs is unverified",
        |system| Rack::GB200.with_nic(Network::InfiniBand, 400).build(system),
    ),
    System::new(
        "nd-gb300-v6",
        "Azure ND128isr_GB300_v6: 72x GB300, 4x InfiniBand XDR in a tray",
        "Azure ND-GB300-v6 series page; the place of the NICs is unverified",
        |system| Rack::GB300.build(system),
    ),
];

/// Two sockets of two NUMA nodes; GPUs 0 and 1 are on node 1, and so on as in the published tree.
const ND_A100_V4: Server = Server {
    gpu: "a100-40gb",
    cpus: ROME,
    numa_nodes: 4,
    switches: &[1, 0, 3, 2],
    nics: nics(2, Network::InfiniBand, 200, (4, 16)),
    ..AMPERE
};

/// A cube mesh as in DGX-1, without PCIe switches. The file has Gen4 slots, which neither the V100 nor its host has.
fn ndv2(system: &'static System) -> Fabric {
    let (mut chassis, gpus, numa) = slots(system, "v100", SKYLAKE, &[4, 4]);
    chassis.nic(numa[0], LinkKind::Network { network: Network::InfiniBand, gbit: 100 }, 3, 16);
    chassis.wire_pairs(&gpus, &V100_PAIRS);
    chassis.finish()
}

/// A card on each of four NUMA nodes.
fn nc_a100_v4(system: &'static System) -> Fabric {
    let (mut chassis, gpus, _) = slots(system, "a100-pcie", MILAN, &[1; 4]);
    for pair in gpus.chunks_exact(2) {
        chassis.bridge(pair[0], pair[1]);
    }
    chassis.finish()
}
