//! GPUs of the catalog, and the generation whose constants they share.

use std::fmt;

use weftlink_fabric::catalog::gpus::{self, GPUS, GpuLinks, GpuModel, Vendor};

/// A GPU of the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gpu(&'static GpuModel);

/// A generation of GPUs, with the same kernels, copy engines and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// P100.
    Pascal,
    /// V100, RTX 2080.
    Volta,
    /// A100, A10, RTX 3090.
    Ampere,
    /// H100, RTX 4090.
    Hopper,
    /// B200, RTX 5090.
    Blackwell,
    /// AMD Instinct; also Intel Max, which has no measurements of its own.
    Instinct,
}

impl Gpu {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        GPUS.iter().map(Self)
    }

    /// The GPU with that name in files.
    pub fn from_name(name: &str) -> Option<Self> {
        gpus::by_id(name).map(Self)
    }

    /// All names, for messages.
    pub fn names() -> String {
        GPUS.iter().map(|model| model.id).collect::<Vec<_>>().join(", ")
    }

    /// Its name in files.
    pub fn id(self) -> &'static str {
        self.0.id
    }

    /// Its row of the catalog.
    pub fn model(self) -> &'static GpuModel {
        self.0
    }

    /// Its generation. The RTX 4090 counts as Hopper and the RTX 2080 as Volta, as in the tuners of libraries.
    pub fn generation(self) -> Generation {
        match (self.0.vendor, self.0.architecture) {
            (Vendor::Amd | Vendor::Intel, _) => Generation::Instinct,
            (Vendor::Nvidia, ..70) => Generation::Pascal,
            (Vendor::Nvidia, ..80) => Generation::Volta,
            (Vendor::Nvidia, ..89) => Generation::Ampere,
            (Vendor::Nvidia, ..100) => Generation::Hopper,
            (Vendor::Nvidia, _) => Generation::Blackwell,
        }
    }

    /// Whether it is a PCIe card, not a module on a board with its NIC beside it.
    pub fn is_card(self) -> bool {
        !matches!(self.0.links, GpuLinks::Wired(..)) && self.0.c2c.is_none()
    }

    /// Whether it is a card for desktops and workstations, whose peer traffic crosses PCIe bridges at full rate.
    pub fn is_consumer(self) -> bool {
        self.0.is_consumer()
    }

    /// Line rate of all its links to other GPUs, one way; 0 if it has none.
    pub fn port_line_gbytes_per_second(self) -> f64 {
        self.0.link_rate().map_or(0.0, |rate| rate.value.bytes_per_second() as f64 / 1e9)
    }

    /// Number of its links to other GPUs.
    pub fn links(self) -> u32 {
        self.0.gpu_links().map_or(0, |(_, count)| count)
    }
}

impl From<&'static GpuModel> for Gpu {
    fn from(model: &'static GpuModel) -> Self {
        Self(model)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.id)
    }
}

/// A GPU of the catalog, for tests.
#[cfg(test)]
pub(crate) fn gpu(name: &str) -> Gpu {
    Gpu::from_name(name).unwrap()
}
