//! The rates of a plan on the wiring, from the load that it puts on each link.
//!
//! Every pair of ranks that exchanges data has a route; parallel links and switches share its load. The link with the highest
//! load for its rate is the bottleneck, inside the islands and between them: tiles are pipelined, so a large call uses all
//! links at once.
//!
//! A lane, however, takes one step after the other. While it serves one peer, its links to the others are idle, so with any
//! number of tiles it takes the sum of its steps.

use std::collections::BTreeMap;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use weftlink_fabric::{DeviceId, DeviceKind, LinkKind, PathType, Paths};

use super::carried::Carried;
use super::usage::Usage;

/// The slowest kind of link on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// NVLink and similar links.
    GpuLinks,
    /// PCIe, and the links between sockets.
    Pcie,
    /// The network.
    Network,
}

/// The rates of a plan inside islands, or between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    /// The slowest kind of link there.
    pub(super) medium: Medium,
    /// Whether all of them are NVLink, which keeps 128 bytes together.
    pub(super) is_nvlink: bool,
    /// The rate of the busiest rank (inside) or island (between); nothing if it moves nothing.
    pub(super) bytes_per_second: Option<u64>,
    /// The rate of the slowest lane in its steps of this side; the times of both sides add up.
    pub(super) serial_bytes_per_second: Option<u64>,
}

/// The rates inside islands and between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) inside: Option<Side>,
    pub(super) across: Option<Side>,
}

/// Two GPUs without a path of known speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unconnected(pub(super) DeviceId, pub(super) DeviceId);

/// Computes loads; keeps routes from plan to plan.
pub(super) struct Loads<'p, 'f> {
    paths: &'p Paths<'f>,
    carried: &'p Carried,
    /// Whether data flows in one direction only.
    one_way: bool,
    /// The GPU of each rank.
    gpus: Vec<DeviceId>,
    /// The island of each rank.
    islands: Vec<u32>,
    routes: FxHashMap<(DeviceId, DeviceId), Option<Rc<Route>>>,
}

/// A route between two GPUs.
struct Route {
    kind: PathType,
    is_nvlink: bool,
    /// Its rate without other traffic.
    bytes_per_second: u64,
    /// The bundles of links along the route.
    bundles: Vec<Bundle>,
    /// The first bundle into a network switch, and the first bundle out of the last one.
    at_switch: (usize, usize),
}

/// Parallel links that share a load, each with its rate.
type Bundle = Vec<((DeviceId, DeviceId), u64)>;

/// The load of a link, in parts of a chunk.
#[derive(Clone, Copy, Default)]
struct Load {
    inside: u128,
    across: u128,
    rate: u64,
}

/// Parts of a second, for times that are sums of fractions.
const SCALE: u128 = 1 << 60;
/// Parts of a chunk, so that bundles can share one.
const PARTS: u128 = 1 << 20;

impl<'p, 'f> Loads<'p, 'f> {
    pub(super) fn new(
        paths: &'p Paths<'f>,
        carried: &'p Carried,
        one_way: bool,
        gpus: Vec<DeviceId>,
        islands: Vec<u32>,
    ) -> Self {
        Self { paths, carried, one_way, gpus, islands, routes: FxHashMap::default() }
    }

