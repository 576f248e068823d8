//! A builder for the rows of the GPU table, one call per line of the data sheet.

use super::{GpuLinks, GpuModel, Price, Vendor};
use crate::bytes::Bytes;
use crate::figure::Figure;
use crate::link::LinkSpec;
use crate::rate::Rate;

pub(super) const fn nvidia(id: &'static str, name: &'static str, year: u16, compute_capability: u32) -> Row {
    Row::of(Vendor::Nvidia, id, name, year, compute_capability)
}

pub(super) const fn amd(id: &'static str, name: &'static str, year: u16, gfx: u32) -> Row {
    Row::of(Vendor::Amd, id, name, year, gfx)
}

pub(super) const fn intel(id: &'static str, name: &'static str, year: u16) -> Row {
    Row::of(Vendor::Intel, id, name, year, 0)
}

/// A row under construction. It has no destructor, unlike [`GpuModel`], so constants can be built by chaining.
pub(super) struct Row {
    vendor: Vendor,
    id: &'static str,
    name: &'static str,
    year: u16,
    architecture: u32,
    memory_gb: u64,
    memory_gb_per_second: u64,
    source: &'static str,
    links: GpuLinks,
    c2c: Option<(&'static LinkSpec, u32)>,
    pcie: (u8, u8),
    pci_devices: &'static [u16],
    price: Price,
}

impl Row {
    const fn of(vendor: Vendor, id: &'static str, name: &'static str, year: u16, architecture: u32) -> Self {
        Self {
            vendor,
            id,
            name,
            year,
            architecture,
            memory_gb: 0,
            memory_gb_per_second: 0,
            source: "",
            links: GpuLinks::Absent(""),
            c2c: None,
            pcie: (0, 0),
            pci_devices: &[],
            price: Price::OnRequest,
        }
    }

    pub(super) const fn memory(mut self, gb: u64, gb_per_second: u64, source: &'static str) -> Self {
        self.memory_gb = gb;
        self.memory_gb_per_second = gb_per_second;
        self.source = source;
        self
    }

    pub(super) const fn wired(mut self, link: &'static LinkSpec, links: u32) -> Self {
        self.links = GpuLinks::Wired(link, links);
        self
    }

    pub(super) const fn bridge(mut self, link: &'static LinkSpec, links: u32, slots: u32) -> Self {
        self.links = GpuLinks::Bridge { link, links, slots };
        self
    }

    pub(super) const fn absent(mut self, reason: &'static str) -> Self {
        self.links = GpuLinks::Absent(reason);
        self
    }

    pub(super) const fn c2c(mut self, link: &'static LinkSpec, links: u32) -> Self {
        self.c2c = Some((link, links));
        self
    }

    pub(super) const fn pcie(mut self, generation: u8, width: u8, devices: &'static [u16]) -> Self {
        self.pcie = (generation, width);
        self.pci_devices = devices;
        self
    }

    pub(super) const fn list_usd(mut self, dollars: u32) -> Self {
        self.price = Price::ListUsd(dollars);
        self
    }

    pub(super) const fn model(self) -> GpuModel {
        GpuModel {
            id: self.id,
            name: self.name,
            vendor: self.vendor,
            year: self.year,
            architecture: self.architecture,
            memory: Bytes::from_gb(self.memory_gb),
            memory_rate: Figure::nominal(Rate::from_gb(self.memory_gb_per_second), self.source),
            links: self.links,
            c2c: self.c2c,
            pcie: self.pcie,
            pci_devices: self.pci_devices,
            price: self.price,
        }
    }
}
