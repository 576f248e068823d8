//! Clusters by composition: copies of a spec's system, their NICs, and the switches between them.
//!
//! The network has two tiers. The layout decides how many cables a leaf switch has down; its uplinks follow from the
//! oversubscription. One spine device represents the whole upper tier, which is non-blocking. A single leaf needs no
//! spine.
//!
//! Deliberately absent: tori, dragonflies and third tiers. A file can describe those switch by switch.

use crate::catalog::links;
use crate::catalog::systems;
use crate::catalog::systems::chassis::{port_of, slot};
use crate::device::{DeviceKind, Port, Tier};
use crate::fabric::{DEVICES_MAX, Fabric, FabricBuilder, FabricError, LINKS_MAX};
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, Network};
use crate::nearest::did_you_mean;
use crate::nic_slots::NicSlots;
use crate::spec::{ClusterSpec, Layout, Nics, SpecError};

/// A valid spec whose cluster cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// With `leaf-spine`, a leaf has too few ports for the NICs of one host.
    #[error(
        "each host has {nics} NICs, but a leaf switch with {ports} ports has only {down} for hosts: \
         raise `leaf-ports`, or remove `leaf-spine` to connect each NIC to a different leaf"
    )]
    LeafTooSmall {
        /// NICs of a host.
        nics: usize,
        /// All ports of the leaf.
        ports: u32,
        /// Ports toward hosts.
        down: u32,
    },
    /// A host of the catalog has neither a PCIe switch nor a NUMA node.
    #[error("{host} has no NUMA node to attach a NIC to; this is a bug in the catalog, please report it")]
    NoSlot {
        /// The system and the host within it.
        host: String,
    },
    /// The fabric exceeds a limit.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// A text is neither a preset nor a cluster spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Neither a preset nor anything that looks like a spec.
    #[error(
        "no system is called `{name}`.{hint} `weft topo --list` prints all; a cluster is written `2x hgx-h100 + 8x ndr`"
    )]
    UnknownSystem {
        /// The name, shortened.
        name: String,
        /// A question with the nearest names; empty where none is near.
        hint: String,
    },
    /// A malformed spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A valid spec whose cluster cannot be built.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Builds the fabric of a preset or a cluster spec.
pub fn resolve(text: &str) -> Result<Fabric, ResolveError> {
    let text = text.trim();
    if let Some(system) = systems::by_name(text) {
        return Ok(system.fabric());
    }
    // A spec contains a space; a single word is a name, or a spec with its space missing.
    let space_missing = || text.split_once('x').is_some_and(|(_, name)| systems::by_name(name).is_some());
    if text.contains(char::is_whitespace) || text.is_empty() || space_missing() {
        return Ok(text.parse::<ClusterSpec>()?.fabric()?);
    }
    Err(ResolveError::UnknownSystem {
        name: text.chars().take(40).collect(),
        hint: did_you_mean(text, systems::all().map(|system| system.name)),
    })
}

/// The number of ports of a common leaf switch for a network, and the product.
fn leaf_ports(network: Network, gbit: u32) -> (u32, &'static str) {
    match (network, gbit) {
        (Network::InfiniBand, 0..=100) => (36, "NVIDIA SB7800: 36 EDR ports"),
        (Network::InfiniBand, 101..=200) => (40, "NVIDIA QM8700: 40 HDR ports"),
        (Network::InfiniBand, 201..=400) => (64, "NVIDIA QM9700: 64 NDR ports"),
        (Network::InfiniBand, _) => (144, "NVIDIA Q3400-RA: 144 XDR ports"),
        (Network::Roce | Network::Ethernet, _) => (64, "NVIDIA SN5600: 64 Ethernet ports"),
        (Network::Slingshot, _) => (64, "HPE Slingshot switch: 64 ports"),
        _ => (64, "assumed: the provider does not publish it"),
    }
}

impl ClusterSpec {
    /// Builds the cluster.
    pub fn fabric(&self) -> Result<Fabric, ClusterError> {
        let system = self.system().fabric();
        let unit = match self.nics() {
            Some(nics) => with_nics(&system, nics)?,
            None => system,
        };
        check_size(&unit, self.count())?;
        let mut builder = FabricBuilder::new(self.to_string());
        for note in unit.notes() {
            builder.note(note);
        }
        let one_host = unit.hosts().len() == 1;
        let mut firsts = Vec::with_capacity(self.count() as usize);
        for index in 0..self.count() {
            firsts.push(builder.append(&unit, |within, _| match one_host {
                true => format!("host{index}"),
                false => format!("rack{index}-host{within}"),
            }));
        }
        let ports = ports_per_host(&unit);
        let kinds = distinct_kinds(&ports);
        if kinds.is_empty() && self.count() > 1 {
            builder.note("no network connects the systems; add one such as `+ 8x ndr`");
        }
        for (kind, network, gbit) in kinds {
            let of_kind: Vec<Vec<DeviceId>> = ports.iter().map(|ports| of_kind(ports, kind)).collect();
            let hosts: Vec<Vec<DeviceId>> =
                firsts.iter().flat_map(|first| of_kind.iter().map(|nics| offset(nics, *first))).collect();
            self.cable(&mut builder, &hosts, network, gbit)?;
        }
        Ok(builder.finish()?)
    }

