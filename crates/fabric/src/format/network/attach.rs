//! Gives the hosts of a network a type: copies of a fabric of one host, whose NICs are cabled as the file says.
//!
//! Where the file lists adapters, an adapter is the host type's NIC of the same name, or else the next InfiniBand NIC
//! without a name in the file; adapters that the host type lacks are added, spread over its GPUs.

use rustc_hash::FxHashSet;

use super::build::{Tree, bare_host, connect_cables, network_of, ports};
use super::{AttachError, GPUS_MAX, HostNetwork, NetworkHost, Wiring, hostlist, some_of};
use crate::catalog::links;
use crate::catalog::systems::chassis::{port_of, slot};
use crate::cluster::{ports_per_host, with_nics};
use crate::device::{DeviceKind, PciClass, Port};
use crate::fabric::{DEVICES_MAX, Fabric, FabricBuilder, FabricError};
use crate::format::excerpt;
use crate::id::{DeviceId, HostId};
use crate::link::Network;
use crate::nearest::did_you_mean;
use crate::nic_slots::NicSlots;
use crate::rate::Rate;
use crate::spec::{HostSpec, Nics, Oversubscription};

/// The cluster in which the hosts that the spec names are copies of `unit`.
pub(super) fn attach(
    network: &HostNetwork,
    name: &str,
    unit: &Fabric,
    spec: &HostSpec,
) -> Result<Fabric, AttachError> {
    if unit.hosts().len() != 1 || unit.devices().iter().any(|device| device.host.is_none()) {
        return Err(AttachError::NotOneHost { name: unit.name().to_owned(), hosts: unit.hosts().len() });
    }
    let is_member = members(network, spec)?;
    let count = is_member.iter().filter(|member| **member).count();
    let gpus = unit.gpus().len() as u64 * count as u64;
    if gpus > GPUS_MAX {
        return Err(AttachError::TooManyGpus { gpus });
    }
    // The builder checks again, with switches and further NICs.
    let devices = unit.devices().len().saturating_mul(count);
    if devices > DEVICES_MAX {
        let too_large = FabricError::TooLarge { what: "devices", found: devices, limit: DEVICES_MAX };
        return Err(AttachError::Fabric(too_large));
    }
    let mut builder = FabricBuilder::new(name);
    unit.notes().iter().chain(&network.notes).for_each(|note| builder.note(note));
    match &network.wiring {
        Wiring::Cables(cables) => {
            if spec.nics.is_some() {
                return Err(AttachError::InFile { what: "NICs of each host", part: "+ NICSx NETWORK" });
            }
            if spec.oversubscription.is_some() {
                return Err(AttachError::InFile { what: "cables", part: "oversubscribed" });
            }
            let mut copies = Copies::of(unit);
            let ports = ports(network, cables);
            let mut nics = Vec::with_capacity(network.hosts.len());
            for ((host, ports), is_member) in network.hosts.iter().zip(&ports).zip(&is_member) {
                nics.push(match is_member {
                    true => copies.add(&mut builder, host, ports)?,
                    false => bare_host(&mut builder, host, ports),
                });
            }
            connect_cables(&mut builder, network, cables, &nics);
            copies.notes(&mut builder, network, spec.members.is_none());
        }
        Wiring::Tree { leaves, parents } => {
            let unit = &with_known_nics(unit, spec.nics)?;
            let ports = ports_per_host(unit).into_iter().next().unwrap_or_default();
            let kind = ports.first().map(|(_, kind)| *kind);
            let cable = kind.and_then(network_of).map_or_else(
                || links::network(Network::Unknown, 0),
                |(network, gbit)| links::network(network, gbit),
            );
            let cabled: Vec<DeviceId> = match kind {
                Some(kind) => ports.iter().filter(|(_, other)| *other == kind).map(|(nic, _)| *nic).collect(),
                None => infiniband_nics(unit),
            };
            let mut nics: Vec<Vec<DeviceId>> = Vec::with_capacity(network.hosts.len());
            for ((host, leaves), is_member) in network.hosts.iter().zip(leaves).zip(&is_member) {
                nics.push(match is_member {
                    true => {
                        let first = builder.append(unit, |_, _| host.name.clone());
                        cabled.iter().map(|nic| DeviceId(nic.0 + first.0)).collect()
                    }
                    false => bare_host(&mut builder, host, &vec![Vec::new(); leaves.len()]),
                });
            }
            let ratio = spec.oversubscription.unwrap_or(Oversubscription::NONE);
            let tree = Tree { leaves, parents, cable, ratio: Some(ratio) };
            tree.connect(&mut builder, network, &nics);
            let uplinks = match spec.oversubscription {
                None => {
                    "and switches have as much bandwidth up as down; if leaf switches have less, add \", oversubscribed 2:1\""
                }
                Some(_) => "and leaf switches are oversubscribed as given",
            };
            builder.note(format!(
                "The file has no numbers of cables: all NICs of a host are on its leaf switch, {uplinks}"
            ));
        }
    }
    Ok(builder.finish()?)
}

