//! Cloud instances, with the NICs that carry GPU traffic. Front-end network cards and local drives are left out.
//!
//! A system whose source is a topology file was compared with it. All other trees, and the CPU generations of Google's and
//! Oracle's instances, are unverified: there, NICs are spread evenly over the GPUs' PCIe switches. Virtual machines show the
//! switches that the provider describes to them, which need not be all that exist.

mod aws;
mod azure;
mod google;
mod oracle;

pub(super) use aws::SYSTEMS as AWS;
pub(super) use azure::SYSTEMS as AZURE;
pub(super) use google::SYSTEMS as GOOGLE;
pub(super) use oracle::SYSTEMS as ORACLE;

use super::chassis::EMERALD_RAPIDS;
use super::hgx::{AMPERE_BOARD, BLACKWELL_BOARD, HOPPER_BOARD};
use super::server::{Nics, Server};
use crate::link::{LinkKind, Network};

/// Ampere boards with a PCIe switch for each two GPUs and a Gen4 host.
const AMPERE: Server = Server {
    gpu: "a100",
    cpus: super::chassis::ROME,
    numa_nodes: 2,
    switches: &[0, 0, 1, 1],
    pcie: 4,
    gpus_per_switch: 2,
    drives: false,
    nics: None,
    wiring: AMPERE_BOARD,
};

/// Hopper boards with a PCIe switch for each two GPUs.
const PAIR_PER_SWITCH: Server = Server { gpu: "h100", pcie: 5, wiring: HOPPER_BOARD, ..AMPERE };

/// Hopper boards with a PCIe switch for each GPU.
const GPU_PER_SWITCH: Server =
    Server { switches: &[0, 0, 0, 0, 1, 1, 1, 1], gpus_per_switch: 1, ..PAIR_PER_SWITCH };

/// Blackwell boards with a PCIe switch for each GPU, and Emerald Rapids hosts.
fn blackwell(gpu: &'static str, nics: Option<Nics>) -> Server {
    Server { wiring: BLACKWELL_BOARD, ..GPU_PER_SWITCH.with(EMERALD_RAPIDS, gpu, nics) }
}

const fn nics(per_switch: usize, network: Network, gbit: u32, pcie: (u8, u8)) -> Option<Nics> {
    Some(Nics { per_switch, network: LinkKind::Network { network, gbit }, pcie })
}
