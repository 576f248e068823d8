//! The devices of a host, their places in the wiring, and which device of the expected host each of them is.

use std::collections::VecDeque;

use weftlink_fabric::device::{DeviceKind, HostId};
use weftlink_fabric::link::{LinkKind, Measure};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceId, Fabric, Link};

/// The devices of one host, each kind in the order of the host.
pub(super) struct View<'f> {
    pub(super) fabric: &'f Fabric,
    /// Its name, where it is one host of several.
    pub(super) name: Option<&'f str>,
    pub(super) gpus: Vec<Part>,
    pub(super) nics: Vec<Part>,
    pub(super) numa: Vec<DeviceId>,
    pub(super) pcie_switches: Vec<DeviceId>,
    pub(super) nvswitches: Vec<DeviceId>,
}

/// A GPU or NIC and its place.
pub(super) struct Part {
    pub(super) id: DeviceId,
    /// The links from the device up to its NUMA node, or nothing if there is no way.
    pub(super) uplink: Vec<Link>,
    /// The position of that NUMA node in the host.
    pub(super) numa: Option<usize>,
}

impl<'f> View<'f> {
    /// The host at a position.
    pub(super) fn of_host(fabric: &'f Fabric, at: usize) -> Self {
        let name = (fabric.hosts().len() > 1).then(|| fabric.hosts()[at].name.as_str());
        Self::of(fabric, Some(HostId(at as u32)), name)
    }

    /// The devices that belong to no host.
    pub(super) fn between_hosts(fabric: &'f Fabric) -> Self {
        Self::of(fabric, None, None)
    }

    fn of(fabric: &'f Fabric, host: Option<HostId>, name: Option<&'f str>) -> Self {
        let of_kind = |wanted: fn(&DeviceKind) -> bool| -> Vec<DeviceId> {
            fabric.devices_where(wanted).filter(|id| fabric.device(*id).host == host).collect()
        };
        let numa = of_kind(|kind| matches!(kind, DeviceKind::Numa(_)));
        let part = |id: &DeviceId| {
            let (uplink, node) = uplink(fabric, *id).unwrap_or_default();
            Part { id: *id, uplink, numa: node.and_then(|node| numa.iter().position(|one| *one == node)) }
        };
        let gpus: Vec<DeviceId> =
            fabric.gpus().iter().copied().filter(|id| fabric.device(*id).host == host).collect();
        Self {
            fabric,
            name,
            gpus: gpus.iter().map(part).collect(),
            nics: of_kind(|kind| matches!(kind, DeviceKind::Nic(_))).iter().map(part).collect(),
            pcie_switches: of_kind(|kind| matches!(kind, DeviceKind::PcieSwitch)),
            nvswitches: of_kind(|kind| matches!(kind, DeviceKind::NvSwitch { .. })),
            numa,
        }
    }

    /// A device's name.
    pub(super) fn name_of(&self, id: DeviceId) -> String {
        self.fabric.device_name(id)
    }

    /// ` of host1` where there are several.
    pub(super) fn of_this(&self) -> String {
        self.name.map_or_else(String::new, |name| format!(" of {name}"))
    }

    /// The number of links of some kinds from a device to devices that `wanted` accepts, and their rate in bytes per second.
    pub(super) fn links(
        &self,
        id: DeviceId,
        kinds: fn(LinkKind) -> bool,
        wanted: impl Fn(DeviceId) -> bool,
    ) -> (u32, u64) {
        let links = self.fabric.links_from(id).iter();
        let links = links.filter(|link| kinds(self.fabric.spec(link).kind) && wanted(link.target));
        links.fold((0, 0), |(count, rate), link| {
            let more = self.fabric.rate(link, Measure::Nominal).bytes_per_second();
            (count.saturating_add(link.count), u64::saturating_add(rate, more))
        })
    }
}

/// The way from a device over PCIe to the nearest NUMA node, and the node.
fn uplink(fabric: &Fabric, id: DeviceId) -> Option<(Vec<Link>, Option<DeviceId>)> {
    let mut ways = VecDeque::from([(id, Vec::new())]);
    let mut seen = vec![id];
    while let Some((at, way)) = ways.pop_front() {
        if matches!(fabric.device(at).kind, DeviceKind::Numa(_)) {
            return Some((way, Some(at)));
        }
        for link in fabric.links_from(at) {
            let leads_up = matches!(
                fabric.device(link.target).kind,
                DeviceKind::Numa(_) | DeviceKind::RootPort | DeviceKind::PcieSwitch
            );
            let is_pcie = matches!(fabric.spec(link).kind, LinkKind::Pcie { .. });
            if leads_up && is_pcie && !seen.contains(&link.target) {
                seen.push(link.target);
                let way: Vec<Link> = way.iter().copied().chain([*link]).collect();
                ways.push_back((link.target, way));
            }
        }
    }
    None
}

