//! Whole systems, built device by device.

pub(crate) mod chassis;
mod dgx1;
mod hgx;
mod nvl72;
mod pcie_boxes;

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

/// The system with a name.
pub fn by_name(name: &str) -> Option<&'static System> {
    all().find(|system| system.name == name)
}

/// Every system, grouped by family.
pub fn all() -> impl Iterator<Item = &'static System> {
    [pcie_boxes::SYSTEMS, dgx1::SYSTEMS, hgx::SYSTEMS, nvl72::SYSTEMS]
        .into_iter()
        .flatten()
}
