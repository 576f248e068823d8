//! The checks of machines, by what they look at.

mod addresses;
mod bios;
mod bridges;
mod congestion;
mod driver;
mod environment;
mod gpudirect;
mod host_reads;
#[cfg(test)]
mod host_tests;
mod interface;
mod libraries;
mod limits;
mod pcie;
mod pcie_boot;
mod pcie_errors;
mod placement;
mod power;
mod rdma;
mod roce;

use crate::check::Check;

/// All checks, in the order of reports.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let groups = [
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
