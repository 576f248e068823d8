//! Finds the catalog's model of a GPU.

use weftlink_fabric::catalog::gpus::{self, GPUS, GpuModel, Vendor};

use crate::gpu_source::GpuReport;

/// Words that distinguish variants of a GPU: a card with such a word matches only models with it.
const VARIANTS: [&str; 4] = ["pcie", "nvl", "super", "ti"];

/// The catalog's model, by PCI vendor and device, or else by the driver's name.
pub(crate) fn model_of(ids: Option<(u16, u16)>, report: Option<&GpuReport>) -> Option<&'static GpuModel> {
    let by_id = ids.and_then(|(vendor, device)| by_pci_id(vendor, device));
    by_id.or_else(|| by_name(report?))
}

/// The catalog's model with a PCI vendor and device id.
pub(crate) fn by_pci_id(vendor: u16, device: u16) -> Option<&'static GpuModel> {
    gpus::by_pci_device(device).filter(|model| model.vendor.pci_id() == vendor)
}

/// The matching model with the longest id. NVIDIA only, because names come from NVML.
fn by_name(report: &GpuReport) -> Option<&'static GpuModel> {
    let name = report.name.as_deref()?.to_ascii_lowercase();
    let without_spaces: String = name.split_whitespace().collect();
    let fits = |model: &&GpuModel| {
        let same_variant = VARIANTS.iter().all(|variant| {
            let has =
                |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == *variant);
            !has(&name) || has(model.id) || has(&model.name.to_ascii_lowercase())
        });
        let same_memory = report.memory_bytes.is_none_or(|bytes| {
            let ratio = bytes as f64 / model.memory.0 as f64;
            (0.9..1.1).contains(&ratio)
        });
        model.vendor == Vendor::Nvidia
            && report.sm.is_none_or(|sm| sm == model.architecture)
            && model.id.split('-').all(|word| without_spaces.contains(word))
            && same_variant
            && same_memory
    };
    GPUS.iter().filter(fits).max_by_key(|model| model.id.len())
}

#[cfg(test)]
mod tests {
    use weftlink_fabric::device::BusId;

    use super::*;

    fn named(name: &str, sm: u32, gigabytes: u64) -> Option<&'static str> {
        let report = GpuReport {
            bus: BusId::new(0, 1, 0, 0),
            name: Some(name.to_owned()),
            sm: Some(sm),
            memory_bytes: Some(gigabytes * 1_000_000_000),
            c2c_links: None,
            nvlinks: Vec::new(),
        };
        by_name(&report).map(|model| model.id)
    }

    #[test]
    fn models_are_found_by_name() {
        assert_eq!(named("NVIDIA H100 80GB HBM3", 90, 85), Some("h100"));
        assert_eq!(named("NVIDIA GeForce RTX 4090", 89, 25), Some("rtx4090"));
        assert_eq!(named("NVIDIA X9000", 90, 85), None);
        assert_eq!(named("NVIDIA H100 80GB HBM3", 80, 85), None);
        assert_ne!(named("NVIDIA H100 PCIe", 90, 85), Some("h100"));
    }
}
