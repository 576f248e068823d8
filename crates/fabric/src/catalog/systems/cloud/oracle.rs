//! Oracle Cloud bare-metal shapes.

use super::super::System;
use super::super::chassis::{MILAN, SAPPHIRE_RAPIDS};
use super::super::server::{Server, Wiring};
use super::{AMPERE, GPU_PER_SWITCH, blackwell, nics};
use crate::link::Network;

const SHAPES: &str = "Oracle Cloud Infrastructure compute shapes; tree unverified";

/// The Oracle shapes, with `-` for the dots of their names.
pub(in super::super) static SYSTEMS: &[System] = &[
    System::new(
        "bm-gpu-a100-v2-8",
        "Oracle BM.GPU.A100-v2.8: 8x A100 80GB, 16x RoCE 100G",
        SHAPES,
        |system| AMPERE.with(MILAN, "a100", nics(4, Network::Roce, 100, (4, 8))).build(system),
    ),
    System::new("bm-gpu-h100-8", "Oracle BM.GPU.H100.8: 8x H100, 16x RoCE 200G", SHAPES, |system| {
        let nics = nics(2, Network::Roce, 200, (5, 8));
        GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h100", nics).build(system)
    }),
    System::new("bm-gpu-h200-8", "Oracle BM.GPU.H200.8: 8x H200, 8x RoCE 400G", SHAPES, |system| {
        let nics = nics(1, Network::Roce, 400, (5, 16));
        GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "h200", nics).build(system)
    }),
    System::new("bm-gpu-b200-8", "Oracle BM.GPU.B200.8: 8x B200, 8x RoCE 400G", SHAPES, |system| {
        blackwell("b200", nics(1, Network::Roce, 400, (5, 16))).build(system)
    }),
    System::new("bm-gpu-mi300x-8", "Oracle BM.GPU.MI300X.8: 8x MI300X, 8x RoCE 400G", SHAPES, |system| {
        let nics = nics(1, Network::Roce, 400, (5, 16));
        let server = GPU_PER_SWITCH.with(SAPPHIRE_RAPIDS, "mi300x", nics);
        Server { wiring: Wiring::FullMesh(1), ..server }.build(system)
    }),
];
