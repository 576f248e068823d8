//! NVLink domains: the GPUs that reach each other over their own links, without PCIe or network.

use crate::device::{DeviceId, DeviceKind};
use crate::fabric::Fabric;

/// The domains of a fabric, each with its GPUs in order; a GPU without such links is a domain of one. xGMI and Xe
/// Link make domains as NVLink does.
pub fn gpu_domains(fabric: &Fabric) -> Vec<Vec<DeviceId>> {
    let mut seen = vec![false; fabric.devices().len()];
    let mut domains = Vec::new();
    for &start in fabric.gpus() {
        if seen[start.index()] {
            continue;
        }
        seen[start.index()] = true;
        let mut pending = vec![start];
        let mut gpus = Vec::new();
        while let Some(device) = pending.pop() {
            if matches!(fabric.device(device).kind, DeviceKind::Gpu(_)) {
                gpus.push(device);
            }
            for link in fabric.links_from(device) {
                if fabric.spec(link).kind.is_gpu_fabric() && !seen[link.target.index()] {
                    seen[link.target.index()] = true;
                    pending.push(link.target);
                }
            }
        }
        gpus.sort_unstable();
        domains.push(gpus);
    }
    domains
}