    /// The rates of a plan.
    pub(super) fn sides(&mut self, usage: &Usage) -> Result<Sides, Unconnected> {
        let mut tally = Tally::new(self.gpus.len());
        for (&(from, to), &chunks) in &usage.pairs {
            let (a, b) = (self.gpus[from as usize], self.gpus[to as usize]);
            let route = self.route(a, b).ok_or(Unconnected(a, b))?;
            let same = self.islands[from as usize] == self.islands[to as usize];
            tally.add(&route.bundles, chunks, same);
            tally.note(&route, same);
            let (source, target) = match same {
                true => (from, to),
                false => (self.islands[from as usize], self.islands[to as usize]),
            };
            tally.moved(same, source, target, chunks);
        }
        for (&rank, &(out, into)) in &usage.nvswitch {
            let (to, from) = self.port(self.gpus[rank as usize]);
            tally.add(&[to], out, true);
            tally.add(&[from], into, true);
            tally.moved(true, rank, rank, 0);
            tally.ranks[rank as usize].0 += out;
            tally.ranks[rank as usize].1 += into;
            tally.inside.get_or_insert((Medium::GpuLinks, true));
        }
        for (&(rank, other), &(out, into)) in &usage.network {
            let (a, b) = (self.gpus[rank as usize], self.gpus[other as usize]);
            let (there, back) =
                (self.route(a, b).ok_or(Unconnected(a, b))?, self.route(b, a).ok_or(Unconnected(b, a))?);
            tally.add(&there.bundles[..there.at_switch.0], out, false);
            tally.add(&back.bundles[back.at_switch.1..], into, false);
            tally.note(&there, false);
            let island = self.islands[rank as usize] as usize;
            tally.islands[island].0 += out;
            tally.islands[island].1 += into;
        }
        // Lanes with the same steps in peer memory access the same peer at the same time and share its links. Lanes that send
        // messages drift apart, because messages wait in FIFOs.
        let mut alike: BTreeMap<_, u128> = BTreeMap::new();
        for serial in &usage.serial {
            let lanes = alike.entry(serial).or_default();
            *lanes = if usage.reaches_in { *lanes + 1 } else { 1 };
        }
        for (serial, lanes) in alike {
            let mut time = (0, 0);
            for (pairs, times) in serial {
                let slowest = pairs.iter().filter_map(|&(from, to)| {
                    let (a, b) = (self.gpus[from as usize], self.gpus[to as usize]);
                    let across = self.islands[from as usize] != self.islands[to as usize];
                    Some((self.route(a, b)?.bytes_per_second, !across))
                });
                let Some((rate, inside)) = slowest.min() else { continue };
                let taken = lanes * u128::from(*times) * SCALE / u128::from(rate.max(1));
                *(if inside { &mut time.0 } else { &mut time.1 }) += taken;
            }
            if time.0 + time.1 > tally.serial.0 + tally.serial.1 {
                tally.serial = time;
            }
        }
        // Lanes that serve one peer after the other meet on links, but not in every step, since they drift apart: half of both.
        let (inside, across) = self.in_rounds(usage);
        if inside + across > tally.serial.0 + tally.serial.1 {
            tally.serial = ((tally.serial.0 + inside) / 2, (tally.serial.1 + across) / 2);
        }
        Ok(tally.sides())
    }

    /// The time of a chunk of each step, inside and across, if all lanes take their steps together: each step takes as long as its most
    /// loaded link.
    fn in_rounds(&mut self, usage: &Usage) -> (u128, u128) {
        let mut time = (0, 0);
        for (pairs, repeated) in &usage.rounds {
            let mut links: FxHashMap<(DeviceId, DeviceId), (u128, u64, bool)> = FxHashMap::default();
            for (&(from, to), &chunks) in pairs {
                let Some(route) = self.route(self.gpus[from as usize], self.gpus[to as usize]) else {
                    continue;
                };
                let inside = self.islands[from as usize] == self.islands[to as usize];
                for bundle in &route.bundles {
                    let all: u128 = bundle.iter().map(|(_, rate)| u128::from(*rate)).sum();
                    for (link, rate) in bundle {
                        let load = links.entry(*link).or_insert((0, *rate, true));
                        load.0 += u128::from(chunks) * PARTS * u128::from(*rate) / all.max(1);
                        load.2 &= inside;
                    }
                }
            }
            let slowest = links
                .values()
                .map(|(load, rate, inside)| (load * (SCALE / PARTS) / u128::from((*rate).max(1)), *inside));
            let Some((taken, inside)) = slowest.max() else { continue };
            *(if inside { &mut time.0 } else { &mut time.1 }) += taken * u128::from(*repeated);
        }
        time
    }

    fn route(&mut self, from: DeviceId, to: DeviceId) -> Option<Rc<Route>> {
        let (paths, carried, one_way) = (self.paths, self.carried, self.one_way);
        let route = || Route::of(paths, carried, one_way, from, to).map(Rc::new);
        self.routes.entry((from, to)).or_insert_with(route).clone()
    }

    /// The links from a GPU to its NVSwitches, and back.
    fn port(&self, gpu: DeviceId) -> (Bundle, Bundle) {
        let fabric = self.paths.fabric();
        let to_switch = fabric.links_from(gpu).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        let rate = |link| self.carried.on(fabric, link, self.one_way);
        let out: Bundle = to_switch.map(|link| ((gpu, link.target), rate(link))).collect();
        let back = out.iter().map(|((gpu, switch), rate)| ((*switch, *gpu), *rate)).collect();
        (out, back)
    }
}