/// For each host, whether it is of the host type.
fn members(network: &HostNetwork, spec: &HostSpec) -> Result<Vec<bool>, AttachError> {
    let Some(list) = &spec.members else { return Ok(vec![true; network.hosts.len()]) };
    let names = hostlist::expand(list).map_err(|reason| AttachError::Members { reason })?;
    let known: FxHashSet<&str> = network.hosts.iter().map(|host| host.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name.as_str())) {
        let hint = did_you_mean(name, network.hosts.iter().take(4096).map(|host| host.name.as_str()));
        return Err(AttachError::Members {
            reason: format!("the file has no host `{}`.{hint}", excerpt(name)),
        });
    }
    let named: FxHashSet<&str> = names.iter().map(String::as_str).collect();
    Ok(network.hosts.iter().map(|host| named.contains(host.name.as_str())).collect())
}

/// Copies of a host, and what was noticed while their NICs were matched with the file's.
struct Copies<'u> {
    unit: &'u Fabric,
    slots: NicSlots,
    /// The NICs that InfiniBand cables can lead to.
    infiniband: Vec<DeviceId>,
    hosts: usize,
    added: usize,
    uncabled: usize,
}

impl<'u> Copies<'u> {
    fn of(unit: &'u Fabric) -> Self {
        let slots = NicSlots::of(unit, HostId(0));
        Self { unit, slots, infiniband: infiniband_nics(unit), hosts: 0, added: 0, uncabled: 0 }
    }

    /// Adds a copy; returns the device of each adapter.
    fn add(
        &mut self,
        builder: &mut FabricBuilder,
        host: &NetworkHost,
        ports: &[Vec<Port>],
    ) -> Result<Vec<DeviceId>, AttachError> {
        let first = builder.append(self.unit, |_, _| host.name.clone());
        let matched = self.matched(host);
        let count = host.adapters.len();
        self.hosts += 1;
        self.uncabled += self.infiniband.iter().filter(|nic| !matched.contains(&Some(**nic))).count();
        let mut nics = Vec::with_capacity(count);
        for (index, (nic, ports)) in matched.into_iter().zip(ports).enumerate() {
            if let Some(nic) = nic {
                let id = DeviceId(nic.0 + first.0);
                builder.device_mut(id).kind = DeviceKind::Nic(ports.clone());
                nics.push(id);
                continue;
            }
            let place = self.slots.place(index, count);
            let place = place.ok_or_else(|| AttachError::NoSlot { name: self.unit.name().to_owned() })?;
            let fastest = ports.iter().map(|port| port.rate).max().unwrap_or(Rate::ZERO);
            let gbit = u32::try_from(fastest.bytes_per_second() / 125_000_000).unwrap_or(u32::MAX);
            let kind = DeviceKind::Nic(ports.clone());
            nics.push(slot(builder, DeviceId(place.0 + first.0), kind, self.slots.link(gbit)));
            self.added += 1;
        }
        Ok(nics)
    }

