//! What is known of a model of GPU. The catalog has the models.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::bytes::Bytes;
use crate::figure::Figure;
use crate::link::LinkSpec;
use crate::rate::{Device, OneWay, Rate};

/// Who makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
}

/// The links a GPU has toward other GPUs.
#[derive(Debug)]
pub enum GpuLinks {
    /// Links that the baseboard or rack wires up.
    Wired(&'static LinkSpec, u32),
    /// Links that come out at bridge connectors on the card's edge: they reach one neighbour, if a bridge is fitted.
    Bridge {
        /// What each link is.
        link: &'static LinkSpec,
        /// All of them.
        links: u32,
        /// Over how many bridge connectors.
        slots: u32,
    },
    /// None, and why.
    Absent(&'static str),
}

/// What a GPU costs, roughly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Price {
    /// The maker's list price at launch, in US dollars.
    ListUsd(u32),
    /// Sold only inside systems, or at prices the maker does not publish.
    OnRequest,
}

/// A GPU the catalog knows.
#[derive(Debug)]
pub struct GpuModel {
    /// As specs and files spell it: `h100`.
    pub id: &'static str,
    /// As a person reads it.
    pub name: &'static str,
    /// Who makes it.
    pub vendor: Vendor,
    /// Year it came to market.
    pub year: u16,
    /// NVIDIA: compute capability times ten. AMD: the digits of `gfx942`, with 910 for `gfx90a` as RCCL has it.
    /// Zero: neither.
    pub architecture: u32,
    /// Memory it carries.
    pub memory: Bytes,
    /// How fast that memory reads or writes; its source is the source of the whole row.
    pub memory_rate: Figure<Rate<Device, OneWay>>,
    /// Links to other GPUs.
    pub links: GpuLinks,
    /// NVLink-C2C links to the CPU of its package.
    pub c2c_links: u32,
    /// PCIe generation and width of its slot.
    pub pcie: (u8, u8),
    /// PCI device ids it is known by.
    pub pci_devices: &'static [u16],
    /// What it costs.
    pub price: Price,
}

impl GpuModel {
    /// The link kind and count toward other GPUs, wired or bridged.
    pub fn gpu_links(&self) -> Option<(&'static LinkSpec, u32)> {
        match self.links {
            GpuLinks::Wired(link, links) | GpuLinks::Bridge { link, links, .. } => Some((link, links)),
            GpuLinks::Absent(_) => None,
        }
    }

    /// What all its links to other GPUs signal together, each way.
    pub fn link_rate(&self) -> Option<Figure<Rate<Device, OneWay>>> {
        let (link, count) = self.gpu_links()?;
        Some(link.nominal.clone()?.per_device(count.into()))
    }
}

// A model is one row of a table: its id says which.
impl PartialEq for GpuModel {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
impl Eq for GpuModel {}
impl Hash for GpuModel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
impl fmt::Display for GpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}
