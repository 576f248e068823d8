//! Who gets how much of a link: max-min fair shares, kept up to date as transfers come and go.
//!
//! Each resource has a level: what a transfer gets of it if nothing else holds that transfer back. A transfer's rate is the
//! lowest level it meets, or its own cap. When a transfer comes or goes, the levels of its resources are found anew; where one
//! moves, so may those that its transfers pass elsewhere, and so on until nothing moves. What nobody feels is not touched,
//! so that a change costs what it changes.

use std::collections::VecDeque;

/// A resource that transfers share.
pub type ResourceId = u32;
/// A transfer under way.
pub type FlowId = u32;

/// Levels that differ by less are the same: otherwise rounding could pass around for ever, and ripples that nobody would notice through
/// all of a large fabric.
const SAME: f64 = 1e-7;
/// How often a resource may be looked at in one settlement. Levels settle in as many rounds as there are different ones; should they
/// not, shares are nearly fair, and the simulation goes on.
const ROUNDS_MAX: u32 = 64;

/// All resources and the transfers on them.
#[derive(Default)]
pub struct Shares {
    resources: Vec<Resource>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    /// Resources whose level may be wrong.
    doubtful: VecDeque<ResourceId>,
    /// Transfers whose rate may have changed since the last settlement.
    touched: Vec<FlowId>,
    /// Settlements so far.
    settlement: u64,
    /// What else holds back the transfers of the resource that is looked at, and how often they pass it; kept for its memory.
    bounds: Vec<(f64, f64)>,
}

struct Resource {
    /// Bytes per second.
    capacity: f64,
    level: f64,
    /// The transfers on it, and how many times over.
    flows: Vec<(FlowId, f64)>,
    is_doubtful: bool,
    /// How often it was looked at in a settlement, and in which.
    rounds: u32,
    settlement: u64,
}

/// A transfer. What it passes may be many resources (a switch's multicast passes all ports), so the lowest level is kept, and the lowest
/// of the others: what holds it back elsewhere is known without a look at each.
struct Flow {
    /// What it passes, each once, and how many times over.
    uses: Vec<(ResourceId, f64)>,
    /// Its own limit in bytes per second.
    cap: f64,
    rate: f64,
    is_touched: bool,
    /// The lowest level or its own limit, and which resource has it; nobody's if it is the limit.
    low: f64,
    low_at: ResourceId,
    /// The lowest of all the others and the limit, and how many of them have exactly that.
    next: f64,
    next_count: u32,
}

/// No resource: a transfer's own limit.
const OWN: ResourceId = ResourceId::MAX;

/// What a new level means to a transfer.
#[derive(PartialEq)]
enum Felt {
    /// Another one holds it back.
    No,
    /// The resource that holds it back would, without itself, be held back at another level.
    Next,
    /// It is held back at another level.
    Low,
}

impl Flow {
    /// What holds it back apart from a resource.
    fn bound_without(&self, id: ResourceId) -> f64 {
        if self.low_at == id { self.next } else { self.low }
    }

