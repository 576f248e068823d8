//! Rings through all ranks: around inside each island, and from island to island over the network.
//!
//! **Inside** an island with direct links, the rings that a [search](super::cycles) found; on a switch, where every order
//! is as good as any other, one order; over PCIe, the order of a walk around the tree, which passes every link once
//! each way.
//!
//! **Between** islands, a ring enters every island once and leaves it once. Ring k enters at a GPU next to NIC k, and goes
//! around from there; the GPU before the one it entered at is where it leaves, for NIC k of the next island. GPUs with
//! links to that NIC's neighbour reach it through them, so every ring stays on its own rail. Where several
//! GPUs are next to a NIC, a ring that can both enter and leave there does, and rings take turns, if need be the other way
//! around: no GPU's slot gets twice the data.
//!
//! Each shape of island is worked out once.

use rustc_hash::FxHashMap;
use weftlink_fabric::{DeviceKind, Fabric};

use super::sites::{Island, Joined, Nic, Placed, Sites};

/// Rings where any order does. They are the same ring; what several of them add is thread blocks: one moves some
/// 25 GB/s through a GPU's NVLinks, so 16 fill a port of 400 GB/s. NCCL comes to between 12 and 24 on the same machines.
pub const RINGS_ON_A_SWITCH: usize = 16;
/// Rings over PCIe: one thread block fills a slot, a second hides its pauses.
pub const RINGS_OVER_PCIE: usize = 2;
/// Rings across islands. A rack of 72 GPUs has as many NICs, and a ring for each.
pub const RINGS_MAX: usize = 128;

/// All rings, each with all ranks.
pub(super) fn rings(sites: &Sites<'_>, islands: &[Placed<'_>]) -> Vec<Vec<u32>> {
    let mut inside: FxHashMap<(usize, usize), Inside<'_>> = FxHashMap::default();
    for placed in islands {
        inside.entry(placed.shape).or_insert_with(|| Inside::of(placed.island));
    }
    let [only] = islands else {
        let count = inside.values().map(Inside::rings_to_leave_by).max().unwrap_or(0).min(RINGS_MAX);
        let ways: FxHashMap<_, _> =
            inside.iter().map(|(shape, inside)| (*shape, inside.through(count))).collect();
        let order = along_the_network(sites, islands);
        let ring = |number: usize| {
            let through = |placed: &&Placed<'_>| {
                let way: &[u32] = &ways[&placed.shape][number];
                way.iter().map(|position| placed.ranks[*position as usize]).collect::<Vec<_>>()
            };
            order.iter().flat_map(through).collect()
        };
        return (0..count).map(ring).collect();
    };
    let inside = &inside[&only.shape];
    let ring = |number: usize| {
        let order = &inside.orders[number % inside.orders.len()];
        order.iter().map(|position| only.ranks[*position as usize]).collect()
    };
    (0..inside.rings).map(ring).collect()
}

/// The rings inside one shape of island.
struct Inside<'s> {
    /// Orders around, as positions.
    orders: Vec<Vec<u32>>,
    /// How many rings carry the same share.
    rings: usize,
    /// Whether a ring may as well go the other way around.
    reversible: bool,
    nics: &'s [Nic],
}

impl<'s> Inside<'s> {
    fn of(island: &'s Island) -> Self {
        let nics = island.nics.as_slice();
        let found = match &island.kind {
            Joined::Links(mesh) => mesh.rings().items,
            Joined::Switch | Joined::Host => Vec::new(),
        };
        if !found.is_empty() {
            return Self { rings: found.len(), orders: found, reversible: false, nics };
        }
        let (order, rings) = match island.kind {
            Joined::Switch => ((0..island.gpus.len() as u32).collect(), RINGS_ON_A_SWITCH),
            // Links that do not lead around are of no use to a ring.
            Joined::Links(_) | Joined::Host => (island.by_locality.clone(), RINGS_OVER_PCIE),
        };
        Self { orders: vec![order], rings, reversible: true, nics }
    }

    /// Rings that use every order and every NIC equally, or as nearly as there may be rings.
    fn rings_to_leave_by(&self) -> usize {
        let nics = self.nics.len().max(1);
        if self.reversible {
            return self.rings.next_multiple_of(nics);
        }
        // A single ring would leave every island by the same GPU.
        let least = self.rings.max(nics).max(RINGS_OVER_PCIE);
        let evenly = |count: &usize| count.is_multiple_of(self.rings) && count.is_multiple_of(nics);
        (least..=RINGS_MAX).find(evenly).unwrap_or(least)
    }

    /// For each of `count` rings, the positions from where it enters to where it leaves.
    fn through(&self, count: usize) -> Vec<Vec<u32>> {
        let ranks = self.orders[0].len();
        let (mut entered, mut left) = (vec![0_u32; ranks], vec![0_u32; ranks]);
        let mut way = |ring: usize| {
            let order = &self.orders[ring % self.orders.len()];
            let nic = (!self.nics.is_empty()).then(|| &self.nics[ring % self.nics.len()]);
            let far = |position: u32| u32::from(nic.is_some_and(|nic| !nic.near.contains(&position)));
            let ways = if self.reversible && ranks > 2 { 2 } else { 1 };
            let choices = (0..ways).flat_map(|way| (0..ranks).map(move |start| (way == 1, start)));
            let cost = |&(reversed, start): &(bool, usize)| {
                let (first, last) = ends(order, reversed, start);
                let used = entered[first as usize] + left[last as usize];
                (2 * far(first) + far(last), used, reversed, start)
            };
            let (reversed, start) = choices.min_by_key(cost).unwrap_or((false, 0));
            let (first, last) = ends(order, reversed, start);
            entered[first as usize] += 1;
            left[last as usize] += 1;
            let step =
                |step: usize| order[if reversed { start + ranks - step } else { start + step } % ranks];
            (0..ranks).map(step).collect()
        };
        (0..count).map(&mut way).collect()
    }
}

/// Where a way around begins and where it ends.
fn ends(order: &[u32], reversed: bool, start: usize) -> (u32, u32) {
    let ranks = order.len();
    let last = if reversed { start + 1 } else { start + ranks - 1 };
    (order[start], order[last % ranks])
}

/// The islands in the order that rings pass them: those of a site together, sites on the same leaf switch together.
fn along_the_network<'p, 's>(sites: &Sites<'_>, islands: &'p [Placed<'s>]) -> Vec<&'p Placed<'s>> {
    let fabric = sites.paths.fabric();
    let mut order: Vec<&Placed<'_>> = islands.iter().collect();
    order.sort_by_cached_key(|placed| {
        (first_switch(fabric, sites, placed.site), placed.site, placed.ranks[0])
    });
    order
}

fn first_switch(fabric: &Fabric, sites: &Sites<'_>, site: usize) -> Option<u32> {
    let members = &sites.paths.islands().all()[site].members;
    let nics = members.iter().filter(|id| matches!(fabric.device(**id).kind, DeviceKind::Nic(_)));
    let mut cables = nics.flat_map(|nic| fabric.links_from(*nic));
    let switch = cables.find(|link| matches!(fabric.device(link.target).kind, DeviceKind::NetSwitch(_)));
    switch.map(|link| link.target.0)
}
