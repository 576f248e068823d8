//! Whole systems, built device by device.
//!
//! A preset contains what is delivered with it. A bare board or rack (`hgx-h100`, `gb200-nvl72`) has no NICs; a cluster
//! spec such as `2x hgx-h100 + 8x ndr` adds them. Cloud instances have the provider's NICs for GPU traffic, `hgx-b300`
//! has those on its board, and `dgx-a100` and `dgx-h100` are the HGX boards with the NICs of the DGX. Management networks
//! are left out.

mod amd;
pub(crate) mod chassis;
mod cloud;
mod dgx1;
mod dgx2;
mod grace;
mod hgx;
mod pcie_boxes;
mod server;

pub use dgx1::V100_PAIRS;

use crate::fabric::Fabric;

/// A system of the catalog.
#[derive(Debug)]
pub struct System {
    /// The name in specs: `hgx-h100`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Where the wiring is documented.
    pub source: &'static str,
    build: fn(&'static System) -> Fabric,
}

impl System {
    /// Builds the fabric of one such system.
    pub fn fabric(&'static self) -> Fabric {
        (self.build)(self)
    }
}

/// The system with a name, ignoring case; `_` counts as `-`.
pub fn by_name(name: &str) -> Option<&'static System> {
    let name = name.replace('_', "-");
    all().find(|system| system.name.eq_ignore_ascii_case(&name))
}

/// Every system, grouped by family.
pub fn all() -> impl Iterator<Item = &'static System> {
    [
        pcie_boxes::SYSTEMS,
        dgx1::SYSTEMS,
        dgx2::SYSTEMS,
        hgx::SYSTEMS,
        grace::SYSTEMS,
        amd::SYSTEMS,
        cloud::SYSTEMS,
    ]
    .into_iter()
    .flatten()
}
