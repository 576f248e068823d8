//! Routes by the thousand: clusters repeat themselves, so a route that was found between two devices is found again, moved to other
//! islands, wherever the same two places of like islands are asked for.

use rustc_hash::FxHashMap;
use weftlink_fabric::paths::island::Place;
use weftlink_fabric::{DeviceId, DeviceKind, LinkKind, PathType, Paths};

/// A path and the devices it passes, those side by side together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) path: PathType,
    pub(super) stations: Vec<Vec<DeviceId>>,
}

pub(super) struct Routes<'f> {
    paths: &'f Paths<'f>,
    /// For each island, a number that those share whose NICs are plugged into the same switches.
    units: Vec<u32>,
    found: FxHashMap<Question, Option<Template>>,
}

/// Shapes of two islands, places in them, whether they are one and whether they share their switches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Question {
    from: (usize, u32),
    to: (usize, u32),
    same: bool,
    same_unit: bool,
}

/// A way without the islands it was found in.
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
    /// The switch that the station before, or behind, is plugged into.
    PlugBefore,
    PlugBehind,
    /// A switch that all share.
    Above(DeviceId),
}

impl<'f> Routes<'f> {
    pub(super) fn new(paths: &'f Paths<'f>) -> Self {
        let mut numbers: FxHashMap<Vec<DeviceId>, u32> = FxHashMap::default();
        let mut units = Vec::new();
        for island in paths.islands().all() {
            let plugs = island.members.iter().filter_map(|member| plug(paths, *member)).collect();
            let next = numbers.len() as u32;
            units.push(*numbers.entry(plugs).or_insert(next));
        }
        Self { paths, units, found: FxHashMap::default() }
    }

    /// Whether two devices are in islands that share their switches.
    pub(super) fn same_unit(&self, from: DeviceId, to: DeviceId) -> bool {
        let unit = |id| self.paths.islands().place(id).map(|place| self.units[place.island as usize]);
        unit(from) == unit(to)
    }

    /// The way from one device to another; nothing if there is none.
    pub(super) fn way(&mut self, from: DeviceId, to: DeviceId) -> Option<Way> {
        let islands = self.paths.islands();
        let (Some(a), Some(b)) = (islands.place(from), islands.place(to)) else {
            return self.searched(from, to);
        };
        let shape = |place: Place| (islands.all()[place.island as usize].shape, place.local);
        let same_unit = self.units[a.island as usize] == self.units[b.island as usize];
        let question = Question { from: shape(a), to: shape(b), same: a.island == b.island, same_unit };
        if !self.found.contains_key(&question) {
            let template = self.searched(from, to).and_then(|way| self.template(&way, a, b));
            self.found.insert(question, template);
        }
        let template = self.found.get(&question).and_then(Option::as_ref);
        template.and_then(|template| self.moved(template, a, b)).or_else(|| self.searched(from, to))
    }

    fn searched(&self, from: DeviceId, to: DeviceId) -> Option<Way> {
        let route = self.paths.route(from, to);
        let way = Way { path: route.path.kind, stations: route.stations };
        match way.path {
            PathType::Dis => None,
            PathType::Net => Some(self.dealt_out(&way).unwrap_or(way)),
            _ => Some(way),
        }
    }

