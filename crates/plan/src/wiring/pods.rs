//! Cuts through the network: pods, which are the sites below the same leaf switches, and halves of the cluster.
//!
//! Sites below the same switches are one node of a flow, so thousands of hosts are a few hundred nodes.

use std::collections::BTreeMap;

use weftlink_fabric::maxflow::FlowGraph;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind};

use super::bounds::{Class, Partition};
use super::sites::{Placed, Sites};

/// The partitions into pods and into halves; `rates` returns the rates out of and into a site.
pub(super) fn partitions(
    sites: &Sites<'_>,
    islands: &[Placed<'_>],
    rates: impl FnMut(&Placed<'_>) -> (u64, u64),
    switches_reduce: bool,
) -> Vec<Partition> {
    let cluster = Cluster::of(sites, islands, rates);
    vec![cluster.pods(switches_reduce), cluster.halves()]
}

/// A cluster as its network sees it.
struct Cluster<'f> {
    fabric: &'f Fabric,
    sites: Vec<Cabled>,
}

/// A site and its cables.
struct Cabled {
    ranks: Vec<u32>,
    /// The other ends of its cables, and their rates.
    cables: Vec<(DeviceId, u64)>,
    out: u64,
    into: u64,
}

/// Sites with the same switches; rates are sums.
#[derive(Default)]
struct Group {
    /// The rate of their cables to each of the switches.
    rates: Vec<u64>,
    out: u64,
    into: u64,
}

impl<'f> Cluster<'f> {
    fn of(
        sites: &'f Sites<'_>,
        islands: &[Placed<'_>],
        mut rates: impl FnMut(&Placed<'_>) -> (u64, u64),
    ) -> Self {
        let fabric = sites.paths.fabric();
        let mut found: BTreeMap<usize, Cabled> = BTreeMap::new();
        for placed in islands {
            let site = found.entry(placed.site).or_insert_with(|| {
                let (out, into) = rates(placed);
                let members = &sites.paths.islands().all()[placed.site].members;
                Cabled { ranks: Vec::new(), cables: cables(fabric, members), out, into }
            });
            site.ranks.extend(&placed.ranks);
        }
        let mut sites: Vec<Cabled> = found.into_values().collect();
        sites.sort_by_cached_key(|site| (site.cables.first().copied(), site.ranks[0]));
        Self { fabric, sites }
    }

    /// Sites whose cables lead to the same switches. A pod sends at the rate of its leaf switches' uplinks.
    fn pods(&self, switches_reduce: bool) -> Partition {
        let mut pods: BTreeMap<Vec<DeviceId>, Vec<&Cabled>> = BTreeMap::new();
        let mut below: BTreeMap<DeviceId, u64> = BTreeMap::new();
        for site in &self.sites {
            pods.entry(site.cables.iter().map(|(switch, _)| *switch).collect()).or_default().push(site);
            for (switch, rate) in &site.cables {
                *below.entry(*switch).or_default() += rate;
            }
        }
        let mut part_of = vec![0; self.fabric.gpus().len()];
        let mut class_of = Vec::new();
        let mut classes: Vec<Class> = Vec::new();
        for (leaves, sites) in &pods {
            let mut own: BTreeMap<DeviceId, u64> = BTreeMap::new();
            for (switch, rate) in sites.iter().flat_map(|site| &site.cables) {
                *own.entry(*switch).or_default() += rate;
            }
            // A leaf shared with other pods forwards data to them without uplinks.
            let passes = |(leaf, down): (&DeviceId, &u64)| match below[leaf] == *down {
                true => (*down).min(uplinks(self.fabric, *leaf)),
                false => *down,
            };
            let up: u64 = own.iter().map(passes).sum();
            let sum =
                |of: fn(&Cabled) -> u64| sites.iter().fold(0_u64, |sum, site| sum.saturating_add(of(site)));
            let ranks: u64 = sum(|site| site.ranks.len() as u64);
            let (out, into) = (up.min(sum(|site| site.out)), up.min(sum(|site| site.into)));
            let like = |class: &Class| (class.ranks, class.out, class.into) == (ranks, out, into);
            let number = classes.iter().position(like).unwrap_or_else(|| {
                let first = leaves
                    .first()
                    .map_or_else(|| "no switch".to_owned(), |leaf| self.fabric.device_name(*leaf));
                let name = format!("the {ranks} GPUs below {first} and its neighbours");
                classes.push(Class { name, parts: 0, ranks, out, into });
                classes.len() - 1
            });
            classes[number].parts += 1;
            for rank in sites.iter().flat_map(|site| &site.ranks) {
                part_of[*rank as usize] = class_of.len() as u32;
            }
            class_of.push(number as u32);
        }
        Partition { what: "pods", classes, part_of, class_of, switches_reduce }
    }

    /// The first half of the sites, along the network, and the second.
    fn halves(&self) -> Partition {
        let half: usize = self.fabric.gpus().len() / 2;
        let mut part_of = vec![0; self.fabric.gpus().len()];
        let mut counted = 0;
        let mut is_second = Vec::with_capacity(self.sites.len());
        for site in &self.sites {
            // Each half has at least one site.
            let second = counted > 0 && counted + site.ranks.len() > half;
            is_second.push(second);
            counted += site.ranks.len();
            site.ranks.iter().for_each(|rank| part_of[*rank as usize] = u32::from(second));
        }
        let second: u64 = part_of.iter().map(|part| u64::from(*part)).sum();
        let ranks = [part_of.len() as u64 - second, second];
        let [there, back] = [false, true].map(|reversed| self.flow(&is_second, reversed));
        let class =
            |name: &str, ranks, out, into| Class { name: name.to_owned(), parts: 1, ranks, out, into };
        let classes = vec![
            class("the first half of the hosts", ranks[0], there, back),
            class("the second half of the hosts", ranks[1], back, there),
        ];
        Partition { what: "halves", classes, part_of, class_of: vec![0, 1], switches_reduce: false }
    }

    /// The maximum flow from the first half to the second; `reversed`, the other way.
    fn flow(&self, is_second: &[bool], reversed: bool) -> u64 {
        // Sites on the same switches and the same side are one node.
        let mut groups: BTreeMap<(bool, Vec<DeviceId>), Group> = BTreeMap::new();
        for (site, second) in self.sites.iter().zip(is_second) {
            let key = (*second, site.cables.iter().map(|(switch, _)| *switch).collect());
            let group = groups.entry(key).or_default();
            group.rates.resize(site.cables.len(), 0);
            group.rates.iter_mut().zip(&site.cables).for_each(|(sum, (_, rate))| *sum += rate);
            group.out = group.out.saturating_add(site.out);
            group.into = group.into.saturating_add(site.into);
        }
        let is_switch = |kind: &DeviceKind| matches!(kind, DeviceKind::NetSwitch(_));
        let switches: Vec<DeviceId> = self.fabric.devices_where(is_switch).collect();
        let number = |id: DeviceId| switches.binary_search(&id).ok();
        let (source, sink) = (switches.len(), switches.len() + 1);
        let mut graph = FlowGraph::new(switches.len() + 2 + groups.len());
        let edge = |graph: &mut FlowGraph, from: usize, to: usize, rate: u64| {
            if reversed { graph.edge(to, from, rate) } else { graph.edge(from, to, rate) }
        };
        for (number_of_group, ((second, leaves), group)) in groups.iter().enumerate() {
            let node = switches.len() + 2 + number_of_group;
            match second {
                false => edge(&mut graph, source, node, if reversed { group.into } else { group.out }),
                true => edge(&mut graph, node, sink, if reversed { group.out } else { group.into }),
            };
            for (leaf, rate) in leaves.iter().zip(&group.rates) {
                // A cable from NIC to NIC has no switch; it leads straight to the other half.
                let leaf = number(*leaf).unwrap_or(if *second { source } else { sink });
                graph.edge(node, leaf, *rate);
                graph.edge(leaf, node, *rate);
            }
        }
        for (from, switch) in switches.iter().enumerate() {
            for link in self.fabric.links_from(*switch) {
                if let Some(to) = number(link.target) {
                    graph.edge(from, to, self.fabric.limit(link).bytes_per_second());
                }
            }
        }
        if reversed { graph.max_flow(sink, source) } else { graph.max_flow(source, sink) }
    }
}

/// The other ends of a site's cables, each once, and their rates.
fn cables(fabric: &Fabric, members: &[DeviceId]) -> Vec<(DeviceId, u64)> {
    let mut found: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for link in members.iter().flat_map(|member| fabric.links_from(*member)) {
        if matches!(fabric.spec(link).kind, LinkKind::Network { .. }) {
            *found.entry(link.target).or_default() += fabric.limit(link).bytes_per_second();
        }
    }
    found.into_iter().collect()
}

/// The rate of a switch's links to other switches.
fn uplinks(fabric: &Fabric, switch: DeviceId) -> u64 {
    let to_switch =
        |link: &&weftlink_fabric::Link| matches!(fabric.device(link.target).kind, DeviceKind::NetSwitch(_));
    let links = fabric.links_from(switch).iter().filter(to_switch);
    links.map(|link| fabric.limit(link).bytes_per_second()).sum()
}
