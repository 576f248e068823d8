//! Paths between islands: from NIC to NIC through network switches.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::DeviceId;

use super::island::is_network;
use super::width::Width;

/// The network switches and the cables between them.
#[derive(Debug)]
pub(super) struct SwitchGraph {
    numbers: FxHashMap<DeviceId, u32>,
    switches: Vec<DeviceId>,
    edges: Vec<Vec<(u32, Width)>>,
    /// For each switch, the first one with identical cabling.
    twins: Vec<u32>,
    /// For each such first switch, the second one.
    second_twins: Vec<u32>,
    /// For each switch, computed on first use: the path to every switch.
    reach: Vec<OnceCell<Vec<Option<Between>>>>,
}

/// The path between two switches.
#[derive(Debug, Clone)]
pub(super) struct Between {
    pub(super) width: Width,
    /// The switches on the path, including both ends.
    pub(super) switches: Vec<u32>,
}

/// The attachment of a NIC to a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plug {
    pub(super) switch: u32,
    pub(super) width: Width,
    /// Cables to it: none where the NIC itself counts as the switch.
    pub(super) cables: u32,
}

impl SwitchGraph {
    pub(super) fn of(fabric: &Fabric) -> Self {
        // NICs cabled back to back count as switches with one cable.
        let is_nic = |id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::Nic(_));
        let back_to_back = |id: DeviceId| {
            let links = fabric.links_from(id).iter();
            is_nic(id)
                && links.into_iter().any(|link| is_network(fabric.spec(link).kind) && is_nic(link.target))
        };
        let is_switch =
            |id: &DeviceId| matches!(fabric.device(*id).kind, DeviceKind::NetSwitch(_)) || back_to_back(*id);
        let switches: Vec<DeviceId> = fabric.device_ids().filter(is_switch).collect();
        let numbers: FxHashMap<DeviceId, u32> =
            switches.iter().enumerate().map(|(index, id)| (*id, index as u32)).collect();
        let edges_of = |id: &DeviceId| {
            let links = fabric.links_from(*id).iter();
            links
                .filter(|link| is_network(fabric.spec(link).kind))
                .filter_map(|link| {
                    Some((*numbers.get(&link.target)?, Width::of(fabric.spec(link), link.count)))
                })
                .collect()
        };
        let edges = switches.iter().map(edges_of).collect();
        let edges: Vec<Vec<(u32, Width)>> = edges;
        let mut first: FxHashMap<&[(u32, Width)], u32> = FxHashMap::default();
        let mut second_twins: Vec<u32> = (0..switches.len() as u32).collect();
        let mut twins = Vec::with_capacity(switches.len());
        for (switch, edges) in (0..).zip(&edges) {
            let twin = *first.entry(edges).or_insert(switch);
            if twin != switch && second_twins[twin as usize] == twin {
                second_twins[twin as usize] = switch;
            }
            twins.push(twin);
        }
        let reach = switches.iter().map(|_| OnceCell::new()).collect();
        Self { numbers, switches, edges, twins, second_twins, reach }
    }

    pub(super) fn number(&self, device: DeviceId) -> Option<u32> {
        self.numbers.get(&device).copied()
    }

    pub(super) fn device(&self, switch: u32) -> DeviceId {
        self.switches[switch as usize]
    }

    /// The switches a NIC is attached to.
    pub(super) fn plugs<'a>(&'a self, fabric: &'a Fabric, nic: DeviceId) -> impl Iterator<Item = Plug> + 'a {
        let itself = self.number(nic).map(|switch| Plug { switch, width: Width::UNLIMITED, cables: 0 });
        let cabled = fabric.links_from(nic).iter().filter(|link| is_network(fabric.spec(link).kind));
        let cabled = cabled.filter_map(|link| {
            let switch = self.number(link.target)?;
            Some(Plug { switch, width: Width::of(fabric.spec(link), link.count), cables: 1 })
        });
        itself.into_iter().chain(cabled.filter(move |_| itself.is_none()))
    }

    /// For each switch, the first one with the same cables to the same switches.
    pub(super) fn twins(&self) -> &[u32] {
        &self.twins
    }

    /// The widest path between two switches; ties go to the shortest. Twins are interchangeable, so the path is computed
    /// for the first of each kind only: width and length are exact, and [`Self::route`] substitutes the actual ends.
    pub(super) fn between(&self, a: u32, b: u32) -> Option<&Between> {
        let (first, mut last) = (self.twins[a as usize], self.twins[b as usize]);
        if first == last && a != b {
            last = self.second_twins[first as usize];
        }
        self.reach[first as usize].get_or_init(|| self.reach_from(first))[last as usize].as_ref()
    }

    /// The switches on that path, including both ends.
    pub(super) fn route(&self, a: u32, b: u32) -> Vec<u32> {
        let mut switches = self.between(a, b).map_or_else(Vec::new, |between| between.switches.clone());
        match switches.as_mut_slice() {
            [start, .., end] => (*start, *end) = (a, b),
            [only] => *only = a,
            [] => {}
        }
        switches
    }

    fn reach_from(&self, source: u32) -> Vec<Option<Between>> {
        let mut widest: Vec<Option<u64>> = vec![None; self.switches.len()];
        widest[source as usize] = Some(u64::MAX);
        let mut heap = BinaryHeap::from([(u64::MAX, Reverse(source))]);
        while let Some((width, Reverse(at))) = heap.pop() {
            if widest[at as usize] != Some(width) {
                continue;
            }
            for (target, edge) in &self.edges[at as usize] {
                let through = width.min(edge.effective.bytes_per_second());
                if widest[*target as usize].is_none_or(|known| through > known) {
                    widest[*target as usize] = Some(through);
                    heap.push((through, Reverse(*target)));
                }
            }
        }
        let mut reached = vec![None; self.switches.len()];
        let mut by_width: Vec<(u64, u32)> =
            (0..).zip(&widest).filter_map(|(switch, width)| Some(((*width)?, switch))).collect();
        by_width.sort_unstable();
        for same_width in by_width.chunk_by(|a, b| a.0 == b.0) {
            let came_from = self.shortest(source, same_width[0].0);
            for &(_, switch) in same_width {
                reached[switch as usize] = Some(self.walk_back(source, switch, &came_from));
            }
        }
        reached
    }

    fn shortest(&self, source: u32, width: u64) -> Vec<u32> {
        let mut came_from = vec![u32::MAX; self.switches.len()];
        came_from[source as usize] = source;
        let mut queue = VecDeque::from([source]);
        while let Some(at) = queue.pop_front() {
            for (target, edge) in &self.edges[at as usize] {
                if edge.effective.bytes_per_second() >= width && came_from[*target as usize] == u32::MAX {
                    came_from[*target as usize] = at;
                    queue.push_back(*target);
                }
            }
        }
        came_from
    }

    fn walk_back(&self, source: u32, target: u32, came_from: &[u32]) -> Between {
        let mut switches = vec![target];
        let mut width = Width::UNLIMITED;
        let mut at = target;
        while at != source {
            let before = came_from[at as usize];
            let edges = self.edges[before as usize].iter().filter(|(other, _)| *other == at);
            let edge = edges.map(|(_, width)| *width).max_by_key(|width| width.effective);
            width = width.then(edge.unwrap_or(Width::NONE));
            switches.push(before);
            at = before;
        }
        switches.reverse();
        Between { width, switches }
    }
}
