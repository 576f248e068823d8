//! AMD Instinct platforms.

use super::System;
use super::chassis::GENOA;
use super::server::{Server, Wiring};

/// The Instinct platforms.
pub(super) static SYSTEMS: &[System] = &[System {
    name: "8x-mi300x",
    summary: "8x MI300X, one xGMI link between each pair",
    source: "AMD Instinct MI300X platform data sheet; MLPerf system 8xMI300X_2xEPYC-9374F",
    build: |system| MI300X_PLATFORM.build(system),
}];

/// Seven of a GPU's eight links go to the seven other GPUs; the eighth is its PCIe slot.
const MI300X_PLATFORM: Server = Server {
    gpu: "mi300x",
    cpus: GENOA,
    numa_nodes: 2,
    switches: &[0, 0, 0, 0, 1, 1, 1, 1],
    pcie: 5,
    gpus_per_switch: 1,
    drives: false,
    nics: None,
    wiring: Wiring::FullMesh(1),
};
