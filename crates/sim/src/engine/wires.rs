//! The fabric as the engine sees it: the resources that transfers between ranks share.
//!
//! Parallel links between two stations of a route are one resource. In a plan run by classes, so are the links of a class: the same link
//! of every island, counted once per island, each at the rate of the slowest, since waiting for a class means waiting for its slowest
//! rank. A transfer then represents those of all ranks of its class, and uses a resource as often as all of them do. The links between
//! switches carry the data of different numbers of hosts; there the slowest is the one with the lowest rate for the cables to its hosts.

use std::rc::Rc;

use rustc_hash::FxHashMap;
use weftlink_fabric::{DeviceId, DeviceKind, Link, LinkKind, PathType, Paths};
use weftlink_plan::classes::Classes;
use weftlink_plan::cost::lines;
use weftlink_plan::plan::{Group, Switch};

use super::conditions::{Disturbed, is_net_switch};
use super::routes::Routes;
use super::share::{ResourceId, Shares};
use super::{CostModel, LinkLine};

/// The connection from one rank to another.
#[derive(Debug)]
pub struct Wire {
    /// The resources it uses, each with a weight: how often.
    pub uses: Vec<(ResourceId, f64)>,
    /// The kind of path.
    pub path: PathType,
}

/// A resource: a group of links, with its traffic.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The kind of link.
    pub kind: LinkKind,
    /// One of its links.
    pub link: (DeviceId, DeviceId),
    /// Number of links: parallel ones and those of other islands.
    pub count: u64,
    /// Bytes per second of all of them.
    pub capacity: f64,
    /// Bytes moved over all of them.
    pub moved: f64,
}

/// No path connects two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no path of links with known rates connects rank {0} to rank {1}")]
pub struct Unreachable(pub u32, pub u32);

/// A device of a fabric, or the class of devices that it belongs to.
type Station = u64;

/// The routes and resources of a run.
pub(super) struct Wires<'f> {
    paths: &'f Paths<'f>,
    routes: Routes<'f>,
    stations: Stations,
    /// The classes of links; `None` where each link is its own class.
    link_classes: Option<FxHashMap<(Station, Station, LinkKind), LinkClass>>,
    disturbed: Disturbed,
    /// The index of the flap of each flapping link.
    flapping: FxHashMap<(Station, Station), usize>,
    /// For each flap, the resources that it affects and the rate that it takes from each.
    flap_rates: Vec<Vec<(ResourceId, f64)>>,
    pub(super) resources: Vec<Resource>,
    by_links: FxHashMap<Vec<(Station, Station)>, ResourceId>,
    /// For a throttled GPU and the resource that limits its transfers, the resource that throttles them.
    throttled: FxHashMap<(u32, ResourceId), ResourceId>,
}

/// The wires of a job, with its cost model and its classes.
pub(super) struct JobWires<'c> {
    pub(super) costs: &'c dyn CostModel,
    classes: &'c Classes,
    /// The GPU of each rank; `None` is all GPUs in order.
    gpus: Option<&'c [u32]>,
    /// The ranks of each class.
    members: Vec<Vec<u32>>,
    wires: FxHashMap<(u32, u32), Option<Rc<Wire>>>,
    groups: FxHashMap<(u32, u32, bool), Option<Rc<Wire>>>,
}

impl<'c> JobWires<'c> {
    pub(super) fn new(
        costs: &'c dyn CostModel,
        classes: &'c Classes,
        ranks: u32,
        gpus: Option<&'c [u32]>,
    ) -> Self {
        let mut members = vec![Vec::new(); classes.representatives().len()];
        for rank in 0..ranks {
            members[classes.position(rank)].push(rank);
        }
        Self { costs, classes, gpus, members, wires: FxHashMap::default(), groups: FxHashMap::default() }
    }

    /// A rank's GPU, by its number in the fabric.
    pub(super) fn gpu(&self, rank: u32) -> u32 {
        self.gpus.map_or(rank, |gpus| gpus[rank as usize])
    }

    /// The ranks in a rank's class.
    pub(super) fn class_of(&self, rank: u32) -> &[u32] {
        &self.members[self.classes.position(rank)]
    }
}

/// A class of links.
#[derive(Clone, Copy)]
struct LinkClass {
    count: u64,
    /// Bytes per second of the slowest link.
    slowest: f64,
    /// Sum of the cables to hosts below each link.
    hosts: f64,
    /// The smallest fraction of its rate at which a link runs.
    fraction: f64,
}

/// The station of each device.
struct Stations(Vec<Station>);

