//! Builds the fabric of a network: hosts without GPUs, switches, cables.

use super::{Cable, End, HostNetwork, NetworkHost, Wiring};
use crate::catalog::links;
use crate::device::{Device, DeviceKind, Port, Tier};
use crate::fabric::{Fabric, FabricBuilder, FabricError};
use crate::id::DeviceId;
use crate::link::{LinkKind, LinkSpec, Network};
use crate::rate::Rate;
use crate::spec::Oversubscription;

/// The network alone.
pub(super) fn bare(network: &HostNetwork, name: &str) -> Result<Fabric, FabricError> {
    let mut builder = FabricBuilder::new(name);
    // In front of a host type, standard input needs the name of a file.
    let file = if name == "standard input" { "/dev/stdin" } else { name };
    let nics = if matches!(network.wiring, Wiring::Tree { .. }) { " + 8x ndr" } else { "" };
    builder.note(format!(
        "The file describes a network without GPUs. To add them, name the type of the hosts, as in \
         \"{file} + hgx-h100{nics}\""
    ));
    network.notes.iter().for_each(|note| builder.note(note));
    match &network.wiring {
        Wiring::Cables(cables) => {
            let ports = ports(network, cables);
            let add = |(host, ports): (&NetworkHost, &Vec<Vec<Port>>)| bare_host(&mut builder, host, ports);
            let nics: Vec<Vec<DeviceId>> = network.hosts.iter().zip(&ports).map(add).collect();
            connect_cables(&mut builder, network, cables, &nics);
        }
        Wiring::Tree { leaves, parents } => {
            let add = |(host, leaves): (&NetworkHost, &Vec<u32>)| {
                // One NIC for each leaf switch that the host is below.
                bare_host(&mut builder, host, &vec![Vec::new(); leaves.len()])
            };
            let nics: Vec<Vec<DeviceId>> = network.hosts.iter().zip(leaves).map(add).collect();
            builder.note(
                "The file has no rates and no numbers of cables; one cable of unknown rate is drawn for each connection",
            );
            let tree = Tree { leaves, parents, cable: links::network(Network::Unknown, 0), ratio: None };
            tree.connect(&mut builder, network, &nics);
        }
    }
    builder.finish()
}

/// Adds a host with NICs only; returns them.
pub(super) fn bare_host(
    builder: &mut FabricBuilder,
    host: &NetworkHost,
    ports: &[Vec<Port>],
) -> Vec<DeviceId> {
    let id = builder.host(&host.name, None);
    ports.iter().map(|ports| builder.add(Some(id), DeviceKind::Nic(ports.clone()))).collect()
}

/// The ports of each adapter of each host. A port exists if it has a cable.
pub(super) fn ports(network: &HostNetwork, cables: &[Cable]) -> Vec<Vec<Vec<Port>>> {
    let mut ports: Vec<Vec<Vec<Port>>> =
        network.hosts.iter().map(|host| vec![Vec::new(); host.adapters.len()]).collect();
    for cable in cables {
        for end in [cable.ends.0, cable.ends.1] {
            if let End::Adapter { host, adapter } = end {
                let name = &network.hosts[host as usize].adapters[adapter as usize];
                ports[host as usize][adapter as usize].push(Port {
                    name: name.as_deref().map(Into::into),
                    network: Some(Network::InfiniBand),
                    rate: Rate::from_gbit(cable.gbit.into()),
                    extra: Vec::new(),
                });
            }
        }
    }
    ports
}

/// Adds the switches, of which those that `is_leaf` accepts are leaves.
fn add_switches(
    builder: &mut FabricBuilder,
    network: &HostNetwork,
    is_leaf: impl Fn(usize) -> bool,
) -> Vec<DeviceId> {
    let add = |(index, name): (usize, &String)| {
        let tier = if is_leaf(index) { Tier::Leaf } else { Tier::Spine };
        builder.add_device(Device {
            host: None,
            ordinal: 0,
            kind: DeviceKind::NetSwitch(tier),
            bus: None,
            class: None,
            label: Some(name.as_str().into()),
            extra: Vec::new(),
        })
    };
    network.switches.iter().enumerate().map(add).collect()
}