    /// The host type's NIC for each adapter: by name, the others in order.
    fn matched(&self, host: &NetworkHost) -> Vec<Option<DeviceId>> {
        let is_called = |nic: &DeviceId, name: &str| {
            let device = self.unit.device(*nic);
            let DeviceKind::Nic(ports) = &device.kind else { return false };
            device.label.as_deref() == Some(name)
                || ports.iter().any(|port| port.name.as_deref() == Some(name))
        };
        let mut left: Vec<DeviceId> = self.infiniband.clone();
        let mut take = |wanted: &dyn Fn(&DeviceId) -> bool| {
            let at = left.iter().position(wanted)?;
            Some(left.remove(at))
        };
        let by_name = |name: &Option<String>| {
            let name = name.as_deref()?;
            take(&|nic| is_called(nic, name))
        };
        let mut matched: Vec<Option<DeviceId>> = host.adapters.iter().map(by_name).collect();
        for nic in matched.iter_mut().filter(|nic| nic.is_none()) {
            *nic = take(&|_| true);
        }
        matched
    }

    fn notes(&self, builder: &mut FabricBuilder, network: &HostNetwork, all_hosts: bool) {
        let name = self.unit.name();
        let (usual, fewer) = network.with_fewer_adapters();
        if all_hosts && !fewer.is_empty() {
            builder.note(format!(
                "Most hosts have {usual} adapters, {} of {} have fewer: {}. If those have no GPUs, name the hosts that \
                 have, as in \", hosts node[001-016]\"",
                fewer.len(),
                network.hosts.len(),
                some_of(&fewer)
            ));
        }
        if self.added > 0 && !self.infiniband.is_empty() {
            builder.note(format!(
                "The file has {} adapters more than {name}; they are placed next to its GPUs in turn",
                self.added
            ));
        }
        if self.uncabled > 0 {
            builder.note(format!(
                "{} NICs of {name} have no cable in the file, over all {} hosts of that type",
                self.uncabled, self.hosts
            ));
        }
    }
}

/// The NICs of a host that InfiniBand cables can lead to.
fn infiniband_nics(unit: &Fabric) -> Vec<DeviceId> {
    let is_infiniband = |id: &DeviceId| {
        let device = unit.device(*id);
        let DeviceKind::Nic(ports) = &device.kind else { return false };
        let is_ethernet = device.class == Some(PciClass::ETHERNET);
        ports.iter().any(|port| port.network == Some(Network::InfiniBand))
            || (!is_ethernet && ports.iter().all(|port| port.network.is_none()))
    };
    unit.device_ids().filter(is_infiniband).collect()
}

/// The host type with the NICs of the spec, for a file that lists none.
fn with_known_nics(unit: &Fabric, nics: Option<Nics>) -> Result<Fabric, AttachError> {
    let name = || unit.name().to_owned();
    let own = infiniband_nics(unit);
    let is_known = ports_per_host(unit).iter().any(|ports| !ports.is_empty());
    match nics {
        None if is_known || !own.is_empty() => Ok(unit.clone()),
        None => Err(AttachError::NoNics { name: name() }),
        Some(nics) if is_known => Err(AttachError::OwnNics { name: name(), nics: nics.per_host }),
        Some(nics) if own.is_empty() => with_nics(unit, nics).map_err(|error| match error {
            crate::cluster::ClusterError::Fabric(error) => AttachError::Fabric(error),
            _ => AttachError::NoSlot { name: name() },
        }),
        Some(nics) if own.len() < nics.per_host as usize => {
            Err(AttachError::FewerNics { name: name(), found: own.len(), wanted: nics.per_host })
        }
        // The NICs are known, but not their rates.
        Some(nics) => {
            let mut builder = FabricBuilder::new(unit.name());
            unit.notes().iter().for_each(|note| builder.note(note));
            builder.append(unit, |_, host| host.name.clone());
            for nic in own.iter().take(nics.per_host as usize) {
                let name = match &unit.device(*nic).kind {
                    DeviceKind::Nic(ports) => ports.iter().find_map(|port| port.name.clone()),
                    _ => None,
                };
                let port = Port { name, ..port_of(nics.link_kind()) };
                builder.device_mut(*nic).kind = DeviceKind::Nic(vec![port]);
            }
            Ok(builder.finish()?)
        }
    }
}
