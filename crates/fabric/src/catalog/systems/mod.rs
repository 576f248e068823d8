//! Whole systems, built device by device.
//!
//! What a preset holds is what comes with it. A bare board or rack (`hgx-h100`, `gb200-nvl72`) has no NICs: a cluster spec such
//! as `2x hgx-h100 + 8x ndr` names them. Cloud shapes have the NICs that the provider fitted for GPU traffic, and
//! `hgx-b300` those that NVIDIA solders on; `dgx-a100` and `dgx-h100` are the HGX boards with the NICs of the DGX around them. Management networks are left out everywhere.

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
    /// As specs spell it: `hgx-h100`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Where the wiring is documented.
    pub source: &'static str,
    build: fn(&'static System) -> Fabric,
}

impl System {
    /// Builds its fabric.
    pub fn fabric(&'static self) -> Fabric {
        (self.build)(self)
    }
}

/// The system with a name, in any case; `_` is as good as `-`.
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