/// Adds switches and cables; `nics[h][a]` is adapter `a` of host `h`.
pub(super) fn connect_cables(
    builder: &mut FabricBuilder,
    network: &HostNetwork,
    cables: &[Cable],
    nics: &[Vec<DeviceId>],
) {
    let mut has_hosts = vec![false; network.switches.len()];
    for cable in cables {
        if let (End::Switch(switch), End::Adapter { .. }) | (End::Adapter { .. }, End::Switch(switch)) =
            cable.ends
        {
            has_hosts[switch as usize] = true;
        }
    }
    let switches = add_switches(builder, network, |switch| has_hosts[switch]);
    let device = |end: End| match end {
        End::Switch(switch) => switches[switch as usize],
        End::Adapter { host, adapter } => nics[host as usize][adapter as usize],
    };
    for cable in cables {
        let spec = builder.spec(links::network(Network::InfiniBand, cable.gbit));
        builder.connect(device(cable.ends.0), device(cable.ends.1), 1, spec);
    }
}

/// The wiring of a tree, with the kind of its cables.
pub(super) struct Tree<'n> {
    pub(super) leaves: &'n [Vec<u32>],
    pub(super) parents: &'n [Vec<u32>],
    pub(super) cable: LinkSpec,
    /// Of the leaf switches; without it, switches are joined by one cable each.
    pub(super) ratio: Option<Oversubscription>,
}

impl Tree<'_> {
    /// Adds switches and cables; port `p` of a host, `nics[h][p]`, goes to its leaf switches in turn.
    pub(super) fn connect(&self, builder: &mut FabricBuilder, network: &HostNetwork, nics: &[Vec<DeviceId>]) {
        let mut down = vec![0_u32; network.switches.len()];
        for (leaves, nics) in self.leaves.iter().zip(nics) {
            for port in 0..nics.len() {
                down[leaves[port % leaves.len()] as usize] += 1;
            }
        }
        let is_leaf: Vec<bool> = down.iter().map(|cables| *cables > 0).collect();
        let switches = add_switches(builder, network, |switch| is_leaf[switch]);
        let spec = builder.spec(self.cable.clone());
        for (leaves, nics) in self.leaves.iter().zip(nics) {
            for (port, nic) in nics.iter().enumerate() {
                builder.connect(*nic, switches[leaves[port % leaves.len()] as usize], 1, spec);
            }
        }
        for switch in self.bottom_up() {
            let parents = &self.parents[switch];
            let up = match self.ratio {
                None => parents.len() as u32,
                Some(ratio) if is_leaf[switch] => ratio.uplinks(down[switch]),
                Some(_) => down[switch].max(1),
            };
            for (index, parent) in parents.iter().enumerate() {
                // The first parents get one more where the cables cannot be divided evenly.
                let more = u32::from((index as u32) < up % parents.len() as u32);
                let share = (up / parents.len() as u32 + more).max(1);
                down[*parent as usize] = down[*parent as usize].saturating_add(share);
                builder.connect(switches[switch], switches[*parent as usize], share, spec);
            }
        }
    }

    /// The switches in an order in which each comes before its parents. The reader has refused loops.
    fn bottom_up(&self) -> Vec<usize> {
        let mut children = vec![0_usize; self.parents.len()];
        self.parents.iter().flatten().for_each(|parent| children[*parent as usize] += 1);
        let mut order: Vec<usize> = (0..children.len()).filter(|switch| children[*switch] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for parent in &self.parents[order[next]] {
                children[*parent as usize] -= 1;
                if children[*parent as usize] == 0 {
                    order.push(*parent as usize);
                }
            }
            next += 1;
        }
        order
    }
}

/// The network and rate of a kind of cable.
pub(super) fn network_of(kind: LinkKind) -> Option<(Network, u32)> {
    match kind {
        LinkKind::Network { network, gbit } => Some((network, gbit)),
        _ => None,
    }
}
