//! The fabric as the engine sees it: what data passes from one rank to another, as resources that transfers share.
//!
//! Links that lie side by side between two stations of a route are one resource. Where a plan is run by its classes, so are the links of
//! a class: the same link of every island, counted as often as there are islands, each as fast as the slowest of them, since whatever
//! waits for a class waits for its slowest. A transfer then stands for those of all ranks of its class, and passes a resource as often as
//! all of them do.

use std::rc::Rc;

use rustc_hash::FxHashMap;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Link, LinkKind, Measure, PathType, Paths};
use weftlink_plan::classes::Classes;
use weftlink_plan::plan::{Group, Switch};

use super::Charges;
use super::conditions::Disturbed;
use super::routes::Routes;
use super::share::{ResourceId, Shares};

/// The way from one rank to another.
#[derive(Debug)]
pub struct Wire {
    /// What it passes, and how many times over.
    pub uses: Vec<(ResourceId, f64)>,
    /// The kind of path.
    pub path: PathType,
    /// The slowest kind of link on it: of the network, if it passes one.
    pub kind: LinkKind,
    /// The switches of the network it passes.
    pub switches: u32,
}

/// A resource, for those who ask what was busy.
#[derive(Clone, Debug)]
pub struct Resource {
    /// The kind of link.
    pub kind: LinkKind,
    /// One of its links.
    pub link: (DeviceId, DeviceId),
    /// How many links it stands for, of other islands or side by side.
    pub count: u64,
    /// Bytes per second of all of them.
    pub capacity: f64,
    /// Bytes that have passed all of them.
    pub moved: f64,
}

/// Two ranks that no links of known speed join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no links of known speed join rank {0} to rank {1}")]
pub struct Apart(pub u32, pub u32);

/// A device of a fabric, or the one that stands for its class.
type Station = u64;

/// The routes and resources of a run.
pub(super) struct Wires<'f> {
    paths: &'f Paths<'f>,
    routes: Routes<'f>,
    stations: Stations,
    /// Links of the same class; nothing where each stands for itself.
    alike: Option<FxHashMap<(Station, Station, LinkKind), Alike>>,
    disturbed: Disturbed,
    /// The flaps of links between stations.
    flapping: FxHashMap<(Station, Station), usize>,
    /// What each flap takes away from which resources.
    taken: Vec<Vec<(ResourceId, f64)>>,
    pub(super) resources: Vec<Resource>,
    by_links: FxHashMap<Vec<(Station, Station)>, ResourceId>,
    /// For a GPU that is throttled and what its transfers would be limited by, what they are limited by.
    narrow: FxHashMap<(u32, ResourceId), ResourceId>,
}

/// A job's ranks on the wires: its charges, its classes, and what was found for it.
pub(super) struct Side<'c> {
    pub(super) charges: &'c dyn Charges,
    classes: &'c Classes,
    /// The GPU of each rank; all in order if nothing.
    gpus: Option<&'c [u32]>,
    /// The ranks of each class.
    members: Vec<Vec<u32>>,
    wires: FxHashMap<(u32, u32), Option<Rc<Wire>>>,
    groups: FxHashMap<(u32, u32, bool), Option<Rc<Wire>>>,
}

impl<'c> Side<'c> {
    pub(super) fn new(
        charges: &'c dyn Charges,
        classes: &'c Classes,
        ranks: u32,
        gpus: Option<&'c [u32]>,
    ) -> Self {
        let mut members = vec![Vec::new(); classes.representatives().len()];
        for rank in 0..ranks {
            members[classes.position(rank)].push(rank);
        }
        Self { charges, classes, gpus, members, wires: FxHashMap::default(), groups: FxHashMap::default() }
    }

    /// A rank's GPU, by its number in the fabric.
    pub(super) fn gpu(&self, rank: u32) -> u32 {
        self.gpus.map_or(rank, |gpus| gpus[rank as usize])
    }

    /// The ranks that a rank's class has.
    pub(super) fn class_of(&self, rank: u32) -> &[u32] {
        &self.members[self.classes.position(rank)]
    }
}

