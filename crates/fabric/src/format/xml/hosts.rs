//! The hosts that a file has to describe together, their hashes, and the dialect they need.

use rustc_hash::FxHashSet;

use super::attributes::hash;
use super::tree::Tree;
use super::write::find;
use crate::catalog::gpus::Vendor;
use crate::device::{DeviceKind, GpuRank};
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::LinkKind;

/// The hosts that share an NVLink domain with `host`, including itself: one file has to describe them together.
pub fn nvlink_domain(fabric: &Fabric, host: HostId) -> Vec<HostId> {
    let mut reached = vec![false; fabric.hosts().len()];
    let mut seen = vec![false; fabric.devices().len()];
    let mut queue: Vec<DeviceId> = Vec::new();
    let mut hosts = vec![host];
    reached[host.index()] = true;
    let mut next = 0;
    while next < hosts.len() {
        let gpus = fabric.gpus().iter().copied();
        queue.extend(gpus.filter(|gpu| fabric.device(*gpu).host == Some(hosts[next])));
        next += 1;
        while let Some(device) = queue.pop() {
            if std::mem::replace(&mut seen[device.index()], true) {
                continue;
            }
            if let Some(host) = fabric.device(device).host
                && !std::mem::replace(&mut reached[host.index()], true)
            {
                hosts.push(host);
            }
            let wires = fabric.links_from(device).iter();
            queue.extend(wires.filter(|link| fabric.spec(link).kind.is_gpu_fabric()).map(|link| link.target));
        }
    }
    hosts.sort_unstable();
    hosts
}

/// The dialect of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Nccl,
    Rccl,
}

impl Dialect {
    /// Decided by the links, because each dialect has a name for its own kind only; without links, by the GPUs.
    pub(super) fn of(fabric: &Fabric, tree: &Tree) -> Self {
        let gpus = || fabric.gpus().iter().copied().filter(|gpu| tree.holds(*gpu));
        let has = |wanted: fn(LinkKind) -> bool| {
            gpus().flat_map(|gpu| fabric.links_from(gpu)).any(|link| wanted(fabric.spec(link).kind))
        };
        let is_amd = |id: DeviceId| {
            let DeviceKind::Gpu(gpu) = &fabric.device(id).kind else {
                return false;
            };
            let names_gcn = |rank: &GpuRank| rank.extra.iter().any(|(name, _)| &**name == "gcn");
            gpu.ranks.iter().any(names_gcn) || gpu.model.is_some_and(|model| model.vendor == Vendor::Amd)
        };
        let has_xgmi = has(|kind| matches!(kind, LinkKind::Xgmi { .. }));
        let has_nvlink = has(|kind| matches!(kind, LinkKind::NvLink { .. }));
        if has_xgmi || (!has_nvlink && gpus().any(is_amd)) { Self::Rccl } else { Self::Nccl }
    }
}

/// True if several hosts are written and their hashes do not distinguish them.
pub(super) fn needs_hashes(fabric: &Fabric, tree: &Tree) -> bool {
    let mut hashes = FxHashSet::default();
    let mut hosts = FxHashSet::default();
    for root in &tree.roots {
        let text = root.numa.and_then(|numa| find(&fabric.device(numa).extra, "host_hash"));
        hosts.insert(root.host);
        hashes.insert((root.host, text.map_or(0, hash)));
    }
    let distinct: FxHashSet<u64> = hashes.iter().map(|(_, hash)| *hash).collect();
    hosts.len() > 1 && (distinct.len() < hosts.len() || hashes.len() > hosts.len())
}
