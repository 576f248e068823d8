//! GPUs: memory, links, slots.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::bytes::Bytes;
use crate::catalog::links;
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
    /// Year of first shipment.
    pub year: u16,
    /// NVIDIA: compute capability times ten. AMD: the digits of `gfx942`. Zero: neither.
    pub architecture: u32,
    /// Memory it carries.
    pub memory: Bytes,
    /// How fast that memory reads or writes.
    pub memory_rate: Figure<Rate<Device, OneWay>>,
    /// Links to other GPUs.
    pub links: GpuLinks,
    /// Links to a Grace CPU.
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

/// The model with an id.
pub fn by_id(id: &str) -> Option<&'static GpuModel> {
    GPUS.iter().find(|model| model.id == id)
}

/// The model behind a PCI device id of its vendor.
pub fn by_pci_device(device: u16) -> Option<&'static GpuModel> {
    GPUS.iter().find(|model| model.pci_devices.contains(&device))
}

/// Every GPU of the catalog, oldest first.
pub static GPUS: &[GpuModel] = &[
    GpuModel {
        id: "v100",
        name: "NVIDIA V100 SXM2 32GB",
        vendor: Vendor::Nvidia,
        year: 2017,
        architecture: 70,
        memory: Bytes::from_gb(32),
        memory_rate: Figure::nominal(Rate::from_gb(900), "NVIDIA V100 data sheet"),
        links: GpuLinks::Wired(&links::NVLINK[1], 6),
        c2c_links: 0,
        pcie: (3, 16),
        pci_devices: &[0x1db5],
        price: Price::OnRequest,
    },
    GpuModel {
        id: "h100",
        name: "NVIDIA H100 SXM5 80GB",
        vendor: Vendor::Nvidia,
        year: 2022,
        architecture: 90,
        memory: Bytes::from_gb(80),
        memory_rate: Figure::nominal(Rate::from_gb(3_350), "NVIDIA H100 data sheet"),
        links: GpuLinks::Wired(&links::NVLINK[3], 18),
        c2c_links: 0,
        pcie: (5, 16),
        pci_devices: &[0x2330],
        price: Price::OnRequest,
    },
    GpuModel {
        id: "rtx4090",
        name: "GeForce RTX 4090",
        vendor: Vendor::Nvidia,
        year: 2022,
        architecture: 89,
        memory: Bytes::from_gb(24),
        memory_rate: Figure::nominal(Rate::from_gb(1_008), "NVIDIA Ada whitepaper"),
        links: GpuLinks::Absent(
            "Ada dropped the NVLink connector from GeForce cards: GPUs talk over PCIe only",
        ),
        c2c_links: 0,
        pcie: (4, 16),
        pci_devices: &[0x2684],
        price: Price::ListUsd(1_599),
    },
    GpuModel {
        id: "gb200",
        name: "NVIDIA GB200 (Blackwell)",
        vendor: Vendor::Nvidia,
        year: 2024,
        architecture: 100,
        memory: Bytes::from_gb(186),
        memory_rate: Figure::nominal(Rate::from_gb(8_000), "NVIDIA GB200 NVL72 data sheet"),
        links: GpuLinks::Wired(&links::NVLINK[4], 18),
        c2c_links: 5,
        pcie: (5, 16),
        pci_devices: &[0x2941],
        price: Price::OnRequest,
    },
];
