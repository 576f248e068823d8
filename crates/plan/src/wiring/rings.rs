//! Rings through all ranks: around inside each island, and from island to island over the network.
//!
//! **Inside** an island: with direct links, the rings that a [search](super::cycles) finds; on a switch, where all orders are
//! equal, one order; over PCIe, the order of a walk around the tree, which uses every link once each way.
//!
//! **Between** islands: a ring enters and leaves every island once. Ring k enters at a GPU next to NIC k and goes around from
//! there; it leaves at the GPU before that one, for NIC k of the next island. GPUs with links to that NIC's neighbour reach
//! it through them, so every ring stays on its own rail. If several GPUs are next to a NIC, a ring enters and leaves at two
//! of them where possible, and rings alternate between them, reversed if necessary, so that no GPU's slot gets twice the
//! data.
//!
//! Each shape of island is computed once.

use rustc_hash::FxHashMap;
use weftlink_fabric::{DeviceKind, Fabric};

use super::sites::{Interconnect, Island, Nic, Placed, Sites};

/// Rings on a switch. They all have the same order; several of them use more thread blocks: one moves about 25 GB/s through a
/// GPU's NVLinks, so 16 fill a port of 400 GB/s. NCCL uses between 12 and 24 on the same machines.
pub const RINGS_ON_A_SWITCH: usize = 16;
/// Rings over PCIe: one thread block fills a slot, a second hides its pauses.
pub const RINGS_OVER_PCIE: usize = 2;
/// The maximum number of rings across islands. A rack of 72 GPUs has 72 NICs, and a ring for each.
pub const RINGS_MAX: usize = 128;

/// All rings, each with all ranks.
pub(super) fn rings(sites: &Sites<'_>, islands: &[Placed<'_>]) -> Vec<Vec<u32>> {
    let mut inside: FxHashMap<(usize, usize), Inside<'_>> = FxHashMap::default();
    for placed in islands {
        inside.entry(placed.shape).or_insert_with(|| Inside::of(placed.island));
    }
    let [only] = islands else {
        let count = inside.values().map(Inside::rings_across).max().unwrap_or(0).min(RINGS_MAX);
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
    /// Cyclic orders, as positions.
    orders: Vec<Vec<u32>>,
    /// The number of rings.
    rings: usize,
    /// Whether a ring may be reversed.
    reversible: bool,
    nics: &'s [Nic],
}

impl<'s> Inside<'s> {
    fn of(island: &'s Island) -> Self {
        let nics = island.nics.as_slice();
        let found = match &island.kind {
            Interconnect::Links(mesh) => mesh.rings().items,
            Interconnect::Switch | Interconnect::Host => Vec::new(),
        };
        if !found.is_empty() {
            return Self { rings: found.len(), orders: found, reversible: false, nics };
        }
        let (order, rings) = match island.kind {
            Interconnect::Switch => ((0..island.gpus.len() as u32).collect(), RINGS_ON_A_SWITCH),
            // A ring cannot use links that form no cycle.
            Interconnect::Links(_) | Interconnect::Host => (island.by_locality.clone(), RINGS_OVER_PCIE),
        };
        Self { orders: vec![order], rings, reversible: true, nics }
    }

    /// The number of rings that use every order and every NIC equally, as far as the limit allows.
    fn rings_across(&self) -> usize {
        let nics = self.nics.len().max(1);
        if self.reversible {
            return self.rings.next_multiple_of(nics);
        }
        // A single ring would leave every island by the same GPU.
        let least = self.rings.max(nics).max(RINGS_OVER_PCIE);
        let evenly = |count: &usize| count.is_multiple_of(self.rings) && count.is_multiple_of(nics);
        (least..=RINGS_MAX).find(evenly).unwrap_or(least)
    }

    /// For each of `count` rings, the positions from its entry to its exit.
    fn through(&self, count: usize) -> Vec<Vec<u32>> {
        let ranks = self.orders[0].len();
        let (mut entered, mut left) = (vec![0_u32; ranks], vec![0_u32; ranks]);
        let mut positions = |ring: usize| {
            let order = &self.orders[ring % self.orders.len()];
            let nic = (!self.nics.is_empty()).then(|| &self.nics[ring % self.nics.len()]);
            let far = |position: u32| u32::from(nic.is_some_and(|nic| !nic.near.contains(&position)));
            let directions = if self.reversible && ranks > 2 { 2 } else { 1 };
            let choices = (0..directions).flat_map(|way| (0..ranks).map(move |start| (way == 1, start)));
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
        (0..count).map(&mut positions).collect()
    }
}

/// The first and the last position of an order around.
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
