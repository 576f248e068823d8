//! Max-min fair shares of links, updated incrementally as transfers (flows) begin and end.
//!
//! Each resource has a level: the rate of a flow that nothing else limits. A flow's rate is the lowest level among its resources, or its
//! own cap. When a flow begins or ends, the levels of its resources are recomputed; a changed level may change those of the other resources
//! of its flows, and so on until nothing changes. Unaffected resources are not visited, so an update costs as much as it changes.

use std::collections::VecDeque;

/// A resource that transfers share.
pub type ResourceId = u32;
/// An active transfer.
pub type FlowId = u32;

/// Relative difference at which levels count as equal: otherwise rounding errors could circulate forever, and negligible changes would
/// spread through all of a large fabric.
const SAME: f64 = 1e-7;
/// Maximum number of visits to a resource in one update. Levels converge in as many rounds as there are different ones; should they not,
/// the shares are nearly fair, and the simulation continues.
const ROUNDS_MAX: u32 = 64;

/// All resources and the flows on them.
#[derive(Default)]
pub struct Shares {
    resources: Vec<Resource>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    /// Resources whose level may be out of date.
    dirty: VecDeque<ResourceId>,
    /// Flows whose rate may have changed since the last update.
    touched: Vec<FlowId>,
    /// Number of updates so far.
    updates: u64,
    /// Other bounds and weights of the flows of the visited resource; kept to reuse its memory.
    bounds: Vec<(f64, f64)>,
}

struct Resource {
    /// Bytes per second.
    capacity: f64,
    level: f64,
    /// The flows on it, with their weights.
    flows: Vec<(FlowId, f64)>,
    is_dirty: bool,
    /// Number of visits in the update `last_update`.
    rounds: u32,
    last_update: u64,
}

/// A flow. It may use many resources (a multicast uses all ports of a switch), so it keeps the lowest level and the next lowest: its bound
/// elsewhere is known without visiting each resource.
struct Flow {
    /// Its resources, each once, with weights.
    uses: Vec<(ResourceId, f64)>,
    /// Its own limit in bytes per second.
    cap: f64,
    rate: f64,
    is_touched: bool,
    /// The lowest level or its own cap, and the resource that has it: [`NO_RESOURCE`] for the cap.
    low: f64,
    low_at: ResourceId,
    /// The lowest of the other levels and the cap, and how many have exactly that value.
    next: f64,
    next_count: u32,
}

/// No resource: a flow's own cap.
const NO_RESOURCE: ResourceId = ResourceId::MAX;

/// The effect of a changed level on a flow.
#[derive(PartialEq)]
enum Effect {
    /// None: another resource limits it.
    None,
    /// Its next lowest level changed.
    NextLevel,
    /// Its lowest level changed.
    Level,
}

impl Flow {
    /// Its lowest bound besides a resource.
    fn bound_without(&self, id: ResourceId) -> f64 {
        if self.low_at == id { self.next } else { self.low }
    }

    /// Recomputes its bounds from all its resources.
    fn rescan(&mut self, resources: &[Resource]) {
        (self.low, self.low_at, self.next, self.next_count) = (self.cap, NO_RESOURCE, f64::INFINITY, 0);
        for &(id, _) in &self.uses {
            let level = resources[id as usize].level;
            // Among equal levels the last counts as the lowest: levels rise one after the other, and while others stay low no rescan is
            // needed.
            if level <= self.low {
                self.next_count =
                    if self.low == level && self.next == level { self.next_count + 1 } else { 1 };
                (self.next, self.low, self.low_at) = (self.low, level, id);
            } else if level < self.next {
                (self.next, self.next_count) = (level, 1);
            } else if level == self.next {
                self.next_count += 1;
            }
        }
    }

    /// Handles a changed level of one of its resources; the resource already has the new level.
    fn level_changed(&mut self, id: ResourceId, before: f64, level: f64, resources: &[Resource]) -> Effect {
        if self.low_at == id {
            if level <= self.next {
                self.low = level;
                return Effect::Level;
            }
        } else if level < self.low {
            (self.next, self.next_count) = (self.low, 1);
            (self.low, self.low_at) = (level, id);
            return Effect::Level;
        } else if level < self.next {
            (self.next, self.next_count) = (level, 1);
            return Effect::NextLevel;
        } else if before > self.next || level == self.next {
            self.next_count += u32::from(level == self.next && before != level);
            return Effect::None;
        } else if self.next_count > 1 {
            self.next_count -= 1;
            return Effect::None;
        }
        let (low, low_at, next) = (self.low, self.low_at, self.next);
        self.rescan(resources);
        match () {
            () if (self.low, self.low_at) != (low, low_at) => Effect::Level,
            () if self.next != next => Effect::NextLevel,
            () => Effect::None,
        }
    }
}

impl Shares {
    /// Adds a resource with a capacity in bytes per second.
    pub fn resource(&mut self, capacity: f64) -> ResourceId {
        self.resources.push(Resource {
            capacity,
            level: f64::INFINITY,
            flows: Vec::new(),
            is_dirty: false,
            rounds: 0,
            last_update: 0,
        });
        self.resources.len() as ResourceId - 1
    }

