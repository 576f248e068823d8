//! The NICs that data of a collective takes: where several are equally near, they are distributed over the GPUs beside them.

use super::{PathType, Paths, Route};
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::DeviceId;
use crate::link::LinkKind;

impl Paths<'_> {
    /// The route that data of a collective takes from one GPU to another: like [`Paths::route`], but through the NICs that libraries assign
    /// to the two GPUs.
    pub fn route_of_data(&self, source: DeviceId, target: DeviceId) -> Route {
        let route = self.route(source, target);
        match route.path.kind {
            PathType::Net => self.with_assigned_nics(&route).unwrap_or(route),
            _ => route,
        }
    }

    /// The same route over the NICs assigned to its GPUs; `None` if nothing changes. Where several NICs are equally near, the shortest path
    /// always takes the first; libraries instead distribute NICs evenly over the GPUs.
    fn with_assigned_nics(&self, route: &Route) -> Option<Route> {
        let fabric = self.fabric;
        let is_nic = |station: &Vec<DeviceId>| matches!(fabric.device(station[0]).kind, DeviceKind::Nic(_));
        let first = route.stations.iter().position(is_nic)?;
        let last = route.stations.iter().rposition(is_nic)?;
        if first == 0 || first >= last || last + 1 >= route.stations.len() {
            return None;
        }
        let (before, behind) = (&route.stations[..first], &route.stations[last + 1..]);
        let back = nics_of(self, behind.iter(), route.stations[last][0])?;
        let is_gpu = |station: &Vec<DeviceId>| matches!(fabric.device(station[0]).kind, DeviceKind::Gpu(_));
        // Data that passes through another GPU does so to leave on the rail on which it arrives.
        let is_relayed = before.iter().skip(1).any(is_gpu);
        let on_rail = if is_relayed { self.nics_on_rail(before.last()?[0], &back) } else { None };
        let out = match on_rail {
            Some(out) => out,
            None => nics_of(self, before.iter().rev(), route.stations[first][0])?,
        };
        if out == route.stations[first] && back == route.stations[last] {
            return None;
        }
        let switches = |nics: &[DeviceId]| -> Option<Vec<DeviceId>> {
            let mut all: Vec<DeviceId> =
                nics.iter().map(|nic| self.switch_of(*nic)).collect::<Option<_>>()?;
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
        let fabric = self.fabric;
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
        let fabric = self.fabric;
        let below = || {
            let targets = fabric.links_from(place).iter().map(|link| link.target);
            targets.filter(|id| matches!(fabric.device(*id).kind, DeviceKind::Nic(_)))
        };
        let like = |other: &DeviceId| {
            let switch = self.switch_of(*other)?;
            below().find(|nic| self.switch_of(*nic) == Some(switch))
        };
        others.iter().map(like).collect()
    }

    /// The network switch that a device is connected to; `None` if it is connected to none or to several.
    pub fn switch_of(&self, id: DeviceId) -> Option<DeviceId> {
        let fabric = self.fabric;
        let mut switches = fabric.links_from(id).iter().filter(|link| {
            matches!(fabric.spec(link).kind, LinkKind::Network { .. })
                && matches!(fabric.device(link.target).kind, DeviceKind::NetSwitch(_))
        });
        let first = switches.next()?.target;
        switches.all(|other| other.target == first).then_some(first)
    }
}

/// The NICs assigned to a GPU, among those beside the route's NIC. `stations` lead from there to the GPU.
fn nics_of<'s>(
    paths: &Paths<'_>,
    mut stations: impl Iterator<Item = &'s Vec<DeviceId>>,
    nic: DeviceId,
) -> Option<Vec<DeviceId>> {
    let fabric = paths.fabric;
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
