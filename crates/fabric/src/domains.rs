//! NVLink domains: the GPUs that reach each other over their own links, without PCIe or network.

use crate::components::components_of;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::DeviceId;

/// The domains of a fabric, each sorted by GPU; a GPU without such links is a domain of one. xGMI, Xe Link and UALink form
/// domains as NVLink does.
pub fn gpu_domains(fabric: &Fabric) -> Vec<Vec<DeviceId>> {
    gpu_domains_among(fabric, &fabric.device_ids().collect::<Vec<_>>())
}

/// The domains among some devices, which must be sorted: those of one host, or of one island.
pub fn gpu_domains_among(fabric: &Fabric, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let is_gpu = |id: &DeviceId| matches!(fabric.device(*id).kind, DeviceKind::Gpu(_));
    let components = components_of(fabric, devices, |link| fabric.spec(link).kind.is_gpu_fabric());
    let gpus = components.into_iter().map(|members| members.into_iter().filter(is_gpu).collect::<Vec<_>>());
    gpus.filter(|gpus| !gpus.is_empty()).collect()
}