    /// Looks at everything it passes.
    fn look(&mut self, resources: &[Resource]) {
        (self.low, self.low_at, self.next, self.next_count) = (self.cap, OWN, f64::INFINITY, 0);
        for &(id, _) in &self.uses {
            let level = resources[id as usize].level;
            // Of several that are the same the last counts as the lowest: levels rise one after the other, and as long as others stay
            // low there is nothing to look for.
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

    /// A resource that it passes has another level, which the resource has already.
    fn feel(&mut self, id: ResourceId, before: f64, level: f64, resources: &[Resource]) -> Felt {
        if self.low_at == id {
            if level <= self.next {
                self.low = level;
                return Felt::Low;
            }
        } else if level < self.low {
            (self.next, self.next_count) = (self.low, 1);
            (self.low, self.low_at) = (level, id);
            return Felt::Low;
        } else if level < self.next {
            (self.next, self.next_count) = (level, 1);
            return Felt::Next;
        } else if before > self.next || level == self.next {
            self.next_count += u32::from(level == self.next && before != level);
            return Felt::No;
        } else if self.next_count > 1 {
            self.next_count -= 1;
            return Felt::No;
        }
        let (low, low_at, next) = (self.low, self.low_at, self.next);
        self.look(resources);
        match () {
            () if (self.low, self.low_at) != (low, low_at) => Felt::Low,
            () if self.next != next => Felt::Next,
            () => Felt::No,
        }
    }
}

impl Shares {
    /// A resource of so many bytes per second, with nothing on it.
    pub fn resource(&mut self, capacity: f64) -> ResourceId {
        self.resources.push(Resource {
            capacity,
            level: f64::INFINITY,
            flows: Vec::new(),
            is_doubtful: false,
            rounds: 0,
            settlement: 0,
        });
        self.resources.len() as ResourceId - 1
    }

    /// Changes what a resource carries, from the next settlement on. Of nothing, its transfers stand still.
    pub fn set_capacity(&mut self, id: ResourceId, capacity: f64) {
        self.resources[id as usize].capacity = capacity;
        self.doubt(id);
    }

    /// Puts a transfer on its way, which names each resource once. Its rate is known after the next settlement.
    pub fn begin(&mut self, uses: &[(ResourceId, f64)], cap: f64) -> FlowId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow {
                uses: Vec::new(),
                cap,
                rate: 0.0,
                is_touched: false,
                low: cap,
                low_at: OWN,
                next: f64::INFINITY,
                next_count: 0,
            });
            self.flows.len() as FlowId - 1
        });
        // Its memory is used again.
        let flow = &mut self.flows[id as usize];
        flow.uses.extend_from_slice(uses);
        (flow.cap, flow.rate) = (cap, 0.0);
        flow.look(&self.resources);
        for &(resource, weight) in uses {
            self.resources[resource as usize].flows.push((id, weight));
            self.doubt(resource);
        }
        self.touch(id);
        id
    }

    /// Takes a transfer off its resources.
    pub fn end(&mut self, id: FlowId) {
        for at in 0..self.flows[id as usize].uses.len() {
            let (resource, _) = self.flows[id as usize].uses[at];
            let flows = &mut self.resources[resource as usize].flows;
            if let Some(position) = flows.iter().position(|(other, _)| *other == id) {
                flows.swap_remove(position);
            }
            self.doubt(resource);
        }
        self.flows[id as usize].uses.clear();
        self.free.push(id);
    }

    /// A transfer's share in bytes per second, as of the last settlement.
    pub fn rate(&self, id: FlowId) -> f64 {
        self.flows[id as usize].rate
    }

    /// Finds all shares anew; tells the transfers whose rate is another one.
    pub fn settle(&mut self, mut changed: impl FnMut(FlowId, f64)) {
        self.settlement += 1;
        while let Some(id) = self.doubtful.pop_front() {
            let level = self.level(id);
            let resource = &mut self.resources[id as usize];
            resource.is_doubtful = false;
            if resource.settlement != self.settlement {
                (resource.settlement, resource.rounds) = (self.settlement, 0);
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
                let felt = flow.feel(id, before, level, &self.resources);
                let low_at = flow.low_at;
                if felt == Felt::Low {
                    self.touch(number);
                }
                match felt {
                    Felt::Low if go_on => self.doubt_others(number, id),
                    Felt::Next if go_on && low_at != id && low_at != OWN => self.doubt(low_at),
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

    /// What a transfer gets of a resource if nothing else holds it back: what those leave that are held back elsewhere, in
    /// equal parts.
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
        // Mostly nothing holds any of them back.
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

    /// Doubts all that a transfer passes but one.
    fn doubt_others(&mut self, flow: FlowId, id: ResourceId) {
        for at in 0..self.flows[flow as usize].uses.len() {
            let (other, _) = self.flows[flow as usize].uses[at];
            if other != id {
                self.doubt(other);
            }
        }
    }

    fn doubt(&mut self, id: ResourceId) {
        let resource = &mut self.resources[id as usize];
        if !resource.is_doubtful {
            resource.is_doubtful = true;
            self.doubtful.push_back(id);
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

    /// A transfer, what it passes, and its own limit.
    type Known = (FlowId, Vec<(ResourceId, f64)>, f64);

    fn rates(shares: &mut Shares, flows: &[FlowId]) -> Vec<f64> {
        shares.settle(|_, _| {});
        flows.iter().map(|flow| shares.rate(*flow)).collect()
    }

    #[test]
    fn what_one_cannot_use_the_others_get() {
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
    fn weights_count_how_often_a_resource_is_passed() {
        let mut shares = Shares::default();
        let link = shares.resource(12.0);
        let twice = shares.begin(&[(link, 2.0)], f64::INFINITY);
        let once = shares.begin(&[(link, 1.0)], f64::INFINITY);
        assert_eq!(rates(&mut shares, &[twice, once]), [4.0, 4.0]);
    }

    /// Against progressive filling, the textbook's way, on random networks as transfers come and go.
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
                shares.settle(|_, _| {});
                for ((flow, ..), fair) in there.iter().zip(filled(&capacities, &there)) {
                    assert!(
                        (shares.rate(*flow) - fair).abs() < 1e-5 * fair,
                        "{} for {fair}",
                        shares.rate(*flow)
                    );
                }
            }
        }
    }

    /// Raises all rates together, and leaves those behind that meet their cap or a full resource.
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
