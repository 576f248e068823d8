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
pub(super) struct Wires<'f, 'c> {
    paths: &'f Paths<'f>,
    routes: Routes<'f>,
    charges: &'c dyn Charges,
    classes: &'c Classes,
    /// The ranks of each class.
    members: Vec<Vec<u32>>,
    stations: Stations,
    links: FxHashMap<(Station, Station, LinkKind), Alike>,
    pub(super) resources: Vec<Resource>,
    by_links: FxHashMap<Vec<(Station, Station)>, ResourceId>,
    wires: FxHashMap<(u32, u32), Option<Rc<Wire>>>,
    groups: FxHashMap<(u32, u32, bool), Option<Rc<Wire>>>,
}

/// Links of a class.
#[derive(Clone, Copy)]
struct Alike {
    count: u64,
    /// Bytes per second of the slowest.
    slowest: f64,
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

impl<'f, 'c> Wires<'f, 'c> {
    pub(super) fn new(paths: &'f Paths<'f>, charges: &'c dyn Charges, classes: &'c Classes) -> Self {
        let fabric = paths.fabric();
        let by_classes = !classes.are_trivial();
        let stations = Stations::of(paths, by_classes);
        let mut links: FxHashMap<_, Alike> = FxHashMap::default();
        for link in fabric.links() {
            let (from, to) = stations.link(link);
            let rate = rate(fabric, link, charges);
            let alike =
                links.entry((from, to, fabric.spec(link).kind)).or_insert(Alike { count: 0, slowest: rate });
            alike.count += 1;
            alike.slowest = alike.slowest.min(rate);
        }
        let mut members = vec![Vec::new(); classes.representatives().len()];
        for rank in 0..fabric.gpus().len() as u32 {
            members[classes.position(rank)].push(rank);
        }
        Self {
            paths,
            routes: Routes::new(paths),
            charges,
            classes,
            members,
            stations,
            links,
            resources: Vec::new(),
            by_links: FxHashMap::default(),
            wires: FxHashMap::default(),
            groups: FxHashMap::default(),
        }
    }

    /// The way from one rank to another, the first of which stands for its class.
    pub(super) fn wire(&mut self, from: u32, to: u32, shares: &mut Shares) -> Result<Rc<Wire>, Apart> {
        if let Some(wire) = self.wires.get(&(from, to)) {
            return wire.clone().ok_or(Apart(from, to));
        }
        let wire = self.found(from, to, shares).map(Rc::new);
        self.wires.insert((from, to), wire.clone());
        wire.ok_or(Apart(from, to))
    }

    fn found(&mut self, from: u32, to: u32, shares: &mut Shares) -> Option<Wire> {
        let fabric = self.paths.fabric();
        let gpu = |rank: u32| fabric.gpus()[rank as usize];
        let back = self.classes.back(self.classes.turn_of(from));
        let (first, target) = (self.classes.rank(from, back), self.classes.rank(to, back));
        // Those that stay under their switches and those that do not are of two kinds; all of a kind pass the same.
        let mut kinds = [(0.0, None), (0.0, None)];
        for &instance in &self.members[self.classes.position(first)] {
            let ends = (gpu(instance), gpu(self.classes.rank(target, self.classes.turn_of(instance))));
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
                let (id, of) = self.resource(&pair[0], &pair[1], shares)?;
                add(&mut uses, id, count);
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
        rank: u32,
        group: &Group,
        number: u32,
        is_sum: bool,
        shares: &mut Shares,
    ) -> Result<Rc<Wire>, Apart> {
        let other = *group.members.iter().find(|member| **member != rank).unwrap_or(&rank);
        if let Some(wire) = self.groups.get(&(rank, number, is_sum)) {
            return wire.clone().ok_or(Apart(rank, other));
        }
        let wire = self.found_group(rank, group, is_sum, shares).map(Rc::new);
        self.groups.insert((rank, number, is_sum), wire.clone());
        wire.ok_or(Apart(rank, other))
    }

    fn found_group(&mut self, rank: u32, group: &Group, is_sum: bool, shares: &mut Shares) -> Option<Wire> {
        let fabric = self.paths.fabric();
        let gpu = |rank: u32| fabric.gpus()[rank as usize];
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
                    let (id, of) = self.resource(&pair[0], &pair[1], shares)?;
                    let by_switch =
                        if group.switch == Switch::Nvswitch { self.charges.multicast(of) } else { 1.0 };
                    add(&mut uses, id, self.members[self.classes.position(rank)].len() as f64 / by_switch);
                    kind = Some(of);
                    switches = 1;
                }
            }
        }
        let path = if group.switch == Switch::Nvswitch { PathType::Nvl } else { PathType::Net };
        Some(Wire { uses, path, kind: kind?, switches })
    }

    /// The links from some devices to others side by side, as one resource, and their kind.
    fn resource(
        &mut self,
        from: &[DeviceId],
        to: &[DeviceId],
        shares: &mut Shares,
    ) -> Option<(ResourceId, LinkKind)> {
        let fabric = self.paths.fabric();
        let between: Vec<&Link> = from
            .iter()
            .flat_map(|id| fabric.links_from(*id))
            .filter(|link| to.contains(&link.target))
            .collect();
        let kind = fabric.spec(between.first()?).kind;
        let mut key: Vec<_> = between.iter().map(|link| self.stations.link(link)).collect();
        key.sort_unstable();
        if let Some(id) = self.by_links.get(&key) {
            return Some((*id, kind));
        }
        let alike: Vec<Alike> = between
            .iter()
            .filter_map(|link| {
                let (from, to) = self.stations.link(link);
                self.links.get(&(from, to, fabric.spec(link).kind)).copied()
            })
            .collect();
        let count = alike.iter().map(|alike| alike.count).min()?;
        let capacity = alike.iter().map(|alike| alike.slowest).sum::<f64>() * count as f64;
        if capacity <= 0.0 {
            return None;
        }
        let id = shares.resource(capacity);
        let link = (between[0].source, between[0].target);
        self.resources.push(Resource { kind, link, count, capacity, moved: 0.0 });
        self.by_links.insert(key, id);
        Some((id, kind))
    }
}

fn add(uses: &mut Vec<(ResourceId, f64)>, id: ResourceId, weight: f64) {
    match uses.iter_mut().find(|(other, _)| *other == id) {
        Some((_, before)) => *before += weight,
        None => uses.push((id, weight)),
    }
}

/// Bytes per second of a link, as they are charged.
fn rate(fabric: &Fabric, link: &Link, charges: &dyn Charges) -> f64 {
    let kind = fabric.spec(link).kind;
    charges.capacity(kind, fabric.rate(link, Measure::Effective).bytes_per_second() as f64)
}