/// Links of a class.
#[derive(Clone, Copy)]
struct Alike {
    count: u64,
    /// Bytes per second of the slowest, and the least part that one of them carries of that.
    slowest: f64,
    part: f64,
}

/// The stations that devices are.
struct Stations(Vec<Station>);

impl Stations {
    fn of(paths: &Paths<'_>, by_classes: bool) -> Self {
        let fabric = paths.fabric();
        if !by_classes {
            return Self(fabric.device_ids().map(|id| Station::from(id.0)).collect());
        }
        // A switch of the network is known by the first NIC, of any island, that is plugged into it.
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
        let mut alike: Option<FxHashMap<_, Alike>> = by_classes.then(FxHashMap::default);
        for link in fabric.links().iter().filter(|_| by_classes) {
            let Some(alike) = &mut alike else { continue };
            let (from, to) = stations.link(link);
            let (rate, part) = (rate(fabric, link), disturbed.part(link));
            let new = Alike { count: 0, slowest: rate, part };
            let alike = alike.entry((from, to, fabric.spec(link).kind)).or_insert(new);
            alike.count += 1;
            alike.slowest = alike.slowest.min(rate);
            alike.part = alike.part.min(part);
        }
        let flapping = disturbed.flapping.iter();
        let flapping = flapping.map(|(&(a, b), flap)| ((stations.at(a), stations.at(b)), *flap)).collect();
        Self {
            paths,
            routes: Routes::new(paths),
            stations,
            alike,
            taken: vec![Vec::new(); disturbed.flaps.len()],
            disturbed,
            flapping,
            resources: Vec::new(),
            by_links: FxHashMap::default(),
            narrow: FxHashMap::default(),
        }
    }

    /// What all transfers of a throttled GPU that are limited by the same links share beside them, and how often this one passes it.
    pub(super) fn narrowed(
        &mut self,
        wire: &Wire,
        gpu: u32,
        part: f64,
        shares: &mut Shares,
    ) -> Option<(ResourceId, f64)> {
        let alone = |(id, weight): &(ResourceId, f64)| self.resources[*id as usize].capacity / weight;
        let (id, weight) = *wire.uses.iter().min_by(|a, b| alone(a).total_cmp(&alone(b)))?;
        if let Some(narrow) = self.narrow.get(&(gpu, id)) {
            return Some((*narrow, weight));
        }
        let like = self.resources[id as usize].clone();
        let capacity = like.capacity * part;
        let narrow = shares.resource(capacity);
        self.resources.push(Resource { count: 0, capacity, ..like });
        self.narrow.insert((gpu, id), narrow);
        Some((narrow, weight))
    }

    /// What a GPU gets of what it would.
    pub(super) fn throttle(&self, gpu: u32) -> Option<f64> {
        self.disturbed.throttled.get(&gpu).copied()
    }

    /// Whether no GPU is throttled.
    pub(super) fn are_unthrottled(&self) -> bool {
        self.disturbed.throttled.is_empty()
    }

    /// When a link next falls or rises after a time, if any does.
    pub(super) fn flaps_after(&self, time: u64) -> Option<u64> {
        self.disturbed.flaps.iter().map(|flap| flap.changes_after(time)).min()
    }

    /// Lets links be as they are at a time; tells whether any has changed.
    pub(super) fn flap(&mut self, time: u64, shares: &mut Shares) -> bool {
        let mut changed = false;
        for number in 0..self.disturbed.flaps.len() {
            let flap = &mut self.disturbed.flaps[number];
            let is_down = flap.is_down_at(time);
            if std::mem::replace(&mut flap.is_down, is_down) == is_down {
                continue;
            }
            changed = true;
            for (resource, _) in &self.taken[number] {
                shares.set_capacity(*resource, self.carried(*resource));
            }
        }
        changed
    }

    /// What a resource carries as its links are.
    fn carried(&self, id: ResourceId) -> f64 {
        let down = self.disturbed.flaps.iter().zip(&self.taken).filter(|(flap, _)| flap.is_down);
        let taken = down.flat_map(|(_, taken)| taken).filter(|(resource, _)| *resource == id);
        let (whole, taken) = (self.resources[id as usize].capacity, taken.map(|(_, rate)| rate).sum::<f64>());
        // What rounding leaves of a link that is down is nothing.
        if whole - taken > whole * 1e-9 { whole - taken } else { 0.0 }
    }