    /// The same way over the NICs that fall to its GPUs. Where several are as near, all GPUs beside them would take the first; libraries
    /// deal them out: as many to each GPU, or one to several. Nothing where there is no choice.
    fn dealt_out(&self, way: &Way) -> Option<Way> {
        let fabric = self.paths.fabric();
        let is_nic = |station: &Vec<DeviceId>| matches!(fabric.device(station[0]).kind, DeviceKind::Nic(_));
        let first = way.stations.iter().position(is_nic)?;
        let last = way.stations.iter().rposition(is_nic)?;
        if first == 0 || first >= last || last + 1 >= way.stations.len() {
            return None;
        }
        let (before, behind) = (&way.stations[..first], &way.stations[last + 1..]);
        let out = nics_of(self.paths, before.iter().rev(), way.stations[first][0])?;
        let back = nics_of(self.paths, behind.iter(), way.stations[last][0])?;
        if out == way.stations[first] && back == way.stations[last] {
            return None;
        }
        let between = self.paths.route(out[0], back[0]);
        if between.path.kind == PathType::Dis || between.stations.len() < 3 {
            return None;
        }
        let plugs = |nics: &[DeviceId]| -> Option<Vec<DeviceId>> {
            let mut all: Vec<DeviceId> =
                nics.iter().map(|nic| plug(self.paths, *nic)).collect::<Option<_>>()?;
            all.sort_unstable();
            all.dedup();
            Some(all)
        };
        let (plugs_out, plugs_back) = (plugs(&out)?, plugs(&back)?);
        let mut across = between.stations[1..between.stations.len() - 1].to_vec();
        if across.len() == 1 && plugs_out != plugs_back {
            return None;
        }
        let end = across.len() - 1;
        across[end] = plugs_back;
        across[0] = plugs_out;
        let mut stations = before.to_vec();
        stations.push(out);
        stations.append(&mut across);
        stations.push(back);
        stations.extend_from_slice(behind);
        Some(Way { path: way.path, stations })
    }

    fn template(&self, way: &Way, a: Place, b: Place) -> Option<Template> {
        let islands = self.paths.islands();
        let switches: Vec<usize> =
            (0..way.stations.len()).filter(|at| islands.place(way.stations[*at][0]).is_none()).collect();
        let spot = |at: usize, id: DeviceId| match islands.place(id) {
            Some(place) if place.island == a.island => Some(Spot::From(place.local)),
            Some(place) if place.island == b.island => Some(Spot::To(place.local)),
            Some(_) => None,
            None if Some(&at) == switches.first() => Some(Spot::PlugBefore),
            None if Some(&at) == switches.last() => Some(Spot::PlugBehind),
            None => Some(Spot::Above(id)),
        };
        let station = |(at, ids): (usize, &Vec<DeviceId>)| ids.iter().map(|id| spot(at, *id)).collect();
        let stations = way.stations.iter().enumerate().map(station).collect::<Option<_>>()?;
        Some(Template { path: way.path, stations })
    }

    /// A template in two islands; nothing where it does not fit.
    fn moved(&self, template: &Template, a: Place, b: Place) -> Option<Way> {
        let islands = self.paths.islands().all();
        let member = |island: u32, local: u32| islands[island as usize].members.get(local as usize).copied();
        let fixed = |spot: &Spot| match *spot {
            Spot::From(local) => member(a.island, local),
            Spot::To(local) => member(b.island, local),
            Spot::Above(id) => Some(id),
            Spot::PlugBefore | Spot::PlugBehind => None,
        };
        // NICs side by side are plugged in one by one, or all into one switch.
        let resolve = |at: usize, number: usize, spot: &Spot| match spot {
            Spot::PlugBefore => plug(self.paths, fixed(template.stations[at.checked_sub(1)?].get(number)?)?),
            Spot::PlugBehind => plug(self.paths, fixed(template.stations.get(at + 1)?.get(number)?)?),
            other => fixed(other),
        };
        let station = |(at, spots): (usize, &Vec<Spot>)| {
            spots.iter().enumerate().map(|(number, spot)| resolve(at, number, spot)).collect()
        };
        let stations = template.stations.iter().enumerate().map(station).collect::<Option<_>>()?;
        Some(Way { path: template.path, stations })
    }
}

/// The NICs that fall to a GPU, of those that hang where a route's NIC does. Stations lead from that place to the GPU.
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

/// The switch of the network that a device is plugged into; nothing if it is into none, or into several.
fn plug(paths: &Paths<'_>, id: DeviceId) -> Option<DeviceId> {
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
    fn moved_routes_are_those_that_a_search_finds() {
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
                    assert_eq!(routes.way(from, to), routes.searched(from, to), "{spec}: {from:?} to {to:?}");
                }
            }
        }
    }
}