impl Stations {
    fn of(paths: &Paths<'_>, by_classes: bool) -> Self {
        let fabric = paths.fabric();
        if !by_classes {
            return Self(fabric.device_ids().map(|id| Station::from(id.0)).collect());
        }
        // A network switch is identified by the first NIC, of any island, that is connected to it.
        const SWITCH: Station = 1 << 32;
        const UPPER: Station = 1 << 33;
        let local = |id: DeviceId| paths.islands().place(id).map(|place| Station::from(place.local));
        let station = |id: DeviceId| {
            let plugged = || fabric.links_from(id).iter().filter_map(|link| local(link.target)).min();
            local(id).unwrap_or_else(|| plugged().map_or(UPPER, |first| SWITCH + first))
        };
        Self(fabric.device_ids().map(station).collect())
    }

    fn at(&self, id: DeviceId) -> Station {
        self.0[id.index()]
    }

    fn link(&self, link: &Link) -> (Station, Station) {
        (self.at(link.source), self.at(link.target))
    }
}

impl<'f> Wires<'f> {
    pub(super) fn new(paths: &'f Paths<'f>, by_classes: bool, disturbed: Disturbed) -> Self {
        let fabric = paths.fabric();
        let stations = Stations::of(paths, by_classes);
        let mut link_classes: Option<FxHashMap<_, LinkClass>> = by_classes.then(FxHashMap::default);
        // For each network switch, the rate of its cables to hosts.
        let mut to_hosts: FxHashMap<DeviceId, f64> = FxHashMap::default();
        let is_switch = |id: DeviceId| is_net_switch(fabric, id);
        for link in fabric.links().iter().filter(|link| by_classes && is_switch(link.source)) {
            if !is_switch(link.target) {
                *to_hosts.entry(link.source).or_default() += lines::line(fabric, link);
            }
        }
        // The cables of the hosts whose data a link carries; 1 for all other links.
        let host_cables = |link: &Link| match is_switch(link.source) && is_switch(link.target) {
            true => to_hosts.get(&link.source).or_else(|| to_hosts.get(&link.target)).copied().unwrap_or(1.0),
            false => 1.0,
        };
        for link in fabric.links().iter().filter(|_| by_classes) {
            let Some(classes) = &mut link_classes else { continue };
            let (from, to) = stations.link(link);
            let (rate, fraction) = (lines::line(fabric, link), disturbed.fraction(link));
            let hosts = host_cables(link);
            let new = LinkClass { count: 0, slowest: f64::INFINITY, hosts: 0.0, fraction };
            let class = classes.entry((from, to, fabric.spec(link).kind)).or_insert(new);
            class.count += 1;
            class.hosts += hosts;
            class.slowest = class.slowest.min(rate / hosts);
            class.fraction = class.fraction.min(fraction);
        }
        for class in link_classes.iter_mut().flat_map(FxHashMap::values_mut) {
            class.slowest *= class.hosts / class.count as f64;
        }
        let flapping = disturbed.flapping.iter();
        let flapping = flapping.map(|(&(a, b), flap)| ((stations.at(a), stations.at(b)), *flap)).collect();
        Self {
            paths,
            routes: Routes::new(paths),
            stations,
            link_classes,
            flap_rates: vec![Vec::new(); disturbed.flaps.len()],
            disturbed,
            flapping,
            resources: Vec::new(),
            by_links: FxHashMap::default(),
            throttled: FxHashMap::default(),
        }
    }

    /// The resource that throttles a GPU's transfers over the links that limit this wire, and its weight for this wire.
    pub(super) fn throttled_resource(
        &mut self,
        wire: &Wire,
        gpu: u32,
        fraction: f64,
        shares: &mut Shares,
    ) -> Option<(ResourceId, f64)> {
        let alone = |(id, weight): &(ResourceId, f64)| self.resources[*id as usize].capacity / weight;
        let (id, weight) = *wire.uses.iter().min_by(|a, b| alone(a).total_cmp(&alone(b)))?;
        if let Some(throttled) = self.throttled.get(&(gpu, id)) {
            return Some((*throttled, weight));
        }
        let like = self.resources[id as usize].clone();
        let capacity = like.capacity * fraction;
        let throttled = shares.resource(capacity);
        self.resources.push(Resource { count: 0, capacity, ..like });
        self.throttled.insert((gpu, id), throttled);
        Some((throttled, weight))
    }

    /// The fraction of its rate at which a throttled GPU runs.
    pub(super) fn throttle(&self, gpu: u32) -> Option<f64> {
        self.disturbed.throttled.get(&gpu).copied()
    }

    /// Whether no GPU is throttled.
    pub(super) fn has_no_throttled_gpu(&self) -> bool {
        self.disturbed.throttled.is_empty()
    }

