//! A cache of routes. Clusters are regular: a route between two devices is reused, translated to other islands, for the same two places
//! of islands with the same shape.

use rustc_hash::FxHashMap;
use weftlink_fabric::paths::island::Place;
use weftlink_fabric::{DeviceId, PathType, Paths};

/// A path and the devices along it; parallel devices form one station.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) path: PathType,
    pub(super) stations: Vec<Vec<DeviceId>>,
}

pub(super) struct Routes<'f> {
    paths: &'f Paths<'f>,
    /// For each island, its unit: islands whose NICs are connected to the same switches share one.
    units: Vec<u32>,
    found: FxHashMap<RouteKey, Option<Template>>,
}

/// Shapes and places of the two ends, whether they are in the same island, and whether in the same unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RouteKey {
    from: (usize, u32),
    to: (usize, u32),
    same: bool,
    same_unit: bool,
}

/// A route independent of its islands.
struct Template {
    path: PathType,
    stations: Vec<Vec<Spot>>,
}

#[derive(Clone, Copy)]
enum Spot {
    /// A place in the first island.
    From(u32),
    /// A place in the second.
    To(u32),
    /// The network switch of the previous station.
    SwitchBefore,
    /// The network switch of the next station.
    SwitchAfter,
    /// A switch that all islands share.
    Shared(DeviceId),
}

impl<'f> Routes<'f> {
    pub(super) fn new(paths: &'f Paths<'f>) -> Self {
        let mut numbers: FxHashMap<Vec<DeviceId>, u32> = FxHashMap::default();
        let mut units = Vec::new();
        for island in paths.islands().all() {
            let switches = island.members.iter().filter_map(|member| paths.switch_of(*member)).collect();
            let next = numbers.len() as u32;
            units.push(*numbers.entry(switches).or_insert(next));
        }
        Self { paths, units, found: FxHashMap::default() }
    }

    /// Whether two devices are in the same unit.
    pub(super) fn same_unit(&self, from: DeviceId, to: DeviceId) -> bool {
        let unit = |id| self.paths.islands().place(id).map(|place| self.units[place.island as usize]);
        unit(from) == unit(to)
    }

    /// The route from one device to another, if there is one.
    pub(super) fn route(&mut self, from: DeviceId, to: DeviceId) -> Option<Route> {
        let islands = self.paths.islands();
        let (Some(a), Some(b)) = (islands.place(from), islands.place(to)) else {
            return self.search(from, to);
        };
        let shape = |place: Place| (islands.all()[place.island as usize].shape, place.local);
        let same_unit = self.units[a.island as usize] == self.units[b.island as usize];
        let key = RouteKey { from: shape(a), to: shape(b), same: a.island == b.island, same_unit };
        if !self.found.contains_key(&key) {
            let template = self.search(from, to).and_then(|route| self.template(&route, a, b));
            self.found.insert(key, template);
        }
        let template = self.found.get(&key).and_then(Option::as_ref);
        template.and_then(|template| self.instantiate(template, a, b)).or_else(|| self.search(from, to))
    }

    fn search(&self, from: DeviceId, to: DeviceId) -> Option<Route> {
        let route = self.paths.route_of_data(from, to);
        (route.path.kind != PathType::Dis)
            .then_some(Route { path: route.path.kind, stations: route.stations })
    }

    fn template(&self, route: &Route, a: Place, b: Place) -> Option<Template> {
        let islands = self.paths.islands();
        let switches: Vec<usize> =
            (0..route.stations.len()).filter(|at| islands.place(route.stations[*at][0]).is_none()).collect();
        let spot = |at: usize, id: DeviceId| match islands.place(id) {
            Some(place) if place.island == a.island => Some(Spot::From(place.local)),
            Some(place) if place.island == b.island => Some(Spot::To(place.local)),
            Some(_) => None,
            None if Some(&at) == switches.first() => Some(Spot::SwitchBefore),
            None if Some(&at) == switches.last() => Some(Spot::SwitchAfter),
            None => Some(Spot::Shared(id)),
        };
        let station = |(at, ids): (usize, &Vec<DeviceId>)| ids.iter().map(|id| spot(at, *id)).collect();
        let stations = route.stations.iter().enumerate().map(station).collect::<Option<_>>()?;
        Some(Template { path: route.path, stations })
    }

    /// A template translated to two islands; `None` where it does not fit.
    fn instantiate(&self, template: &Template, a: Place, b: Place) -> Option<Route> {
        let islands = self.paths.islands().all();
        let member = |island: u32, local: u32| islands[island as usize].members.get(local as usize).copied();
        let fixed = |spot: &Spot| match *spot {
            Spot::From(local) => member(a.island, local),
            Spot::To(local) => member(b.island, local),
            Spot::Shared(id) => Some(id),
            Spot::SwitchBefore | Spot::SwitchAfter => None,
        };
        // Parallel NICs are connected to a switch each, or all to one switch.
        let resolve = |at: usize, number: usize, spot: &Spot| match spot {
            Spot::SwitchBefore => {
                self.paths.switch_of(fixed(template.stations[at.checked_sub(1)?].get(number)?)?)
            }
            Spot::SwitchAfter => self.paths.switch_of(fixed(template.stations.get(at + 1)?.get(number)?)?),
            other => fixed(other),
        };
        let station = |(at, spots): (usize, &Vec<Spot>)| {
            spots.iter().enumerate().map(|(number, spot)| resolve(at, number, spot)).collect()
        };
        let stations: Vec<Vec<_>> =
            template.stations.iter().enumerate().map(station).collect::<Option<_>>()?;
        // A missing cable leads its island over other switches.
        let fabric = self.paths.fabric();
        let is_linked = |pair: &[Vec<DeviceId>]| {
            pair[0].iter().any(|id| fabric.links_from(*id).iter().any(|link| pair[1].contains(&link.target)))
        };
        stations.windows(2).all(is_linked).then_some(Route { path: template.path, stations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_fabric::resolve;

    #[test]
    fn cached_routes_match_a_search() {
        for spec in [
            "40x hgx-h100 + 8x ndr",
            "70x hgx-a100 + 4x hdr, leaf-spine, oversubscribed 2:1",
            "3x p5",
            "2x gb200-nvl72 + 4x ndr",
            "3x hgx-a100 + 8x hdr",
        ] {
            let fabric = resolve(spec).unwrap();
            let paths = Paths::of(&fabric);
            let mut routes = Routes::new(&paths);
            let gpus = fabric.gpus();
            for from in (0..gpus.len()).step_by(13) {
                for to in (0..gpus.len()).step_by(7) {
                    let (from, to) = (gpus[from], gpus[to]);
                    assert_eq!(routes.route(from, to), routes.search(from, to), "{spec}: {from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn routes_avoid_missing_cables() {
        let fabric = resolve("40x hgx-h100 + 8x ndr").unwrap();
        let find = |name| fabric.find(name).unwrap();
        for missing in [("host0/nic0", "leaf0"), ("leaf0", "spine0")] {
            let fabric = fabric.without(&[(find(missing.0), find(missing.1))]);
            let paths = Paths::of(&fabric);
            let mut routes = Routes::new(&paths);
            let first = fabric.gpus()[0];
            for &other in fabric.gpus().iter().skip(8) {
                for (from, to) in [(first, other), (other, first)] {
                    let route = routes.route(from, to).unwrap();
                    for pair in route.stations.windows(2) {
                        let is_linked =
                            fabric.links_from(pair[0][0]).iter().any(|link| pair[1].contains(&link.target));
                        assert!(is_linked, "{missing:?}: {pair:?} from {from:?} to {to:?}");
                    }
                }
            }
        }
    }
}
