//! The properties of a GPU model. The models themselves are in the catalog.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::bytes::Bytes;
use crate::figure::Figure;
use crate::link::LinkSpec;
use crate::rate::{Device, OneWay, Rate};

/// A GPU maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
}

impl Vendor {
    /// The PCI vendor id of its GPUs.
    pub const fn pci_id(self) -> u16 {
        match self {
            Self::Nvidia => 0x10de,
            Self::Amd => 0x1002,
            Self::Intel => 0x8086,
        }
    }
}

/// The links of a GPU to other GPUs.
#[derive(Debug)]
pub enum GpuLinks {
    /// Links wired on the baseboard or in the rack.
    Wired(&'static LinkSpec, u32),
    /// Links at bridge connectors on the card's edge, which reach one neighbour if a bridge is fitted.
    Bridge {
        /// The kind of link.
        link: &'static LinkSpec,
        /// Links over all connectors.
        links: u32,
        /// Bridge connectors.
        slots: u32,
    },
    /// No links, and the reason.
    Absent(&'static str),
}

/// The price of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Price {
    /// The maker's list price at launch, in US dollars.
    ListUsd(u32),
    /// Sold only inside systems, or at prices the maker does not publish.
    OnRequest,
}

/// A GPU model of the catalog.
#[derive(Debug)]
pub struct GpuModel {
    /// The id in specs and files: `h100`.
    pub id: &'static str,
    /// The product name.
    pub name: &'static str,
    /// The maker.
    pub vendor: Vendor,
    /// The year of its launch.
    pub year: u16,
    /// NVIDIA: compute capability times ten. AMD: the digits of `gfx942`, with 910 for `gfx90a` as in RCCL.
    /// Otherwise zero.
    pub architecture: u32,
    /// Size of its memory as the maker advertises it for one GPU of the product, not of the bare chip. Makers count close to
    /// 2^30 bytes as a GB: CUDA sees 191.5e9 bytes on a B200 of 180 GB.
    pub memory: Bytes,
    /// Read or write rate of its memory; the figure's source is the source of the whole row.
    pub memory_rate: Figure<Rate<Device, OneWay>>,
    /// Links to other GPUs.
    pub links: GpuLinks,
    /// The kind and number of its NVLink-C2C links to the CPU of its package.
    pub c2c: Option<(&'static LinkSpec, u32)>,
    /// PCIe generation and width of its slot.
    pub pcie: (u8, u8),
    /// Its PCI device ids.
    pub pci_devices: &'static [u16],
    /// Its price.
    pub price: Price,
}

impl GpuModel {
    /// The kind and number of links to other GPUs, wired or bridged.
    pub fn gpu_links(&self) -> Option<(&'static LinkSpec, u32)> {
        match self.links {
            GpuLinks::Wired(link, links) | GpuLinks::Bridge { link, links, .. } => Some((link, links)),
            GpuLinks::Absent(_) => None,
        }
    }

    /// The number of its links to the CPU of its package.
    pub fn c2c_links(&self) -> u32 {
        self.c2c.map_or(0, |(_, links)| links)
    }

    /// The nominal rate of all its links to other GPUs, each way.
    pub fn link_rate(&self) -> Option<Figure<Rate<Device, OneWay>>> {
        let (link, count) = self.gpu_links()?;
        Some(link.nominal.clone()?.per_device(count.into()))
    }

    /// Whether it is a card for desktops and workstations, whose peer traffic crosses PCIe bridges at full rate.
    pub fn is_consumer(&self) -> bool {
        self.id.starts_with("rtx")
    }

    /// Whether the usual driver lets these GPUs access each other's memory over PCIe.
    pub fn has_peer_access(&self) -> bool {
        !(self.vendor == Vendor::Nvidia && self.name.starts_with("GeForce"))
    }
}

// The id identifies the row of the table.
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