    /// The time of the next change of a flapping link after a time.
    pub(super) fn next_flap_after(&self, time: u64) -> Option<u64> {
        self.disturbed.flaps.iter().map(|flap| flap.changes_after(time)).min()
    }

    /// Updates the capacities of flapping links for a time; returns whether any has changed.
    pub(super) fn apply_flaps(&mut self, time: u64, shares: &mut Shares) -> bool {
        let mut changed = false;
        for number in 0..self.disturbed.flaps.len() {
            let flap = &mut self.disturbed.flaps[number];
            let is_down = flap.is_down_at(time);
            if std::mem::replace(&mut flap.is_down, is_down) == is_down {
                continue;
            }
            changed = true;
            for (resource, _) in &self.flap_rates[number] {
                shares.set_capacity(*resource, self.current_capacity(*resource));
            }
        }
        changed
    }

    /// The capacity of a resource without the links that are down.
    fn current_capacity(&self, id: ResourceId) -> f64 {
        let down = self.disturbed.flaps.iter().zip(&self.flap_rates).filter(|(flap, _)| flap.is_down);
        let flap_rates = down.flat_map(|(_, flap_rates)| flap_rates).filter(|(resource, _)| *resource == id);
        let (whole, flap_rates) =
            (self.resources[id as usize].capacity, flap_rates.map(|(_, rate)| rate).sum::<f64>());
        // Rounding must not leave a rest of a link that is down.
        if whole - flap_rates > whole * 1e-9 { whole - flap_rates } else { 0.0 }
    }

    /// The wire from one rank, the representative of its class, to another.
    pub(super) fn wire(
        &mut self,
        job: &mut JobWires<'_>,
        from: u32,
        to: u32,
        shares: &mut Shares,
    ) -> Result<Rc<Wire>, Unreachable> {
        if let Some(wire) = job.wires.get(&(from, to)) {
            return wire.clone().ok_or(Unreachable(from, to));
        }
        let wire = self.find_wire(job, from, to, shares).map(Rc::new);
        job.wires.insert((from, to), wire.clone());
        wire.ok_or(Unreachable(from, to))
    }

    fn find_wire(&mut self, job: &JobWires<'_>, from: u32, to: u32, shares: &mut Shares) -> Option<Wire> {
        let fabric = self.paths.fabric();
        let gpu = |rank: u32| fabric.gpus()[job.gpu(rank) as usize];
        let back = job.classes.inverse(job.classes.turn_of(from));
        let (first, target) = (job.classes.rank(from, back), job.classes.rank(to, back));
        // Wires within a unit and wires between units differ; all wires of the same kind use the same links.
        let mut kinds = [(0.0, None), (0.0, None)];
        for &instance in job.class_of(first) {
            let ends = (gpu(instance), gpu(job.classes.rank(target, job.classes.turn_of(instance))));
            let kind = &mut kinds[usize::from(self.routes.same_unit(ends.0, ends.1))];
            *kind = (kind.0 + 1.0, kind.1.or(Some(ends)));
        }
        let mut uses: Vec<(ResourceId, f64)> = Vec::new();
        let mut path = None;
        for (count, ends) in kinds {
            let Some((from, to)) = ends else { continue };
            let route = self.routes.route(from, to)?;
            if route.stations.len() < 2 {
                return None;
            }
            for pair in route.stations.windows(2) {
                let (id, weight) = self.resource(job, &pair[0], &pair[1], shares)?;
                add(&mut uses, id, count * weight);
            }
            path.get_or_insert(route.path);
        }
        Some(Wire { uses, path: path? })
    }

    /// The wire of a rank's share of a group's reduction or multicast.
    pub(super) fn group_wire(
        &mut self,
        job: &mut JobWires<'_>,
        rank: u32,
        group: &Group,
        number: u32,
        is_sum: bool,
        shares: &mut Shares,
    ) -> Result<Rc<Wire>, Unreachable> {
        let other = *group.members.iter().find(|member| **member != rank).unwrap_or(&rank);
        if let Some(wire) = job.groups.get(&(rank, number, is_sum)) {
            return wire.clone().ok_or(Unreachable(rank, other));
        }
        let wire = self.find_group_wire(job, rank, group, is_sum, shares).map(Rc::new);
        job.groups.insert((rank, number, is_sum), wire.clone());
        wire.ok_or(Unreachable(rank, other))
    }