    /// Sets the capacity of a resource, effective from the next update. At 0 its flows stop.
    pub fn set_capacity(&mut self, id: ResourceId, capacity: f64) {
        self.resources[id as usize].capacity = capacity;
        self.mark_dirty(id);
    }

    /// Begins a flow, which must name each resource once. Its rate is known after the next update.
    pub fn begin(&mut self, uses: &[(ResourceId, f64)], cap: f64) -> FlowId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow {
                uses: Vec::new(),
                cap,
                rate: 0.0,
                is_touched: false,
                low: cap,
                low_at: NO_RESOURCE,
                next: f64::INFINITY,
                next_count: 0,
            });
            self.flows.len() as FlowId - 1
        });
        // Reuses the memory of an ended flow.
        let flow = &mut self.flows[id as usize];
        flow.uses.extend_from_slice(uses);
        (flow.cap, flow.rate) = (cap, 0.0);
        flow.rescan(&self.resources);
        for &(resource, weight) in uses {
            self.resources[resource as usize].flows.push((id, weight));
            self.mark_dirty(resource);
        }
        self.touch(id);
        id
    }

    /// Ends a flow.
    pub fn end(&mut self, id: FlowId) {
        for at in 0..self.flows[id as usize].uses.len() {
            let (resource, _) = self.flows[id as usize].uses[at];
            let flows = &mut self.resources[resource as usize].flows;
            if let Some(position) = flows.iter().position(|(other, _)| *other == id) {
                flows.swap_remove(position);
            }
            self.mark_dirty(resource);
        }
        self.flows[id as usize].uses.clear();
        self.free.push(id);
    }

    /// A flow's rate in bytes per second, as of the last update.
    pub fn rate(&self, id: FlowId) -> f64 {
        self.flows[id as usize].rate
    }

    /// Updates all shares; calls `changed` for each flow whose rate changed.
    pub fn update(&mut self, mut changed: impl FnMut(FlowId, f64)) {
        self.updates += 1;
        while let Some(id) = self.dirty.pop_front() {
            let level = self.level(id);
            let resource = &mut self.resources[id as usize];
            resource.is_dirty = false;
            if resource.last_update != self.updates {
                (resource.last_update, resource.rounds) = (self.updates, 0);
            }
            resource.rounds += 1;
            if same(level, resource.level) {
                continue;
            }
            let before = std::mem::replace(&mut resource.level, level);
            let go_on = resource.rounds < ROUNDS_MAX;
            for at in 0..self.resources[id as usize].flows.len() {
                let (number, _) = self.resources[id as usize].flows[at];
                let flow = &mut self.flows[number as usize];
                let effect = flow.level_changed(id, before, level, &self.resources);
                let low_at = flow.low_at;
                if effect == Effect::Level {
                    self.touch(number);
                }
                match effect {
                    Effect::Level if go_on => self.mark_others_dirty(number, id),
                    Effect::NextLevel if go_on && low_at != id && low_at != NO_RESOURCE => {
                        self.mark_dirty(low_at)
                    }
                    _ => {}
                }
            }
        }
        let mut touched = std::mem::take(&mut self.touched);
        for id in touched.drain(..) {
            let flow = &mut self.flows[id as usize];
            flow.is_touched = false;
            if !flow.uses.is_empty() && !same(flow.low, flow.rate) {
                flow.rate = flow.low;
                changed(id, flow.rate);
            }
        }
        self.touched = touched;
    }

    /// The level of a resource: the capacity that flows limited elsewhere leave, in equal parts.
    fn level(&mut self, id: ResourceId) -> f64 {
        let resource = &self.resources[id as usize];
        self.bounds.clear();
        let (mut weights, mut least) = (0.0, f64::INFINITY);
        for &(flow, weight) in &resource.flows {
            let bound = self.flows[flow as usize].bound_without(id);
            self.bounds.push((bound, weight));
            weights += weight;
            least = least.min(bound);
        }
        let mut left = resource.capacity;
        // Usually no flow is limited elsewhere.
        if least * weights >= left {
            return left / weights;
        }
        self.bounds.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for &(bound, weight) in &self.bounds {
            if bound * weights >= left {
                return left / weights;
            }
            left -= bound * weight;
            weights -= weight;
        }
        f64::INFINITY
    }

    /// Marks all resources of a flow but one as dirty.
    fn mark_others_dirty(&mut self, flow: FlowId, id: ResourceId) {
        for at in 0..self.flows[flow as usize].uses.len() {
            let (other, _) = self.flows[flow as usize].uses[at];
            if other != id {
                self.mark_dirty(other);
            }
        }
    }

    fn mark_dirty(&mut self, id: ResourceId) {
        let resource = &mut self.resources[id as usize];
        if !resource.is_dirty {
            resource.is_dirty = true;
            self.dirty.push_back(id);
        }
    }

    fn touch(&mut self, id: FlowId) {
        let flow = &mut self.flows[id as usize];
        if !flow.is_touched {
            flow.is_touched = true;
            self.touched.push(id);
        }
    }
}

