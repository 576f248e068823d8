//! HGX baseboards: eight GPUs connected by NVSwitches.
//!
//! A baseboard is sold in many hosts, without NICs; the host here is the DGX with the same board. `dgx-a100` to
//! `dgx-b300` have the NICs of the DGX. Several PCIe switches in a row, as in DGX A100, are one switch here: NCCL flattens
//! them too.

use super::System;
use super::chassis::{EMERALD_RAPIDS, GRANITE_RAPIDS, MILAN, ROME, SAPPHIRE_RAPIDS};
use super::server::{Nics, Server, Wiring};
use crate::link::{LinkKind, Network};

/// The HGX systems.
pub(super) static SYSTEMS: &[System] = &[
    System::new(
        "hgx-a100",
        "8x A100 SXM, 6 NVSwitches",
        "NVIDIA DGX A100 user guide; NCCL topology dump in NVIDIA/nccl issue 1505",
        |system| HGX_A100.build(system),
    ),
    System::new(
        "hgx-h100",
        "8x H100 SXM, 4 NVSwitches",
        "NVIDIA H100 architecture whitepaper; DGX H100 user guide",
        |system| HGX_H100.build(system),
    ),
    System::new(
        "hgx-a100-4",
        "4x A100 SXM, 4 NVLinks between each pair",
        "NVIDIA HGX A100 4-GPU data sheet; a typical host: two AMD Milan sockets",
        |system| HGX_A100_4.build(system),
    ),
    System::new(
        "hgx-h100-4",
        "4x H100 SXM, 6 NVLinks between each pair",
        "NVIDIA HGX H100 4-GPU data sheet; a typical host: two Sapphire Rapids sockets",
        |system| HGX_H100_4.build(system),
    ),
    System::new(
        "dgx-a100",
        "hgx-a100 with 8x 200G HDR ConnectX-6",
        "NVIDIA DGX A100 user guide; NVIDIA DGX SuperPOD with DGX A100 reference architecture",
        |system| Server { nics: infiniband(2, 200, (4, 16)), ..HGX_A100 }.build(system),
    ),
    System::new(
        "dgx-h100",
        "hgx-h100 with 8x 400G NDR ConnectX-7",
        "NVIDIA DGX H100 user guide; NVIDIA DGX SuperPOD with DGX H100 reference architecture",
        |system| Server { nics: infiniband(1, 400, (5, 16)), ..HGX_H100 }.build(system),
    ),
    System::new("hgx-h200", "8x H200 SXM, 4 NVSwitches", "NVIDIA DGX H200 user guide", |system| {
        Server { gpu: "h200", ..HGX_H100 }.build(system)
    }),
    System::new(
        "hgx-b200",
        "8x B200 SXM, 2 NVSwitches",
        "NVIDIA DGX B200 user guide; NVIDIA Fabric Manager user guide",
        |system| HGX_B200.build(system),
    ),
    System::new("dgx-h200", "hgx-h200 with 8x 400G NDR ConnectX-7", "NVIDIA DGX H200 user guide", |system| {
        Server { gpu: "h200", nics: infiniband(1, 400, (5, 16)), ..HGX_H100 }.build(system)
    }),
    System::new("dgx-b200", "hgx-b200 with 8x 400G NDR ConnectX-7", "NVIDIA DGX B200 user guide", |system| {
        Server { nics: infiniband(1, 400, (5, 16)), ..HGX_B200 }.build(system)
    }),
    System::new(
        "hgx-b300",
        "8x B300 SXM, 2 NVSwitches, 8x 800G ConnectX-8 on the board",
        "NVIDIA DGX B300 user guide; NVIDIA HGX B300 platform page",
        |system| HGX_B300.build(system),
    ),
    System::new(
        "dgx-b300",
        "hgx-b300 by the name of NVIDIA's own system",
        "NVIDIA DGX B300 user guide",
        |system| HGX_B300.build(system),
    ),
];

/// The NICs of a DGX, below the PCIe switches of its GPUs.
const fn infiniband(per_switch: usize, gbit: u32, pcie: (u8, u8)) -> Option<Nics> {
    Some(Nics { per_switch, network: LinkKind::Network { network: Network::InfiniBand, gbit }, pcie })
}

/// Links of each GPU to each NVSwitch.
pub(super) const AMPERE_BOARD: Wiring = Wiring::NvSwitches(&[2; 6]);
/// See [`AMPERE_BOARD`].
pub(super) const HOPPER_BOARD: Wiring = Wiring::NvSwitches(&[5, 4, 4, 5]);
/// See [`AMPERE_BOARD`].
pub(super) const BLACKWELL_BOARD: Wiring = Wiring::NvSwitches(&[9, 9]);

/// Two sockets of four NUMA nodes; the GPUs are on nodes 3, 1, 7 and 5.
const HGX_A100: Server = Server {
    gpu: "a100",
    cpus: ROME,
    numa_nodes: 8,
    switches: &[3, 1, 7, 5],
    pcie: 4,
    gpus_per_switch: 2,
    drives: true,
    nics: None,
    wiring: AMPERE_BOARD,
};

/// Each GPU has its own 16 lanes to its socket, through a switch that it shares with one NIC and one drive.
const HGX_H100: Server = Server {
    gpu: "h100",
    cpus: SAPPHIRE_RAPIDS,
    numa_nodes: 2,
    switches: &[0, 0, 0, 0, 1, 1, 1, 1],
    pcie: 5,
    gpus_per_switch: 1,
    drives: true,
    nics: None,
    wiring: HOPPER_BOARD,
};

/// The host of NVIDIA's DGX B200.
const HGX_B200: Server = Server { gpu: "b200", cpus: EMERALD_RAPIDS, wiring: BLACKWELL_BOARD, ..HGX_H100 };

/// The board of four has no NVSwitch: a GPU's links are split evenly over the three others. Each GPU is on its own lanes,
/// below a switch that stands for a root port.
const HGX_A100_4: Server = Server {
    cpus: MILAN,
    numa_nodes: 2,
    switches: &[0, 0, 1, 1],
    gpus_per_switch: 1,
    drives: false,
    wiring: Wiring::FullMesh(4),
    ..HGX_A100
};

/// See [`HGX_A100_4`].
const HGX_H100_4: Server =
    Server { switches: &[0, 0, 1, 1], drives: false, wiring: Wiring::FullMesh(6), ..HGX_H100 };

/// The ConnectX-8 next to each GPU is also its PCIe switch: Gen6 to the GPU, Gen5 to the CPU.
const HGX_B300: Server = Server {
    gpu: "b300",
    cpus: GRANITE_RAPIDS,
    pcie: 6,
    drives: false,
    nics: Some(Nics {
        per_switch: 1,
        network: LinkKind::Network { network: Network::InfiniBand, gbit: 800 },
        pcie: (6, 16),
    }),
    wiring: BLACKWELL_BOARD,
    ..HGX_H100
};