/// A host as it is and as it should be, and which of its devices are the same.
pub(super) struct Pair<'f> {
    pub(super) found: View<'f>,
    pub(super) expected: View<'f>,
    /// For each expected GPU, the position of the found one.
    pub(super) gpus: Vec<Option<usize>>,
    /// For each expected NIC, the position of the found one.
    pub(super) nics: Vec<Option<usize>>,
}

impl<'f> Pair<'f> {
    pub(super) fn of(found: View<'f>, expected: View<'f>) -> Self {
        let gpus = assign(found.gpus.len(), expected.gpus.len(), |at, wanted| {
            Some(gpu_score((&found, at), (&expected, wanted)))
        });
        let nics = assign(found.nics.len(), expected.nics.len(), |at, wanted| {
            super::nics::score((&found, at), (&expected, wanted))
        });
        Self { found, expected, gpus, nics }
    }

    /// The GPUs that both have: as found, as expected.
    pub(super) fn same_gpus(&self) -> impl Iterator<Item = (&Part, &Part)> {
        let pairs = self.gpus.iter().zip(&self.expected.gpus);
        pairs.filter_map(|(found, expected)| Some((&self.found.gpus[(*found)?], expected)))
    }

    /// The NICs that both have: as found, as expected.
    pub(super) fn same_nics(&self) -> impl Iterator<Item = (&Part, &Part)> {
        let pairs = self.nics.iter().zip(&self.expected.nics);
        pairs.filter_map(|(found, expected)| Some((&self.found.nics[(*found)?], expected)))
    }

    /// Whether both have as many NUMA nodes, so that their positions compare.
    pub(super) fn same_numa_nodes(&self) -> bool {
        self.found.numa.len() == self.expected.numa.len()
    }
}

/// How alike two GPUs are. What identifies a GPU weighs more than what may be broken; order decides between equals.
fn gpu_score((found, at): (&View<'_>, usize), (expected, wanted): (&View<'_>, usize)) -> u32 {
    let (one, other) = (&found.gpus[at], &expected.gpus[wanted]);
    let model =
        |view: &View<'_>, part: &Part| view.fabric.device(part.id).kind.gpu_model().map(|model| model.id);
    let links = |view: &View<'_>, part: &Part| view.links(part.id, LinkKind::is_gpu_fabric, |_| true).0;
    let first = |view: &View<'_>, part: &Part| part.uplink.first().map(|link| view.fabric.spec(link).kind);
    let points = [
        (8, model(found, one) == model(expected, other)),
        (4, found.numa.len() == expected.numa.len() && one.numa == other.numa),
        (2, first(found, one) == first(expected, other)),
        (2, links(found, one) == links(expected, other)),
        (1, at == wanted),
    ];
    points.iter().filter(|(_, holds)| *holds).map(|(points, _)| points).sum()
}

/// Assigns found devices to expected ones, the most alike first.
fn assign(found: usize, expected: usize, score: impl Fn(usize, usize) -> Option<u32>) -> Vec<Option<usize>> {
    let mut pairs: Vec<(std::cmp::Reverse<u32>, usize, usize, usize)> = Vec::new();
    for wanted in 0..expected {
        let scored =
            |at: usize| Some((std::cmp::Reverse(score(at, wanted)?), at.abs_diff(wanted), wanted, at));
        pairs.extend((0..found).filter_map(scored));
    }
    pairs.sort_unstable();
    let (mut of, mut is_taken) = (vec![None; expected], vec![false; found]);
    for (_, _, wanted, at) in pairs {
        if of[wanted].is_none() && !is_taken[at] {
            of[wanted] = Some(at);
            is_taken[at] = true;
        }
    }
    of
}

/// The rate of a port or link that is not zero, which means unknown.
pub(super) fn known<S, D>(rate: Rate<S, D>) -> Option<u64> {
    Some(rate.bytes_per_second()).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_alike_are_assigned_first() {
        // Two found devices, three expected: the second expected one is missing.
        let kinds = (["a", "c"], ["a", "b", "c"]);
        let score = |at: usize, wanted: usize| (kinds.0[at] == kinds.1[wanted]).then_some(1);
        assert_eq!(assign(2, 3, score), [Some(0), None, Some(1)]);
        assert_eq!(assign(0, 2, |_, _| Some(1)), [None, None]);
        // Equals are assigned in order.
        assert_eq!(assign(3, 2, |_, _| Some(1)), [Some(0), Some(1)]);
    }

    #[test]
    fn a_way_up_ends_at_the_nearest_numa_node() {
        let fabric = weftlink_fabric::resolve("hgx-h100").unwrap();
        let view = View::of_host(&fabric, 0);
        let nodes: Vec<_> = view.gpus.iter().map(|gpu| gpu.numa).collect();
        assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
        assert_eq!(view.gpus[0].uplink.len(), 3, "GPU, switch, root port, NUMA node");
    }
}
