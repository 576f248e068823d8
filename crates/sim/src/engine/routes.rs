//! A cache of routes. Clusters are regular: a route between two devices is reused, translated to other islands, for the same two places
//! of islands with the same shape.

use rustc_hash::FxHashMap;
use weftlink_fabric::paths::island::Place;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, PathType, Paths};

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
            let switches = island.members.iter().filter_map(|member| switch_of(paths, *member)).collect();
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
        let route = self.paths.route(from, to);
        let route = Route { path: route.path.kind, stations: route.stations };
        match route.path {
            PathType::Dis => None,
            PathType::Net => Some(self.with_assigned_nics(&route).unwrap_or(route)),
            _ => Some(route),
        }
    }

    /// The same route over the NICs assigned to its GPUs; `None` if nothing changes. Where several NICs are equally near, the shortest path
    /// always takes the first; libraries instead distribute NICs evenly over the GPUs.
    fn with_assigned_nics(&self, route: &Route) -> Option<Route> {
        let fabric = self.paths.fabric();
        let is_nic = |station: &Vec<DeviceId>| matches!(fabric.device(station[0]).kind, DeviceKind::Nic(_));
        let first = route.stations.iter().position(is_nic)?;
        let last = route.stations.iter().rposition(is_nic)?;
        if first == 0 || first >= last || last + 1 >= route.stations.len() {
            return None;
        }
        let (before, behind) = (&route.stations[..first], &route.stations[last + 1..]);
        let back = nics_of(self.paths, behind.iter(), route.stations[last][0])?;
        let is_gpu = |station: &Vec<DeviceId>| matches!(fabric.device(station[0]).kind, DeviceKind::Gpu(_));
        // Data that passes through another GPU does so to leave on the rail on which it arrives.
        let is_relayed = before.iter().skip(1).any(is_gpu);
        let on_rail = if is_relayed { self.nics_on_rail(before.last()?[0], &back) } else { None };
        let out = match on_rail {
            Some(out) => out,
            None => nics_of(self.paths, before.iter().rev(), route.stations[first][0])?,
        };
        if out == route.stations[first] && back == route.stations[last] {
            return None;
        }
        let switches = |nics: &[DeviceId]| -> Option<Vec<DeviceId>> {
            let mut all: Vec<DeviceId> =
                nics.iter().map(|nic| switch_of(self.paths, *nic)).collect::<Option<_>>()?;
            all.sort_unstable();
            all.dedup();
            Some(all)
        };
        let (switches_out, switches_back) = (switches(&out)?, switches(&back)?);
        let mut across: Vec<Vec<DeviceId>> = between_switches(fabric, switches_out[0], switches_back[0])?
            .into_iter()
            .map(|switch| vec![switch])
            .collect();
        if across.len() == 1 && switches_out != switches_back {
            return None;
        }
        let end = across.len() - 1;
        across[end] = switches_back;
        across[0] = switches_out;
        let mut stations = before.to_vec();
        if let (true, Some((at, relay))) = (is_relayed, self.relay_beside(before, &out)) {
            stations[at] = vec![relay];
        }
        stations.push(out);
        stations.append(&mut across);
        stations.push(back);
        stations.extend_from_slice(behind);
        Some(Route { path: route.path, stations })
    }

    /// The GPU beside a NIC through which data reaches it, and the position of its station: of several GPUs below a switch, that to which
    /// the NIC is assigned.
    fn relay_beside(&self, before: &[Vec<DeviceId>], out: &[DeviceId]) -> Option<(usize, DeviceId)> {
        let fabric = self.paths.fabric();
        let below = |wanted: fn(&DeviceKind) -> bool| -> Vec<DeviceId> {
            let links = before.last().map_or(&[][..], |place| fabric.links_from(place[0]));
            links.iter().map(|link| link.target).filter(|id| wanted(&fabric.device(*id).kind)).collect()
        };
        let gpus = below(|kind| matches!(kind, DeviceKind::Gpu(_)));
        let nics = below(|kind| matches!(kind, DeviceKind::Nic(_)));
        let at = before.iter().rposition(|station| gpus.contains(&station[0])).filter(|at| *at > 0)?;
        let nic = nics.iter().position(|nic| *nic == out[0])?;
        let relay = *gpus.get(nic * gpus.len() / nics.len())?;
        let from = before[at - 1].iter().flat_map(|id| fabric.links_from(*id));
        from.into_iter().any(|link| link.target == relay).then_some((at, relay))
    }

    /// The NICs below a place that are connected to the same switches as others, one for each.
    fn nics_on_rail(&self, place: DeviceId, others: &[DeviceId]) -> Option<Vec<DeviceId>> {
        let fabric = self.paths.fabric();
        let below = || {
            let targets = fabric.links_from(place).iter().map(|link| link.target);
            targets.filter(|id| matches!(fabric.device(*id).kind, DeviceKind::Nic(_)))
        };
        let like = |other: &DeviceId| {
            let switch = switch_of(self.paths, *other)?;
            below().find(|nic| switch_of(self.paths, *nic) == Some(switch))
        };
        others.iter().map(like).collect()
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
                switch_of(self.paths, fixed(template.stations[at.checked_sub(1)?].get(number)?)?)
            }
            Spot::SwitchAfter => switch_of(self.paths, fixed(template.stations.get(at + 1)?.get(number)?)?),
            other => fixed(other),
        };
        let station = |(at, spots): (usize, &Vec<Spot>)| {
            spots.iter().enumerate().map(|(number, spot)| resolve(at, number, spot)).collect()
        };
        let stations = template.stations.iter().enumerate().map(station).collect::<Option<_>>()?;
        Some(Route { path: template.path, stations })
    }
}

