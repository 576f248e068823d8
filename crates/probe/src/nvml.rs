//! GPU data from NVML, which is loaded at run time: no NVIDIA library is needed to build or to start.
//!
//! The device type of an NVLink's far end is not read: the binding always returns `Unknown`, so the PCI ids of the far end
//! decide.

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml as Library};
use weftlink_fabric::device::BusId;

use crate::gpu_source::{GpuReport, GpuReports, GpuSource, NvLinkReport, NvLinkUp, Remote};

/// The name that drivers install; the name without `.1` is part of the development files.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// NVML numbers a GPU's links from 0 and fails at the first missing one. No GPU has this many.
pub(crate) const NVLINKS_MAX: u32 = 64;
/// `NVML_FI_DEV_C2C_LINK_COUNT` of nvml.h.
const FIELD_C2C_LINK_COUNT: FieldId = FieldId(170);

/// The NVIDIA driver of the local machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nvml;

impl GpuSource for Nvml {
    fn gpus(&self) -> GpuReports {
        match open() {
            Ok(library) => reports(&library).0,
            Err(reason) => without_gpus(reason),
        }
    }
}

/// Loads and initializes NVML.
pub(crate) fn library() -> Result<Library, NvmlError> {
    Library::builder().lib_path(LIBRARY.as_ref()).init()
}

/// The same; the error is a sentence.
pub(crate) fn open() -> Result<Library, String> {
    match library() {
        Ok(library) => Ok(library),
        Err(NvmlError::LibloadingError(_)) => {
            Err(format!("cannot load {LIBRARY}: no NVIDIA driver is installed"))
        }
        Err(error) => Err(format!("NVML failed to initialize: {error}")),
    }
}

/// Reports all GPUs, with the device of each report.
pub(crate) fn reports(library: &Library) -> (GpuReports, Vec<Device<'_>>) {
    let count = match library.device_count() {
        Ok(count) => count,
        Err(error) => return (without_gpus(format!("NVML failed to count the GPUs: {error}")), Vec::new()),
    };
    let (mut reports, mut devices) = (GpuReports::default(), Vec::new());
    for index in 0..count {
        let read = library.device_by_index(index).and_then(|device| Ok((report(&device)?, device)));
        match read {
            Ok((gpu, device)) => {
                reports.gpus.push(gpu);
                devices.push(device);
            }
            Err(error) => reports.reason = Some(format!("NVML failed to read GPU {index}: {error}")),
        }
    }
    (reports, devices)
}

pub(crate) fn without_gpus(reason: String) -> GpuReports {
    GpuReports { gpus: Vec::new(), reason: Some(reason) }
}

fn report(device: &Device<'_>) -> Result<GpuReport, NvmlError> {
    let sm = device
        .cuda_compute_capability()
        .ok()
        .and_then(|capability| u32::try_from(capability.major * 10 + capability.minor).ok());
    Ok(GpuReport {
        bus: bus_of(&device.pci_info()?).ok_or(NvmlError::GetPciInfoFailed)?,
        name: device.name().ok(),
        sm,
        memory_bytes: device.memory_info().ok().map(|memory| memory.total),
        c2c_links: c2c_links(device),
        nvlinks: (0..NVLINKS_MAX).map_while(|index| nvlink(device, index)).collect(),
    })
}

/// None if the GPU has no link with that number.
fn nvlink(device: &Device<'_>, index: u32) -> Option<NvLinkReport> {
    let link = device.link_wrapper_for(index);
    let up = link.is_active().ok()?.then(|| NvLinkUp {
        generation: link.version().ok().and_then(generation_of),
        remote: link.remote_pci_info().map_or(Remote::Unknown, |info| remote_of(&info)),
    });
    Some(NvLinkReport { index, up })
}

/// `nvmlNvlinkVersion_t` of nvml.h, in which point releases have their own numbers.
fn generation_of(version: u32) -> Option<u8> {
    match version {
        1 => Some(1),
        2 | 3 => Some(2),
        4 | 5 => Some(3),
        6 => Some(4),
        7 => Some(5),
        _ => None,
    }
}

/// In a virtual machine the far end may be hidden; its address is then all ones.
fn remote_of(info: &PciInfo) -> Remote {
    match bus_of(info) {
        Some(bus) if info.pci_device_id != u32::MAX => {
            Remote::Function { bus, id: (info.pci_device_id as u16, (info.pci_device_id >> 16) as u16) }
        }
        _ => Remote::Hidden,
    }
}

pub(crate) fn bus_of(info: &PciInfo) -> Option<BusId> {
    let bus = u8::try_from(info.bus).ok()?;
    let device = u8::try_from(info.device).ok().filter(|device| *device < 32)?;
    (info.domain != u32::MAX).then(|| BusId::new(info.domain, bus, device, 0))
}

fn c2c_links(device: &Device<'_>) -> Option<u32> {
    let sample = device.field_values_for(&[FIELD_C2C_LINK_COUNT]).ok()?.pop()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(count) => Some(count),
        SampleValue::U64(count) => u32::try_from(count).ok(),
        SampleValue::I64(count) => u32::try_from(count).ok(),
        SampleValue::F64(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ones_is_hidden() {
        let seen = PciInfo {
            bus: 5,
            bus_id: "00000000:05:00.0".to_owned(),
            device: 0,
            domain: 0,
            pci_device_id: 0x22a3_10de,
            pci_sub_system_id: None,
        };
        assert_eq!(remote_of(&seen), Remote::Function { bus: BusId::new(0, 5, 0, 0), id: (0x10de, 0x22a3) });
        let hidden = PciInfo { bus: 0xffff, domain: u32::MAX, device: 0xff, ..seen };
        assert_eq!(remote_of(&hidden), Remote::Hidden);
    }

    #[test]
    fn without_a_driver_there_is_a_reason() {
        let reports = Nvml.gpus();
        assert!(!reports.gpus.is_empty() || reports.reason.is_some());
    }
}
