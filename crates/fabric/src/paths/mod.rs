//! Paths between any two devices.
//!
//! [`Paths`] computes them for a fabric. Paths inside an island are computed once per shape of island (see [`island`]),
//! paths between islands once per pair of network switches, so a matrix of 9,216 GPUs costs little more than that of one
//! rack.

mod access;
mod classes;
pub mod island;
mod kind;
mod local;
mod network;
mod nics;
mod nvlink;
mod shape;
mod width;

use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::figure::Nanoseconds;
use crate::id::DeviceId;

pub use classes::{PairClass, worse};
use island::{Islands, Place};
pub use kind::PathType;
use network::{Plug, SwitchGraph};
use shape::Shape;
pub use width::Width;

/// A path between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    /// NCCL's type.
    pub kind: PathType,
    /// Links from source to target.
    pub hops: u32,
    /// The width at the narrowest point.
    pub width: Width,
}

impl Path {
    const LOCAL: Self = Self { kind: PathType::Loc, hops: 0, width: Width::UNLIMITED };
    const NONE: Self = Self { kind: PathType::Dis, hops: 0, width: Width::NONE };

    /// The cell of a matrix: `NV18`, `PIX`, `NET`, and `X` for the device itself, as `nvidia-smi topo -m` prints them.
    pub fn cell(&self) -> String {
        match self.kind {
            PathType::Loc => "X".to_owned(),
            PathType::Nvl => format!("NV{}", self.width.links),
            kind => kind.to_string(),
        }
    }

    fn then(self, other: Self) -> Self {
        Self {
            kind: self.kind.max(other.kind),
            hops: self.hops + other.hops,
            width: self.width.then(other.width),
        }
    }
}

/// The paths of a fabric.
#[derive(Debug)]
pub struct Paths<'a> {
    fabric: &'a Fabric,
    islands: Islands,
    /// By number of the shape.
    shapes: Vec<Shape>,
    network: SwitchGraph,
}

/// A path and the devices it passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The path as a whole.
    pub path: Path,
    /// Stations in order, from source to target. At a station of several devices, traffic spreads over all of them.
    pub stations: Vec<Vec<DeviceId>>,
}

/// A way out of a device's island: the path to a NIC, and the NIC's attachment to the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Exit {
    nic: Option<DeviceId>,
    path: Path,
    plug: Plug,
}

/// Whether data leaves an island or arrives. Only data that leaves may go through another GPU to its NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    In,
}

impl<'a> Paths<'a> {
    /// Prepares the paths of a fabric; each is computed on first use and cached.
    pub fn of(fabric: &'a Fabric) -> Self {
        let islands = Islands::of(fabric);
        let mut shapes: Vec<Shape> = Vec::with_capacity(islands.shapes());
        for island in islands.all() {
            match shapes.get_mut(island.shape) {
                Some(shape) => shape.count += 1,
                None => shapes.push(Shape::of(fabric, &island.members)),
            }
        }
        Self { fabric, islands, shapes, network: SwitchGraph::of(fabric) }
    }

