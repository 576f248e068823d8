//! The fabric with the NVLinks that are down or missing, for what they cost.

use weftlink_fabric::{DeviceId, Fabric, LinkSpec};

use super::gpus::{Gpu, nvswitches};
use super::nvlinks::wired;
use crate::check::Machine;
use crate::cost;
use crate::finding::Cost;

/// What the missing links of all GPUs cost.
pub(super) fn cost_of_links(machine: &Machine<'_>, all: &[Gpu<'_>]) -> Option<Cost> {
    cost::of_all_reduce(machine.fabric, &mended(machine.fabric, all)?)
}

/// The fabric with all links that the models have.
fn mended(fabric: &Fabric, all: &[Gpu<'_>]) -> Option<Fabric> {
    let (switches, _) = nvswitches(fabric);
    let more = if switches.is_empty() {
        more_in_mesh(fabric, all)
    } else {
        more_to_switches(fabric, all, &switches)
    };
    if more.is_empty() { None } else { cost::with_more_links(fabric, &more) }
}

type More = Vec<(DeviceId, DeviceId, u32, LinkSpec)>;

fn count(fabric: &Fabric, one: DeviceId, other: DeviceId) -> u32 {
    let links = fabric.links_from(one).iter().filter(|link| link.target == other);
    links.filter(|link| fabric.spec(link).kind.is_gpu_fabric()).map(|link| link.count).sum()
}

/// As many links to each NVSwitch as the GPU with most has.
fn more_to_switches(fabric: &Fabric, all: &[Gpu<'_>], switches: &[DeviceId]) -> More {
    let mut more = Vec::new();
    for gpu in all {
        let (Some(device), Some((spec, expected))) = (gpu.device, wired(gpu, all.len())) else { continue };
        let here: u32 = switches.iter().map(|switch| count(fabric, device, *switch)).sum();
        let mut missing = expected.saturating_sub(here);
        for switch in switches {
            let devices = all.iter().filter_map(|gpu| gpu.device);
            let usual = devices.map(|other| count(fabric, other, *switch)).max().unwrap_or(0);
            let added = usual.saturating_sub(count(fabric, device, *switch)).min(missing);
            if added > 0 {
                more.push((device, *switch, added, spec.clone()));
                missing -= added;
            }
        }
        if let (Some(first), true) = (switches.first(), missing > 0) {
            more.push((device, *first, missing, spec.clone()));
        }
    }
    more
}

/// GPUs of a board without NVSwitches, where each pair is wired alike. Nothing says how larger meshes are wired.
const MESH_MAX: usize = 4;

fn more_in_mesh(fabric: &Fabric, all: &[Gpu<'_>]) -> More {
    let devices: Vec<DeviceId> = all.iter().filter_map(|gpu| gpu.device).collect();
    let links = all.first().and_then(|gpu| wired(gpu, all.len()));
    let (Some((spec, expected)), 2..=MESH_MAX, true) = (links, devices.len(), devices.len() == all.len())
    else {
        return Vec::new();
    };
    let pair = expected / (devices.len() as u32 - 1);
    let mut more = Vec::new();
    for (at, one) in devices.iter().enumerate() {
        for other in &devices[at + 1..] {
            let missing = pair.saturating_sub(count(fabric, *one, *other));
            if missing > 0 {
                more.push((*one, *other, missing, spec.clone()));
            }
        }
    }
    more
}