    fn find_group_wire(
        &mut self,
        job: &JobWires<'_>,
        rank: u32,
        group: &Group,
        is_sum: bool,
        shares: &mut Shares,
    ) -> Option<Wire> {
        let fabric = self.paths.fabric();
        let gpu = |rank: u32| fabric.gpus()[job.gpu(rank) as usize];
        let mut uses = Vec::new();
        for &member in &group.members {
            let other = *group.members.iter().find(|other| **other != member)?;
            // In a reduction all members send and one receives; in a multicast one sends and all receive.
            let directions = [(true, is_sum || member == rank), (false, !is_sum || member == rank)];
            for (up, _) in directions.into_iter().filter(|(_, takes_part)| *takes_part) {
                let (from, to) = if up { (member, other) } else { (other, member) };
                let route = self.routes.route(gpu(from), gpu(to))?;
                let is_switch = |station: &Vec<DeviceId>| match group.switch {
                    Switch::Nvswitch => matches!(fabric.device(station[0]).kind, DeviceKind::NvSwitch { .. }),
                    Switch::Network => is_net_switch(fabric, station[0]),
                };
                let at = match up {
                    true => route.stations.iter().position(is_switch),
                    false => route.stations.iter().rposition(is_switch),
                }?;
                let stations = if up { &route.stations[..=at] } else { &route.stations[at..] };
                for pair in stations.windows(2) {
                    let (id, weight) = self.resource(job, &pair[0], &pair[1], shares)?;
                    let by_switch =
                        if group.switch == Switch::Nvswitch { job.costs.multicast() } else { 1.0 };
                    add(&mut uses, id, job.class_of(rank).len() as f64 * weight / by_switch);
                }
            }
        }
        let path = if group.switch == Switch::Nvswitch { PathType::Nvl } else { PathType::Net };
        (!uses.is_empty()).then_some(Wire { uses, path })
    }

    /// The parallel links from some devices to others as one resource, with the weight of a byte of this job: jobs whose cost
    /// models give a link different capacities share it in proportion.
    fn resource(
        &mut self,
        job: &JobWires<'_>,
        from: &[DeviceId],
        to: &[DeviceId],
        shares: &mut Shares,
    ) -> Option<(ResourceId, f64)> {
        let fabric = self.paths.fabric();
        let between: Vec<&Link> = from
            .iter()
            .flat_map(|id| fabric.links_from(*id))
            .filter(|link| to.contains(&link.target))
            .collect();
        let first = between.first()?;
        let (kind, ends) = (fabric.spec(first).kind, (first.source, first.target));
        let classes: Vec<LinkClass> = between.iter().filter_map(|link| self.link_class(link)).collect();
        let count = classes.iter().map(|class| class.count).min()?;
        let capacity_of = |(link, class): (&&Link, &LinkClass)| {
            let is_switch = |id| is_net_switch(fabric, id);
            let line = LinkLine {
                kind: fabric.spec(link).kind,
                is_between_switches: is_switch(link.source) && is_switch(link.target),
                bytes_per_second: class.slowest,
            };
            job.costs.capacity(line) * class.fraction * count as f64
        };
        let rates: Vec<f64> = between.iter().zip(&classes).map(capacity_of).collect();
        let capacity = rates.iter().sum::<f64>();
        if capacity <= 0.0 {
            return None;
        }
        let links: Vec<_> = between.iter().map(|link| self.stations.link(link)).collect();
        let mut key = links.clone();
        key.sort_unstable();
        if let Some(id) = self.by_links.get(&key) {
            let before = self.resources[*id as usize].capacity;
            return Some((*id, if before == capacity { 1.0 } else { before / capacity }));
        }
        let id = shares.resource(capacity);
        self.resources.push(Resource { kind, link: ends, count, capacity, moved: 0.0 });
        for (link, rate) in links.iter().zip(rates) {
            if let Some(flap) = self.flapping.get(link) {
                self.flap_rates[*flap].push((id, rate));
            }
        }
        if !self.flapping.is_empty() {
            shares.set_capacity(id, self.current_capacity(id));
        }
        self.by_links.insert(key, id);
        Some((id, 1.0))
    }

    fn link_class(&self, link: &Link) -> Option<LinkClass> {
        let fabric = self.paths.fabric();
        let (from, to) = self.stations.link(link);
        match &self.link_classes {
            Some(classes) => classes.get(&(from, to, fabric.spec(link).kind)).copied(),
            None => Some(LinkClass {
                count: 1,
                slowest: lines::line(fabric, link),
                hosts: 1.0,
                fraction: self.disturbed.fraction(link),
            }),
        }
    }
}

fn add(uses: &mut Vec<(ResourceId, f64)>, id: ResourceId, weight: f64) {
    match uses.iter_mut().find(|(other, _)| *other == id) {
        Some((_, before)) => *before += weight,
        None => uses.push((id, weight)),
    }
}