    /// The way from one rank to another, the first of which stands for its class.
    pub(super) fn wire(
        &mut self,
        side: &mut Side<'_>,
        from: u32,
        to: u32,
        shares: &mut Shares,
    ) -> Result<Rc<Wire>, Apart> {
        if let Some(wire) = side.wires.get(&(from, to)) {
            return wire.clone().ok_or(Apart(from, to));
        }
        let wire = self.found(side, from, to, shares).map(Rc::new);
        side.wires.insert((from, to), wire.clone());
        wire.ok_or(Apart(from, to))
    }

    fn found(&mut self, side: &Side<'_>, from: u32, to: u32, shares: &mut Shares) -> Option<Wire> {
        let fabric = self.paths.fabric();
        let gpu = |rank: u32| fabric.gpus()[side.gpu(rank) as usize];
        let back = side.classes.inverse(side.classes.turn_of(from));
        let (first, target) = (side.classes.rank(from, back), side.classes.rank(to, back));
        // Those that stay under their switches and those that do not are of two kinds; all of a kind pass the same.
        let mut kinds = [(0.0, None), (0.0, None)];
        for &instance in side.class_of(first) {
            let ends = (gpu(instance), gpu(side.classes.rank(target, side.classes.turn_of(instance))));
            let kind = &mut kinds[usize::from(self.routes.same_unit(ends.0, ends.1))];
            *kind = (kind.0 + 1.0, kind.1.or(Some(ends)));
        }
        let mut uses: Vec<(ResourceId, f64)> = Vec::new();
        let mut wire = None;
        for (count, ends) in kinds {
            let Some((from, to)) = ends else { continue };
            let way = self.routes.way(from, to)?;
            let mut kind: Option<LinkKind> = None;
            let mut switches = 0;
            for pair in way.stations.windows(2) {
                let (id, of, weight) = self.resource(side, &pair[0], &pair[1], shares)?;
                add(&mut uses, id, count * weight);
                let is_network = |kind: LinkKind| matches!(kind, LinkKind::Network { .. });
                if kind.is_none_or(|before| !is_network(before)) {
                    kind = Some(of);
                }
                switches += u32::from(matches!(fabric.device(pair[1][0]).kind, DeviceKind::NetSwitch(_)));
            }
            wire.get_or_insert((way.path, kind?, switches));
        }
        let (path, kind, switches) = wire?;
        Some(Wire { uses, path, kind, switches })
    }

    /// What a rank's share of a group's sum, or multicast, passes.
    pub(super) fn grouped(
        &mut self,
        side: &mut Side<'_>,
        rank: u32,
        group: &Group,
        number: u32,
        is_sum: bool,
        shares: &mut Shares,
    ) -> Result<Rc<Wire>, Apart> {
        let other = *group.members.iter().find(|member| **member != rank).unwrap_or(&rank);
        if let Some(wire) = side.groups.get(&(rank, number, is_sum)) {
            return wire.clone().ok_or(Apart(rank, other));
        }
        let wire = self.found_group(side, rank, group, is_sum, shares).map(Rc::new);
        side.groups.insert((rank, number, is_sum), wire.clone());
        wire.ok_or(Apart(rank, other))
    }

