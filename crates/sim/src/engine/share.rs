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

/// Levels that differ by less are the same: otherwise rounding could pass around for ever.
const SAME: f64 = 1e-9;
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
}

struct Resource {
    /// Bytes per second.
    capacity: f64,
    level: f64,
    flows: Vec<FlowId>,
    is_doubtful: bool,
    rounds: u32,
}

struct Flow {
    /// What it passes, and how many times over.
    uses: Vec<(ResourceId, f64)>,
    /// Its own limit in bytes per second.
    cap: f64,
    rate: f64,
    is_touched: bool,
}

impl Shares {
    /// A resource of so many bytes per second, with nothing on it.
    pub fn resource(&mut self, capacity: f64) -> ResourceId {
        let level = f64::INFINITY;
        self.resources.push(Resource { capacity, level, flows: Vec::new(), is_doubtful: false, rounds: 0 });
        self.resources.len() as ResourceId - 1
    }

    /// Changes what a resource carries, from the next settlement on. Of nothing, its transfers stand still.
    pub fn set_capacity(&mut self, id: ResourceId, capacity: f64) {
        self.resources[id as usize].capacity = capacity;
        self.doubt(id);
    }

    /// Puts a transfer on its way. Its rate is known after the next settlement.
    pub fn begin(&mut self, uses: &[(ResourceId, f64)], cap: f64) -> FlowId {
        let flow = Flow { uses: uses.to_vec(), cap, rate: 0.0, is_touched: false };
        let id = match self.free.pop() {
            Some(id) => {
                self.flows[id as usize] = flow;
                id
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as FlowId - 1
            }
        };
        for &(resource, _) in uses {
            self.resources[resource as usize].flows.push(id);
            self.doubt(resource);
        }
        self.touch(id);
        id
    }

    /// Takes a transfer off its resources.
    pub fn end(&mut self, id: FlowId) {
        let uses = std::mem::take(&mut self.flows[id as usize].uses);
        for (resource, _) in uses {
            let flows = &mut self.resources[resource as usize].flows;
            if let Some(position) = flows.iter().position(|other| *other == id) {
                flows.swap_remove(position);
            }
            self.doubt(resource);
        }
        self.free.push(id);
    }

    /// A transfer's share in bytes per second, as of the last settlement.
    pub fn rate(&self, id: FlowId) -> f64 {
        self.flows[id as usize].rate
    }

    /// Finds all shares anew; tells the transfers whose rate is another one.
    pub fn settle(&mut self, mut changed: impl FnMut(FlowId, f64)) {
        while let Some(id) = self.doubtful.pop_front() {
            let level = self.level(id);
            let resource = &mut self.resources[id as usize];
            resource.is_doubtful = false;
            resource.rounds += 1;
            if same(level, resource.level) {
                continue;
            }
            resource.level = level;
            let go_on = resource.rounds < ROUNDS_MAX;
            for at in 0..self.resources[id as usize].flows.len() {
                let flow = self.resources[id as usize].flows[at];
                self.touch(flow);
                for use_at in 0..self.flows[flow as usize].uses.len() {
                    let (other, _) = self.flows[flow as usize].uses[use_at];
                    if go_on && other != id {
                        self.doubt(other);
                    }
                }
            }
        }
        for id in std::mem::take(&mut self.touched) {
            let flow = &mut self.flows[id as usize];
            flow.is_touched = false;
            for (resource, _) in &flow.uses {
                self.resources[*resource as usize].rounds = 0;
            }
            let lowest = flow.uses.iter().map(|(resource, _)| self.resources[*resource as usize].level);
            let rate = lowest.fold(flow.cap, f64::min);
            if !flow.uses.is_empty() && !same(rate, flow.rate) {
                flow.rate = rate;
                changed(id, rate);
            }
        }
    }

    /// What a transfer gets of a resource if nothing else holds it back: what those leave that are held back elsewhere, in
    /// equal parts.
    fn level(&self, id: ResourceId) -> f64 {
        let resource = &self.resources[id as usize];
        let bound = |flow: &FlowId| {
            let flow = &self.flows[*flow as usize];
            let (mut bound, mut weight) = (flow.cap, 0.0);
            for &(other, times) in &flow.uses {
                match other == id {
                    true => weight += times,
                    false => bound = bound.min(self.resources[other as usize].level),
                }
            }
            (bound, weight)
        };
        let mut bounds: Vec<(f64, f64)> = resource.flows.iter().map(bound).collect();
        bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = resource.capacity;
        let mut weights: f64 = bounds.iter().map(|(_, weight)| weight).sum();
        for (bound, weight) in bounds {
            if bound * weights >= left {
                return left / weights;
            }
            left -= bound * weight;
            weights -= weight;
        }
        f64::INFINITY
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
                        (shares.rate(*flow) - fair).abs() < 1e-6 * fair,
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
