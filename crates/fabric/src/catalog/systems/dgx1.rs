//! DGX-1: eight GPUs in a hybrid cube mesh, no switch.

use super::System;
use super::chassis::BROADWELL;
use super::server::{Server, Wiring};

/// The DGX-1 systems.
pub(super) static SYSTEMS: &[System] = &[
    System::new(
        "dgx-1-p100",
        "8x P100 in a hybrid cube mesh of 16 NVLinks",
        "NVIDIA DGX-1 system architecture whitepaper WP-08437",
        |system| {
            let wiring = Wiring::Pairs(&P100_PAIRS);
            Server { gpu: "p100", wiring, ..DGX1 }.build(system)
        },
    ),
    System::new(
        "dgx-1-v100",
        "8x V100 in a hybrid cube mesh of 24 NVLinks",
        "NVIDIA DGX-1 system architecture whitepaper WP-08437; NCCL topology dump in NVIDIA/nccl issue 671",
        |system| DGX1.build(system),
    ),
];

/// Two sockets with two PCIe switches each and two GPUs per switch. The four InfiniBand EDR cards are left out: a spec
/// adds the network.
const DGX1: Server = Server {
    gpu: "v100",
    cpus: BROADWELL,
    numa_nodes: 2,
    switches: &[0, 0, 1, 1],
    pcie: 3,
    gpus_per_switch: 2,
    drives: false,
    nics: None,
    wiring: Wiring::Pairs(&V100_PAIRS),
};

/// The P100's four links connect all GPUs of a quad, and each GPU to its counterpart in the other quad.
const P100_PAIRS: [(usize, usize, u32); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 1),
    (0, 4, 1),
    (1, 2, 1),
    (1, 3, 1),
    (1, 5, 1),
    (2, 3, 1),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 1),
    (5, 6, 1),
    (5, 7, 1),
    (6, 7, 1),
];

/// The NVLinks between the eight V100s of a DGX-1, as `(a, b, links)`. Compared with the P100, the two further links of
/// each GPU double a ring through all eight: 0 3 2 1 5 6 7 4.
pub const V100_PAIRS: [(usize, usize, u32); 16] = [
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