    fn found_group(
        &mut self,
        side: &Side<'_>,
        rank: u32,
        group: &Group,
        is_sum: bool,
        shares: &mut Shares,
    ) -> Option<Wire> {
        let fabric = self.paths.fabric();
        let gpu = |rank: u32| fabric.gpus()[side.gpu(rank) as usize];
        let mut uses = Vec::new();
        let (mut kind, mut switches) = (None, 0);
        for &member in &group.members {
            let other = *group.members.iter().find(|other| **other != member)?;
            // Everybody sends and one gets the sum, or one sends and everybody gets it.
            let directions = [(true, is_sum || member == rank), (false, !is_sum || member == rank)];
            for (up, _) in directions.into_iter().filter(|(_, takes_part)| *takes_part) {
                let (from, to) = if up { (member, other) } else { (other, member) };
                let way = self.routes.way(gpu(from), gpu(to))?;
                let is_switch = |station: &Vec<DeviceId>| match group.switch {
                    Switch::Nvswitch => matches!(fabric.device(station[0]).kind, DeviceKind::NvSwitch { .. }),
                    Switch::Network => matches!(fabric.device(station[0]).kind, DeviceKind::NetSwitch(_)),
                };
                let at = match up {
                    true => way.stations.iter().position(is_switch),
                    false => way.stations.iter().rposition(is_switch),
                }?;
                let stations = if up { &way.stations[..=at] } else { &way.stations[at..] };
                for pair in stations.windows(2) {
                    let (id, of, weight) = self.resource(side, &pair[0], &pair[1], shares)?;
                    let by_switch =
                        if group.switch == Switch::Nvswitch { side.charges.multicast(of) } else { 1.0 };
                    add(&mut uses, id, side.class_of(rank).len() as f64 * weight / by_switch);
                    kind = Some(of);
                    switches = 1;
                }
            }
        }
        let path = if group.switch == Switch::Nvswitch { PathType::Nvl } else { PathType::Net };
        Some(Wire { uses, path, kind: kind?, switches })
    }

    /// The links from some devices to others side by side, as one resource, their kind, and how often a byte of this side counts there:
    /// where two sides charge a link differently, both share it by what each could have of it.
    fn resource(
        &mut self,
        side: &Side<'_>,
        from: &[DeviceId],
        to: &[DeviceId],
        shares: &mut Shares,
    ) -> Option<(ResourceId, LinkKind, f64)> {
        let fabric = self.paths.fabric();
        let between: Vec<&Link> = from
            .iter()
            .flat_map(|id| fabric.links_from(*id))
            .filter(|link| to.contains(&link.target))
            .collect();
        let first = between.first()?;
        let (kind, ends) = (fabric.spec(first).kind, (first.source, first.target));
        let alike: Vec<Alike> = between.iter().filter_map(|link| self.alike(link)).collect();
        let count = alike.iter().map(|alike| alike.count).min()?;
        let charged = |(link, alike): (&&Link, &Alike)| {
            side.charges.capacity(fabric.spec(link).kind, alike.slowest) * alike.part * count as f64
        };
        let rates: Vec<f64> = between.iter().zip(&alike).map(charged).collect();
        let capacity = rates.iter().sum::<f64>();
        if capacity <= 0.0 {
            return None;
        }
        let links: Vec<_> = between.iter().map(|link| self.stations.link(link)).collect();
        let mut key = links.clone();
        key.sort_unstable();
        if let Some(id) = self.by_links.get(&key) {
            let before = self.resources[*id as usize].capacity;
            return Some((*id, kind, if before == capacity { 1.0 } else { before / capacity }));
        }
        let id = shares.resource(capacity);
        self.resources.push(Resource { kind, link: ends, count, capacity, moved: 0.0 });
        for (link, rate) in links.iter().zip(rates) {
            if let Some(flap) = self.flapping.get(link) {
                self.taken[*flap].push((id, rate));
            }
        }
        if !self.flapping.is_empty() {
            shares.set_capacity(id, self.carried(id));
        }
        self.by_links.insert(key, id);
        Some((id, kind, 1.0))
    }

    fn alike(&self, link: &Link) -> Option<Alike> {
        let fabric = self.paths.fabric();
        let (from, to) = self.stations.link(link);
        match &self.alike {
            Some(alike) => alike.get(&(from, to, fabric.spec(link).kind)).copied(),
            None => Some(Alike { count: 1, slowest: rate(fabric, link), part: self.disturbed.part(link) }),
        }
    }
}

fn add(uses: &mut Vec<(ResourceId, f64)>, id: ResourceId, weight: f64) {
    match uses.iter_mut().find(|(other, _)| *other == id) {
        Some((_, before)) => *before += weight,
        None => uses.push((id, weight)),
    }
}

/// Bytes per second of a link.
fn rate(fabric: &Fabric, link: &Link) -> f64 {
    fabric.rate(link, Measure::Effective).bytes_per_second() as f64
}
