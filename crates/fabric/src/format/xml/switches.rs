//! Merges the NVSwitches of a file.
//!
//! The format cannot express links between switches. Where GPUs reach each other only over such links (the two boards of
//! a DGX-2, the two levels of a DGX GH200), the switches of a file appear unconnected. NCCL treats all NVSwitches of a
//! system as one; here they are merged only where GPUs would otherwise be disconnected, so that single-level systems keep
//! theirs.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::components::components;
use crate::device::{BusId, DeviceKind};
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};

/// A switch as links name it: its host (none if shared by hosts) and its bus id.
pub(super) type SwitchKey = (Option<HostId>, BusId);

/// A link element that leads from a GPU to a switch.
pub(super) struct Attachment {
    pub(super) gpu: DeviceId,
    pub(super) host: HostId,
    pub(super) switch: SwitchKey,
}

/// For each switch that has to be merged, the switch that represents it. Switches of the same host form one set, and so
/// do sets that share a switch.
pub(super) fn merged(attachments: &[Attachment]) -> FxHashMap<SwitchKey, SwitchKey> {
    let mut at_host: FxHashMap<HostId, Vec<usize>> = FxHashMap::default();
    let mut at_switch: FxHashMap<SwitchKey, Vec<usize>> = FxHashMap::default();
    for (index, Attachment { host, switch, .. }) in attachments.iter().enumerate() {
        at_host.entry(*host).or_default().push(index);
        at_switch.entry(*switch).or_default().push(index);
    }
    let mut stand_ins = FxHashMap::default();
    for start in 0..attachments.len() {
        // The attachments of a host or switch are removed when first visited, so each is visited once.
        let mut queue = at_host.remove(&attachments[start].host).unwrap_or_default();
        let mut next = 0;
        let mut reach: FxHashMap<DeviceId, BTreeSet<SwitchKey>> = FxHashMap::default();
        while next < queue.len() {
            let Attachment { gpu, host, switch } = attachments[queue[next]];
            reach.entry(gpu).or_default().insert(switch);
            queue.extend(at_switch.remove(&switch).unwrap_or_default());
            queue.extend(at_host.remove(&host).unwrap_or_default());
            next += 1;
        }
        let switches: BTreeSet<SwitchKey> = reach.values().flatten().copied().collect();
        let Some(first) = switches.first().copied() else {
            continue;
        };
        if !all_intersect(reach.into_values()) {
            stand_ins.extend(switches.into_iter().skip(1).map(|switch| (switch, first)));
        }
    }
    stand_ins
}

/// For writing: the switch that represents each merged switch.
pub(super) fn stand_ins(fabric: &Fabric) -> FxHashMap<DeviceId, DeviceId> {
    let is_switch = |id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::NvSwitch { .. });
    let switched = components(fabric, |link| {
        fabric.spec(link).kind.is_gpu_fabric() && (is_switch(link.source) || is_switch(link.target))
    });
    let mut stand_ins = FxHashMap::default();
    for members in switched.into_iter().filter(|members| members.len() > 1) {
        let is_gpu = |id: &DeviceId| matches!(fabric.device(*id).kind, DeviceKind::Gpu(_));
        let gpus: Vec<DeviceId> = members.iter().copied().filter(is_gpu).collect();
        let reach = gpus.iter().map(|gpu| {
            let targets = fabric.links_from(*gpu).iter().map(|link| link.target);
            targets.filter(|target| is_switch(*target)).collect::<BTreeSet<DeviceId>>()
        });
        if all_intersect(reach) {
            continue;
        }
        let switches: Vec<DeviceId> = members.iter().copied().filter(|id| is_switch(*id)).collect();
        let hosts: FxHashSet<Option<HostId>> = gpus.iter().map(|gpu| fabric.device(*gpu).host).collect();
        // A switch that several hosts name must belong to no host.
        let shared = switches.iter().find(|switch| fabric.device(**switch).host.is_none());
        let first = shared.or(switches.first().filter(|_| hosts.len() == 1)).copied();
        if let Some(first) = first {
            stand_ins
                .extend(switches.into_iter().filter(|switch| *switch != first).map(|switch| (switch, first)));
        }
    }
    stand_ins
}

/// True if every two of the sets have a member in common.
fn all_intersect<T: Ord>(sets: impl Iterator<Item = BTreeSet<T>>) -> bool {
    // Most GPUs have links to the same switches, so few distinct sets remain.
    let sets: Vec<BTreeSet<T>> = sets.collect::<BTreeSet<_>>().into_iter().collect();
    let mut pairs = sets.iter().enumerate().flat_map(|(at, a)| sets[at + 1..].iter().map(move |b| (a, b)));
    pairs.all(|(a, b)| !a.is_disjoint(b))
}
