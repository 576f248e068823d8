//! Traffic on a fabric, by kind of link.

use std::collections::BTreeMap;

use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, Paths};

use super::{Flow, Traffic};
use crate::plan::Switch;
use crate::ratio::Ratio;

impl Traffic {
    /// The traffic over all links of each kind, as shares of the call's size. Ranks are the fabric's GPUs in their order; each
    /// pair takes its best path and counts on every link of it, so traffic through a switch counts twice. Sums and multicasts
    /// by network switches count up to the switch that the rank's NIC is connected to. None if the fabric has fewer GPUs than
    /// the plan has ranks.
    pub fn by_link_kind(&self, fabric: &Fabric) -> Option<BTreeMap<LinkKind, Ratio>> {
        let paths = Paths::of(fabric);
        let gpu = |rank: u32| fabric.gpus().get(rank as usize).copied();
        let mut chunks = BTreeMap::<LinkKind, u64>::new();
        for (&(from, to), &count) in &self.pairs {
            for kind in kinds(fabric, &paths.route(gpu(from)?, gpu(to)?).stations) {
                *chunks.entry(kind).or_default() += count;
            }
        }
        for (&(switch, rank), &Flow { sent, received }) in &self.switched {
            for kind in kinds(fabric, &way_to_switch(fabric, &paths, switch, gpu(rank)?)) {
                *chunks.entry(kind).or_default() += sent + received;
            }
        }
        Some(chunks.into_iter().map(|(kind, chunks)| (kind, self.share(chunks))).collect())
    }
}

/// The kinds of the links between stations; of several between the same two, the fastest.
fn kinds(fabric: &Fabric, stations: &[Vec<DeviceId>]) -> Vec<LinkKind> {
    let between = |pair: &[Vec<DeviceId>]| {
        let links = pair[0].iter().flat_map(|from| fabric.links_from(*from));
        let specs = links.filter(|link| pair[1].contains(&link.target)).map(|link| fabric.spec(link));
        Some(specs.max_by_key(|spec| spec.best().map(|figure| figure.value))?.kind)
    };
    stations.windows(2).filter_map(between).collect()
}

/// The stations from a GPU to the switch that computes for it.
fn way_to_switch(fabric: &Fabric, paths: &Paths<'_>, switch: Switch, gpu: DeviceId) -> Vec<Vec<DeviceId>> {
    let computes = |device: DeviceId| match switch {
        Switch::Nvswitch => matches!(fabric.device(device).kind, DeviceKind::NvSwitch { .. }),
        Switch::Network => matches!(fabric.device(device).kind, DeviceKind::NetSwitch { .. }),
    };
    let routes =
        fabric.device_ids().filter(|device| computes(*device)).map(|device| paths.route(gpu, device));
    let nearest = routes.filter(|route| route.path.hops > 0).min_by_key(|route| route.path.hops);
    nearest.map_or(vec![], |route| route.stations)
}