/// The NICs assigned to a GPU, among those beside the route's NIC. `stations` lead from there to the GPU.
fn nics_of<'s>(
    paths: &Paths<'_>,
    mut stations: impl Iterator<Item = &'s Vec<DeviceId>>,
    nic: DeviceId,
) -> Option<Vec<DeviceId>> {
    let fabric = paths.fabric();
    let place = *stations.next()?.first()?;
    let kind = |id: DeviceId| {
        let links = fabric.links_from(id).iter();
        links.map(|link| fabric.spec(link).kind).find(|kind| matches!(kind, LinkKind::Network { .. }))
    };
    let below = |is_wanted: &dyn Fn(DeviceId) -> bool| -> Vec<DeviceId> {
        let links = fabric.links_from(place).iter().map(|link| link.target);
        links.filter(|id| is_wanted(*id)).collect()
    };
    let is_gpu = |id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::Gpu(_));
    let is_like =
        |id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::Nic(_)) && kind(id) == kind(nic);
    let (gpus, nics) = (below(&is_gpu), below(&is_like));
    let gpu = stations.find_map(|station| station.iter().copied().find(|id| is_gpu(*id)))?;
    let number = gpus.iter().position(|other| *other == gpu)?;
    let from = number * nics.len() / gpus.len();
    let to = ((number + 1) * nics.len() / gpus.len()).max(from + 1);
    nics.get(from..to).map(<[DeviceId]>::to_vec)
}

/// The shortest way from one network switch to another, without passing a host.
fn between_switches(fabric: &Fabric, from: DeviceId, to: DeviceId) -> Option<Vec<DeviceId>> {
    let mut reached: Vec<(DeviceId, usize)> = vec![(from, 0)];
    let mut next = 0;
    while let Some((at, _)) = reached.get(next).copied() {
        if at == to {
            let mut way = vec![at];
            let mut back = next;
            while back > 0 {
                back = reached[back].1;
                way.push(reached[back].0);
            }
            way.reverse();
            return Some(way);
        }
        for link in fabric.links_from(at) {
            let is_switch = matches!(fabric.device(link.target).kind, DeviceKind::NetSwitch(_));
            if is_switch && reached.iter().all(|(known, _)| *known != link.target) {
                reached.push((link.target, next));
            }
        }
        next += 1;
    }
    None
}

/// The network switch that a device is connected to; `None` if it is connected to none or to several.
fn switch_of(paths: &Paths<'_>, id: DeviceId) -> Option<DeviceId> {
    let fabric = paths.fabric();
    let mut switches = fabric.links_from(id).iter().filter(|link| {
        matches!(fabric.spec(link).kind, LinkKind::Network { .. })
            && matches!(fabric.device(link.target).kind, DeviceKind::NetSwitch(_))
    });
    let first = switches.next()?.target;
    switches.all(|other| other.target == first).then_some(first)
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
}
