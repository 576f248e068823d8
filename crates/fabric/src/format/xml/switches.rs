//! Which NVSwitches of a file are one.
//!
//! The format has no word for links between switches. Where GPUs meet only by way of such links (a DGX-2's two boards,
//! the two levels of a DGX GH200) a file shows switches that have nothing to do with each other. To NCCL all NVSwitches
//! of a system are one; here they are one where GPUs would otherwise not meet, so that single-level systems keep theirs.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::components::components;
use crate::device::{BusId, DeviceKind};
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};

/// A switch as links name it: whose it is (none: shared by hosts) and where.
pub(super) type SwitchKey = (Option<HostId>, BusId);

/// A link element that leads from a GPU to a switch.
pub(super) struct Attachment {
    pub(super) gpu: DeviceId,
    pub(super) host: HostId,
    pub(super) switch: SwitchKey,
}

/// The switch that stands for another, for all that are not their own. The switches of a host, and those that share a
/// host with them, go together.
pub(super) fn merged(attachments: &[Attachment]) -> FxHashMap<SwitchKey, SwitchKey> {
    let mut at_host: FxHashMap<HostId, Vec<usize>> = FxHashMap::default();
    let mut at_switch: FxHashMap<SwitchKey, Vec<usize>> = FxHashMap::default();
    for (index, Attachment { host, switch, .. }) in attachments.iter().enumerate() {
        at_host.entry(*host).or_default().push(index);
        at_switch.entry(*switch).or_default().push(index);
    }
    let mut stand_ins = FxHashMap::default();
    for start in 0..attachments.len() {
        // Each host's and each switch's attachments are taken out when first met: nothing is walked twice.
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
        if !all_meet(reach.into_values()) {
            stand_ins.extend(switches.into_iter().skip(1).map(|switch| (switch, first)));
        }
    }
    stand_ins
}

/// For writing: the switch that stands for each device, where that is another.
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
        if all_meet(reach) {
            continue;
        }
        let switches: Vec<DeviceId> = members.iter().copied().filter(|id| is_switch(*id)).collect();
        let hosts: FxHashSet<Option<HostId>> = gpus.iter().map(|gpu| fabric.device(*gpu).host).collect();
        // A switch that several hosts are to find has to be nobody's.
        let shared = switches.iter().find(|switch| fabric.device(**switch).host.is_none());
        let first = shared.or(switches.first().filter(|_| hosts.len() == 1)).copied();
        if let Some(first) = first {
            stand_ins
                .extend(switches.into_iter().filter(|switch| *switch != first).map(|switch| (switch, first)));
        }
    }
    stand_ins
}

/// True where each two of the sets have a member in common.
fn all_meet<T: Ord>(sets: impl Iterator<Item = BTreeSet<T>>) -> bool {
    // GPUs of a kind reach the same switches: few sets are left.
    let sets: Vec<BTreeSet<T>> = sets.collect::<BTreeSet<_>>().into_iter().collect();
    let mut pairs = sets.iter().enumerate().flat_map(|(at, a)| sets[at + 1..].iter().map(move |b| (a, b)));
    pairs.all(|(a, b)| !a.is_disjoint(b))
}