    /// Adds the switches of one network, and the cables from `hosts[h][r]`, the NIC with port `r` of host `h`.
    fn cable(
        &self,
        builder: &mut FabricBuilder,
        hosts: &[Vec<DeviceId>],
        network: Network,
        gbit: u32,
    ) -> Result<(), ClusterError> {
        let ports = self.leaf_ports().unwrap_or_else(|| {
            let (ports, source) = leaf_ports(network, gbit);
            builder.note(format!("leaf switches have {ports} ports ({source})"));
            ports
        });
        let down = self.oversubscription().downlinks(ports);
        let nics = hosts.iter().map(Vec::len).max().unwrap_or(0);
        let hosts_per_unit = match self.layout() {
            Layout::RailOptimised => down as usize,
            Layout::LeafSpine => match down as usize / nics.max(1) {
                0 => return Err(ClusterError::LeafTooSmall { nics, ports, down }),
                hosts => hosts,
            },
        };
        let cable = builder.spec(links::network(network, gbit));
        let mut leaves: Vec<(DeviceId, u32)> = Vec::new();
        for unit in hosts.chunks(hosts_per_unit) {
            let first = leaves.len();
            let leaves_of_unit = match self.layout() {
                Layout::RailOptimised => unit.iter().map(Vec::len).max().unwrap_or(0),
                Layout::LeafSpine => 1,
            };
            for _ in 0..leaves_of_unit {
                leaves.push((builder.add(None, DeviceKind::NetSwitch(Tier::Leaf)), 0));
            }
            for host in unit {
                for (rail, &nic) in host.iter().enumerate() {
                    let (leaf, used) = &mut leaves[first + rail % leaves_of_unit];
                    *used += 1;
                    builder.connect(nic, *leaf, 1, cable);
                }
            }
        }
        if leaves.len() > 1 {
            let spine = builder.add(None, DeviceKind::NetSwitch(Tier::Spine));
            for (leaf, used) in leaves {
                builder.connect(leaf, spine, self.oversubscription().uplinks(used), cable);
            }
        }
        Ok(())
    }
}

/// Checks the size before building; the builder checks again with the switches.
fn check_size(unit: &Fabric, count: u32) -> Result<(), FabricError> {
    for (what, each, limit) in
        [("devices", unit.devices().len(), DEVICES_MAX), ("links", unit.links().len(), LINKS_MAX)]
    {
        let found = each.saturating_mul(count as usize);
        if found > limit {
            return Err(FabricError::TooLarge { what, found, limit });
        }
    }
    Ok(())
}

/// The system with `nics` in each host.
pub(crate) fn with_nics(bare: &Fabric, nics: Nics) -> Result<Fabric, ClusterError> {
    let mut builder = FabricBuilder::new(bare.name());
    for note in bare.notes() {
        builder.note(note);
    }
    builder.append(bare, |_, host| host.name.clone());
    let count = nics.per_host as usize;
    for (index, host) in bare.hosts().iter().enumerate() {
        let slots = NicSlots::of(bare, HostId(index as u32));
        for nic in 0..count {
            let place = slots
                .place(nic, count)
                .ok_or_else(|| ClusterError::NoSlot { host: format!("{}: {}", bare.name(), host.name) })?;
            let kind = DeviceKind::Nic(vec![port_of(nics.link_kind())]);
            slot(&mut builder, place, kind, slots.link(nics.gbit));
        }
    }
    Ok(builder.finish()?)
}

/// A NIC, and the kind of cable that one of its ports takes.
pub(crate) type NicPort = (DeviceId, LinkKind);

/// The network ports of each host, in the order of its NICs. Ports of unknown technology or rate are left out.
pub(crate) fn ports_per_host(unit: &Fabric) -> Vec<Vec<NicPort>> {
    let mut hosts = vec![Vec::new(); unit.hosts().len()];
    for id in unit.device_ids() {
        let device = unit.device(id);
        if let (DeviceKind::Nic(ports), Some(host)) = (&device.kind, device.host) {
            hosts[host.index()].extend(ports.iter().filter_map(|port| Some((id, kind_of(port)?))));
        }
    }
    hosts
}

fn kind_of(port: &Port) -> Option<LinkKind> {
    let gbit = u32::try_from(port.rate.bytes_per_second() / 125_000_000).ok()?;
    let network = port.network.filter(|_| gbit > 0)?;
    Some(LinkKind::Network { network, gbit })
}

/// The kinds of network in use, in order of appearance. Each gets its own switches: an Ethernet port and an EFA port do
/// not share one.
fn distinct_kinds(ports: &[Vec<NicPort>]) -> Vec<(LinkKind, Network, u32)> {
    let mut kinds: Vec<(LinkKind, Network, u32)> = Vec::new();
    for (_, kind) in ports.iter().flatten() {
        if let LinkKind::Network { network, gbit } = *kind
            && kinds.iter().all(|(known, ..)| known != kind)
        {
            kinds.push((*kind, network, gbit));
        }
    }
    kinds
}

fn of_kind(ports: &[NicPort], wanted: LinkKind) -> Vec<DeviceId> {
    ports.iter().filter(|(_, kind)| *kind == wanted).map(|(nic, _)| *nic).collect()
}

fn offset(nics: &[DeviceId], first: DeviceId) -> Vec<DeviceId> {
    nics.iter().map(|nic| DeviceId(nic.0 + first.0)).collect()
}
