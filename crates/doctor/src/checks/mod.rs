//! The checks of machines, by what they look at.

mod clocks;
mod gpu_memory;
mod gpu_modes;
mod gpus;
mod heat;
mod kernel_log;
mod mended;
mod missing;
mod nvlink_bridges;
mod nvlink_errors;
mod nvlinks;
mod nvswitches;
mod peers;
mod presence;
mod xids;

use crate::check::Check;

/// All checks, in the order of reports.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let groups: [&[Check]; 12] = [
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
    ];
    groups.into_iter().flatten()
}
