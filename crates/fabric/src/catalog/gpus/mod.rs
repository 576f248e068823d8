//! GPUs: memory, links, slots. Arithmetic rates are deliberately absent: Weft plans data movement, not computation.

mod row;
mod table;

pub use table::GPUS;

pub use crate::gpu_model::{GpuLinks, GpuModel, Price, Vendor};

/// The model with an id.
pub fn by_id(id: &str) -> Option<&'static GpuModel> {
    GPUS.iter().find(|model| model.id.eq_ignore_ascii_case(id))
}

/// The model with a PCI device id. Within the catalog, device ids are unique across vendors.
pub fn by_pci_device(device: u16) -> Option<&'static GpuModel> {
    GPUS.iter().find(|model| model.pci_devices.contains(&device))
}