impl Route {
    fn of(paths: &Paths<'_>, carried: &Carried, one_way: bool, from: DeviceId, to: DeviceId) -> Option<Self> {
        let fabric = paths.fabric();
        let route = paths.route_of_data(from, to);
        if route.path.kind == PathType::Dis {
            return None;
        }
        let is_switch = |station: &Vec<DeviceId>| {
            station.iter().any(|id| matches!(fabric.device(*id).kind, DeviceKind::NetSwitch(_)))
        };
        let at_switch = (
            route.stations.iter().position(is_switch).unwrap_or(route.stations.len() - 1),
            route.stations.iter().rposition(is_switch).unwrap_or(0),
        );
        let mut is_nvlink = true;
        let mut bundles = Vec::new();
        for pair in route.stations.windows(2) {
            let links = pair[0].iter().flat_map(|id| fabric.links_from(*id));
            let mut bundle = Bundle::new();
            for link in links.filter(|link| pair[1].contains(&link.target)) {
                is_nvlink &= matches!(fabric.spec(link).kind, LinkKind::NvLink { .. });
                bundle.push(((link.source, link.target), carried.on(fabric, link, one_way)));
            }
            // A bundle has one kind of link: GPUs with NVLinks do not use PCIe beside them.
            bundle.sort_unstable();
            if bundle.iter().all(|(_, rate)| *rate == 0) {
                return None;
            }
            bundles.push(bundle);
        }
        let rate = |bundle: &Bundle| bundle.iter().map(|(_, rate)| *rate).fold(0, u64::saturating_add);
        let bytes_per_second = bundles.iter().map(rate).min()?;
        Some(Self { kind: route.path.kind, is_nvlink, bytes_per_second, bundles, at_switch })
    }
}

/// The load of one plan.
struct Tally {
    links: FxHashMap<(DeviceId, DeviceId), Load>,
    /// Chunks that each rank sends and receives inside its island, and that each island sends and receives.
    ranks: Vec<(u64, u64)>,
    islands: Vec<(u64, u64)>,
    inside: Option<(Medium, bool)>,
    across: Option<(Medium, bool)>,
    /// The time of the slowest lane for a chunk of each of its steps, inside and across.
    serial: (u128, u128),
}

impl Tally {
    fn new(ranks: usize) -> Self {
        Self {
            links: FxHashMap::default(),
            ranks: vec![(0, 0); ranks],
            islands: vec![(0, 0); ranks],
            inside: None,
            across: None,
            serial: (0, 0),
        }
    }

    fn add(&mut self, bundles: &[Bundle], chunks: u64, inside: bool) {
        for bundle in bundles {
            let all: u128 = bundle.iter().map(|(_, rate)| u128::from(*rate)).sum();
            for (link, rate) in bundle {
                let part = u128::from(chunks) * PARTS * u128::from(*rate) / all.max(1);
                let load = self.links.entry(*link).or_default();
                load.rate = *rate;
                *(if inside { &mut load.inside } else { &mut load.across }) += part;
            }
        }
    }

    fn note(&mut self, route: &Route, inside: bool) {
        let medium = match route.kind {
            PathType::Nvl | PathType::Nvb => Medium::GpuLinks,
            PathType::Net => Medium::Network,
            _ => Medium::Pcie,
        };
        let side = if inside { &mut self.inside } else { &mut self.across };
        let (worst, nvlink) = side.unwrap_or((medium, true));
        *side = Some((worst.max(medium), nvlink && route.is_nvlink));
    }

    fn moved(&mut self, inside: bool, source: u32, target: u32, chunks: u64) {
        let ends = if inside { &mut self.ranks } else { &mut self.islands };
        ends[source as usize].0 += chunks;
        ends[target as usize].1 += chunks;
    }

    fn sides(&self) -> Sides {
        let side =
            |seen: Option<(Medium, bool)>, ends: &[(u64, u64)], own: fn(&Load) -> u128, taken: u128| {
                let (medium, is_nvlink) = seen?;
                let chunks = ends.iter().map(|(out, into)| *out.max(into)).max().unwrap_or(0);
                // Both sides share the rate of a link that both use.
                let loaded = self.links.values().filter(|load| own(load) > 0);
                let pace = |load: &Load| {
                    let most = u128::from(chunks) * PARTS * u128::from(load.rate);
                    u64::try_from(most / (load.inside + load.across).max(1)).unwrap_or(u64::MAX)
                };
                let serial = (u128::from(chunks) * SCALE).checked_div(taken);
                let serial_bytes_per_second = serial.map(|rate| u64::try_from(rate).unwrap_or(u64::MAX));
                let bytes_per_second = loaded.map(pace).min();
                Some(Side { medium, is_nvlink, bytes_per_second, serial_bytes_per_second })
            };
        Sides {
            inside: side(self.inside, &self.ranks, |load| load.inside, self.serial.0),
            across: side(self.across, &self.islands, |load| load.across, self.serial.1),
        }
    }
}