    /// The fabric.
    pub fn fabric(&self) -> &'a Fabric {
        self.fabric
    }

    /// The islands of the fabric.
    pub fn islands(&self) -> &Islands {
        &self.islands
    }

    /// The best path from one device to another.
    pub fn path(&self, source: DeviceId, target: DeviceId) -> Path {
        if let Some(path) = self.local_path(source, target) {
            return path;
        }
        let (out, back) = (self.exits(source, Direction::Out), self.exits(target, Direction::In));
        self.best_exits(&out, &back).map_or(Path::NONE, |(path, _, _)| path)
    }

    /// The paths between all pairs of some devices, row by row.
    pub fn matrix(&self, devices: &[DeviceId]) -> Vec<Vec<Path>> {
        let exits =
            |direction| devices.iter().map(|id| self.exits(*id, direction)).collect::<Vec<Vec<Exit>>>();
        let (out, back) = (exits(Direction::Out), exits(Direction::In));
        let path = |a: usize, b: usize| {
            let local = self.local_path(devices[a], devices[b]);
            local.or_else(|| Some(self.best_exits(&out[a], &back[b])?.0)).unwrap_or(Path::NONE)
        };
        (0..devices.len()).map(|a| (0..devices.len()).map(|b| path(a, b)).collect()).collect()
    }

    /// The width of all links of a GPU to its GPU fabric.
    pub fn gpu_fabric_out(&self, gpu: DeviceId) -> Width {
        self.islands.place(gpu).map_or(Width::NONE, |place| self.shape(place).gpu_fabric_out(place.local))
    }

    /// The path and the stations it passes.
    pub fn route(&self, source: DeviceId, target: DeviceId) -> Route {
        let path = self.path(source, target);
        let mut stations = vec![vec![source]];
        match path.kind {
            PathType::Loc | PathType::Dis => {}
            PathType::Net => {
                let (ways_out, ways_in) =
                    (self.exits(source, Direction::Out), self.exits(target, Direction::In));
                if let Some((_, out, back)) = self.best_exits(&ways_out, &ways_in) {
                    self.local_stations(source, out.nic, &mut stations);
                    let switches = self.network.route(out.plug.switch, back.plug.switch);
                    stations.extend(switches.iter().map(|switch| vec![self.network.device(*switch)]));
                    if let Some(nic) = back.nic {
                        stations.push(vec![nic]);
                        self.local_stations(nic, Some(target), &mut stations);
                    }
                }
                stations.dedup();
            }
            _ => self.local_stations(source, Some(target), &mut stations),
        }
        if stations.last() != Some(&vec![target]) {
            stations.push(vec![target]);
        }
        Route { path, stations }
    }

    /// The latency of a route's links, if it is known for all of them. The figures for NVLink and PCIe cover a whole
    /// stretch from end device to end device, including switches; those for the network are per switch port.
    pub fn latency(&self, route: &Route) -> Option<Nanoseconds> {
        let mut total = 0_u64;
        let mut before = None;
        for pair in route.stations.windows(2) {
            let links = pair[0].iter().flat_map(|from| self.fabric.links_from(*from));
            let specs =
                links.filter(|link| pair[1].contains(&link.target)).map(|link| self.fabric.spec(link));
            let spec = specs.max_by_key(|spec| spec.best().map(|figure| figure.value))?;
            let stretch = std::mem::discriminant(&spec.kind);
            if before != Some(stretch) || island::is_network(spec.kind) {
                total = total.saturating_add(spec.latency.as_ref()?.value.0);
            }
            // A GPU that relays data ends one stretch and starts the next.
            let at_gpu = matches!(self.fabric.device(pair[1][0]).kind, DeviceKind::Gpu(_));
            before = Some(stretch).filter(|_| !at_gpu);
        }
        Some(Nanoseconds(total))
    }

    fn shape(&self, place: Place) -> &Shape {
        &self.shapes[self.islands.all()[place.island as usize].shape]
    }

    fn local_path(&self, source: DeviceId, target: DeviceId) -> Option<Path> {
        if source == target {
            return Some(Path::LOCAL);
        }
        let (a, b) = (self.islands.place(source)?, self.islands.place(target)?);
        if a.island == b.island { self.shape(a).path(a.local, b.local) } else { None }
    }

    /// Appends the stations after `source` on its local path to a target.
    fn local_stations(&self, source: DeviceId, target: Option<DeviceId>, stations: &mut Vec<Vec<DeviceId>>) {
        let (Some(target), Some(place)) = (target, self.islands.place(source)) else {
            return;
        };
        let Some(target) = self.islands.place(target) else {
            return;
        };
        let members = &self.islands.all()[place.island as usize].members;
        let local = self.shape(place).stations(place.local, target.local);
        stations
            .extend(local.into_iter().map(|station| station.iter().map(|i| members[*i as usize]).collect()));
    }

    /// The ways from a device to the network: the NICs of its own host.
    fn exits(&self, device: DeviceId, direction: Direction) -> Vec<Exit> {
        if self.islands.place(device).is_none() {
            let Some(switch) = self.network.number(device) else { return Vec::new() };
            return vec![Exit {
                nic: None,
                path: Path::LOCAL,
                plug: Plug { switch, width: Width::UNLIMITED, cables: 0 },
            }];
        }
        let Some(place) = self.islands.place(device) else {
            return Vec::new();
        };
        let host = self.fabric.device(device).host;
        let is_nic = matches!(self.fabric.device(device).kind, DeviceKind::Nic(_));
        let members = &self.islands.all()[place.island as usize].members;
        let mut exits = Vec::new();
        for &nic in members {
            let candidate = self.fabric.device(nic);
            // A NIC is its own only exit.
            let other_nic = is_nic && nic != device;
            if !matches!(candidate.kind, DeviceKind::Nic(_)) || candidate.host != host || other_nic {
                continue;
            }
            let (from, to) = if direction == Direction::Out { (device, nic) } else { (nic, device) };
            let Some(path) = self.local_path(from, to) else { continue };
            exits.extend(self.network.plugs(self.fabric, nic).map(|plug| Exit {
                nic: Some(nic),
                path,
                plug,
            }));
        }
        exits
    }

    /// The widest way out of one island and into another; ties go to the fewest switches, then the fewest links.
    fn best_exits<'e>(&self, out: &'e [Exit], back: &'e [Exit]) -> Option<(Path, &'e Exit, &'e Exit)> {
        let ways = out.iter().flat_map(|exit| back.iter().map(move |entry| (exit, entry)));
        let way = |(exit, entry): (&'e Exit, &'e Exit)| {
            let between = self.network.between(exit.plug.switch, entry.plug.switch)?;
            let network = Path {
                kind: PathType::Net,
                hops: between.switches.len() as u32 - 1 + exit.plug.cables + entry.plug.cables,
                width: exit.plug.width.then(between.width).then(entry.plug.width),
            };
            Some((exit.path.then(network).then(entry.path), network.hops, exit, entry))
        };
        let best = ways.filter_map(way).min_by_key(|(path, switches, exit, entry)| {
            (std::cmp::Reverse(path.width.effective), *switches, path.hops, exit.nic, entry.nic)
        })?;
        Some((best.0, best.2, best.3))
    }
}
