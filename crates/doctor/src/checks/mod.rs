//! The checks of machines, by what they look at.

mod addresses;
mod bios;
mod bridges;
mod clocks;
mod congestion;
mod driver;
mod environment;
mod gpu_memory;
mod gpu_modes;
mod gpudirect;
mod gpus;
mod heat;
mod host_reads;
#[cfg(test)]
mod host_tests;
mod interface;
mod kernel_log;
mod libraries;
mod limits;
mod mended;
mod missing;
mod nvlink_bridges;
mod nvlink_errors;
mod nvlinks;
mod nvswitches;
mod pcie;
mod pcie_boot;
mod pcie_errors;
mod peers;
mod placement;
mod power;
mod presence;
mod rdma;
mod roce;
mod xids;

use crate::check::Check;

/// All checks, in the order of reports.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let groups: [&[Check]; 28] = [
        missing::CHECKS,
        presence::CHECKS,
        nvlinks::CHECKS,
        nvlink_bridges::CHECKS,
        nvlink_errors::CHECKS,
        nvswitches::CHECKS,
        kernel_log::CHECKS,
        gpu_memory::CHECKS,
        clocks::CHECKS,
        heat::CHECKS,
        gpu_modes::CHECKS,
        peers::CHECKS,
        pcie::CHECKS,
        pcie_boot::CHECKS,
        pcie_errors::CHECKS,
        bridges::CHECKS,
        bios::CHECKS,
        gpudirect::CHECKS,
        rdma::CHECKS,
        congestion::CHECKS,
        roce::CHECKS,
        interface::CHECKS,
        limits::CHECKS,
        environment::CHECKS,
        libraries::CHECKS,
        driver::CHECKS,
        power::CHECKS,
        placement::CHECKS,
    ];
    groups.into_iter().flatten()
}
