//! Switches that multicast and reduce.

use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind};

use super::sites::{Interconnect, Placed, Sites};

/// The first generation of NVSwitch that multicasts and reduces.
const NVLS_GENERATION: u8 = 3;
/// The compute capability of the GPUs that came with it, times ten.
const NVLS_SM: u32 = 90;

/// Whether the switches of every island multicast and reduce; if not, why.
pub(super) fn multicast(sites: &Sites<'_>, islands: &[Placed<'_>]) -> Result<(), String> {
    let fabric = sites.paths.fabric();
    let mut seen = Vec::new();
    for (number, island) in islands.iter().enumerate() {
        // Islands of one shape have the same switches.
        if seen.contains(&island.shape) {
            continue;
        }
        seen.push(island.shape);
        let why = match island.island.kind {
            _ if island.ranks.len() < 2 => "has a single rank, so a switch has nothing to add",
            Interconnect::Links(_) => "has direct links; only an NVSwitch multicasts and reduces",
            Interconnect::Host => "has no NVSwitch",
            Interconnect::Switch
                if !island.ranks.iter().all(|rank| reduces(fabric, fabric.gpus()[*rank as usize])) =>
            {
                "has NVSwitches that only forward; they reduce from the third generation (Hopper) on"
            }
            Interconnect::Switch => continue,
        };
        return Err(format!("island {number} {why}"));
    }
    if islands.is_empty() { Err("there are no ranks".to_owned()) } else { Ok(()) }
}

/// Whether all NVSwitches of a GPU reduce. Files often lack their generation; the GPU's implies it.
fn reduces(fabric: &Fabric, gpu: DeviceId) -> bool {
    let by_gpu = match &fabric.device(gpu).kind {
        DeviceKind::Gpu(gpu) => gpu.sm.is_some_and(|sm| sm >= NVLS_SM),
        _ => false,
    };
    let mut links = fabric.links_from(gpu).iter();
    links.all(|link| match fabric.device(link.target).kind {
        DeviceKind::NvSwitch { generation: Some(generation) } => generation >= NVLS_GENERATION,
        DeviceKind::NvSwitch { generation: None } => by_gpu,
        _ => true,
    })
}

/// Whether the switches between the islands reduce; if not, why.
pub(super) fn network_reduces(sites: &Sites<'_>, islands: &[Placed<'_>]) -> Result<(), String> {
    if islands.iter().all(|island| island.site == islands[0].site) {
        return Err("there is no network between ranks".to_owned());
    }
    let fabric = sites.paths.fabric();
    let mut other: Option<LinkKind> = None;
    for island in islands {
        let members = &sites.paths.islands().all()[island.site].members;
        let nics = members.iter().filter(|id| matches!(fabric.device(**id).kind, DeviceKind::Nic(_)));
        let to_switch = |link: &&weftlink_fabric::Link| {
            matches!(fabric.device(link.target).kind, DeviceKind::NetSwitch(_))
        };
        let cables = nics.flat_map(|nic| fabric.links_from(*nic)).filter(to_switch);
        let mut kinds = cables.map(|link| fabric.spec(link).kind).peekable();
        let Some(first) = kinds.peek().copied() else {
            let first = island.ranks.iter().min().copied().unwrap_or_default();
            return Err(format!("no switch connects rank {first} to the others"));
        };
        if !kinds.any(|kind| matches!(kind, LinkKind::Network { network: Network::InfiniBand, .. })) {
            other.get_or_insert(first);
        }
    }
    other
        .map_or(Ok(()), |kind| Err(format!("the network is {kind}; only InfiniBand switches reduce (SHARP)")))
}
