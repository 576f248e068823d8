//! Whole systems, built device by device.
//!
//! A preset contains what is delivered with it. A bare board or rack (`hgx-h100`, `gb200-nvl72`) has no NICs; a cluster
//! spec such as `2x hgx-h100 + 8x ndr` adds them. Cloud instances have the provider's NICs for GPU traffic, `hgx-b300`
//! and `gb300-nvl72` have those on their boards, and `dgx-a100` to `dgx-b300` are the HGX boards with the NICs of the DGX.
//! Management networks are left out.

mod amd;
pub(crate) mod chassis;
mod cloud;
mod dgx1;
mod dgx2;
mod grace;
mod hgx;
mod intel;
mod pcie_boxes;
mod rack;
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
    /// Whether the wiring was compared with the first of its sources.
    pub checked: bool,
    build: fn(&'static System) -> Fabric,
}

impl System {
    const fn new(
        name: &'static str,
        summary: &'static str,
        source: &'static str,
        build: fn(&'static System) -> Fabric,
    ) -> Self {
        Self { name, summary, source, checked: false, build }
    }

    /// The same system, compared with its source.
    const fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

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
        intel::SYSTEMS,
        cloud::AWS,
        cloud::AZURE,
        cloud::GOOGLE,
        cloud::ORACLE,
    ]
    .into_iter()
    .flatten()
}