fn same(a: f64, b: f64) -> bool {
    a == b || a.is_finite() && b.is_finite() && (a - b).abs() <= SAME * a.abs().max(b.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow, its resources, and its cap.
    type Known = (FlowId, Vec<(ResourceId, f64)>, f64);

    fn rates(shares: &mut Shares, flows: &[FlowId]) -> Vec<f64> {
        shares.update(|_, _| {});
        flows.iter().map(|flow| shares.rate(*flow)).collect()
    }

    #[test]
    fn capacity_that_one_flow_cannot_use_goes_to_others() {
        let mut shares = Shares::default();
        let (wide, narrow) = (shares.resource(100.0), shares.resource(10.0));
        let a = shares.begin(&[(wide, 1.0)], f64::INFINITY);
        let b = shares.begin(&[(wide, 1.0), (narrow, 1.0)], f64::INFINITY);
        assert_eq!(rates(&mut shares, &[a, b]), [90.0, 10.0]);
        let c = shares.begin(&[(wide, 1.0)], 20.0);
        assert_eq!(rates(&mut shares, &[a, b, c]), [70.0, 10.0, 20.0]);
        shares.end(a);
        assert_eq!(rates(&mut shares, &[b, c]), [10.0, 20.0]);
        let d = shares.begin(&[(narrow, 1.0)], f64::INFINITY);
        assert_eq!(rates(&mut shares, &[b, c, d]), [5.0, 20.0, 5.0]);
    }

    #[test]
    fn weights_multiply_the_use_of_a_resource() {
        let mut shares = Shares::default();
        let link = shares.resource(12.0);
        let twice = shares.begin(&[(link, 2.0)], f64::INFINITY);
        let once = shares.begin(&[(link, 1.0)], f64::INFINITY);
        assert_eq!(rates(&mut shares, &[twice, once]), [4.0, 4.0]);
    }

    /// Against progressive filling, the textbook algorithm, on random networks as flows begin and end.
    #[test]
    fn shares_are_max_min_fair() {
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let mut shares = Shares::default();
            let capacities: Vec<f64> = (0..8).map(|_| 1.0 + draw(20) as f64).collect();
            for capacity in &capacities {
                shares.resource(*capacity);
            }
            let mut there: Vec<Known> = Vec::new();
            for _ in 0..30 {
                if draw(3) == 0 && !there.is_empty() {
                    let (flow, ..) = there.swap_remove(draw(there.len() as u64) as usize);
                    shares.end(flow);
                } else {
                    let mut resources: Vec<u32> = (0..1 + draw(3)).map(|_| draw(8) as u32).collect();
                    resources.sort_unstable();
                    resources.dedup();
                    let uses: Vec<_> =
                        resources.into_iter().map(|resource| (resource, 1.0 + draw(2) as f64)).collect();
                    let cap = if draw(2) == 0 { f64::INFINITY } else { 1.0 + draw(10) as f64 };
                    there.push((shares.begin(&uses, cap), uses, cap));
                }
                shares.update(|_, _| {});
                for ((flow, ..), fair) in there.iter().zip(filled(&capacities, &there)) {
                    assert!(
                        (shares.rate(*flow) - fair).abs() < 1e-5 * fair,
                        "{}, fair is {fair}",
                        shares.rate(*flow)
                    );
                }
            }
        }
    }

    /// Progressive filling: raises all rates together, and freezes a flow at its cap or at a full resource.
    fn filled(capacities: &[f64], flows: &[Known]) -> Vec<f64> {
        let mut rates = vec![None; flows.len()];
        while rates.contains(&None) {
            let rise = |resource: usize| {
                let mut left = capacities[resource];
                let mut weights = 0.0;
                for ((_, uses, _), rate) in flows.iter().zip(&rates) {
                    for (_, weight) in uses.iter().filter(|(other, _)| *other as usize == resource) {
                        match rate {
                            Some(rate) => left -= rate * weight,
                            None => weights += weight,
                        }
                    }
                }
                if weights > 0.0 { left.max(0.0) / weights } else { f64::INFINITY }
            };
            let levels: Vec<f64> = (0..capacities.len()).map(rise).collect();
            let open = flows.iter().zip(&rates).filter(|(_, rate)| rate.is_none());
            let meets = |(_, uses, cap): &Known| {
                uses.iter().map(|(resource, _)| levels[*resource as usize]).fold(*cap, f64::min)
            };
            let lowest = open.map(|(flow, _)| meets(flow)).fold(f64::INFINITY, f64::min);
            for (flow, rate) in flows.iter().zip(&mut rates) {
                if rate.is_none() && meets(flow) <= lowest * (1.0 + 1e-12) {
                    *rate = Some(lowest);
                }
            }
        }
        rates.into_iter().flatten().collect()
    }
}
