//! Reads nodes and cables, and groups adapters into hosts.

use rustc_hash::{FxHashMap, FxHashSet};

use super::hosts::{host_and_adapter, is_aggregation_node, switch};
use super::lines::{Line, NodeId, NodeKind, parse};
use crate::format::network::names::natural;
use crate::format::network::{
    CABLES_MAX, Cable, End, HOSTS_MAX, HostNetwork, NetworkHost, SWITCHES_MAX, Wiring, some_of,
};
use crate::format::{ReadError, text};

/// Adapters of one host. Each takes time with every other.
const ADAPTERS_MAX: usize = 64;

/// Switches, adapters and routers: enough for 200,000 adapters and their switches.
const NODES_MAX: usize = 300_000;

/// Reads the output of `ibnetdiscover`.
pub fn read(bytes: &[u8]) -> Result<HostNetwork, ReadError> {
    let mut reader = Reader::default();
    let text = text(bytes)?;
    for (index, line) in text.lines().enumerate() {
        let at = |reason: String| ReadError::at(index + 1, reason);
        match parse(line).map_err(at)? {
            Line::Node { id, description } => reader.node(id, description, index + 1)?,
            Line::Port { port, peer, peer_port, description, gbit } => {
                let own = reader.section.ok_or_else(|| {
                    at("a port without a node: `Switch` or `Ca` must come before it; is the start of the file missing?".to_owned())
                })?;
                let peer = reader.mention(peer, description, index + 1)?;
                reader.cable((PortId::new(own, port), PortId::new(peer, peer_port)), gbit, index + 1)?;
            }
            Line::Other => {}
        }
    }
    reader.finish(text.lines().count())
}

/// A node's number and the number of its port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PortId(u64);

impl PortId {
    fn new(node: u32, port: u32) -> Self {
        Self(u64::from(node) << 32 | u64::from(port))
    }

    fn node(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn port(self) -> u32 {
        self.0 as u32
    }
}

#[derive(Default)]
struct Reader<'a> {
    /// The node of the section.
    section: Option<u32>,
    /// Nodes and their descriptions, in the order of first appearance.
    nodes: Vec<(NodeId, &'a str)>,
    numbers: FxHashMap<NodeId, u32>,
    has_section: FxHashSet<NodeId>,
    /// The other end of each cabled port, and the line that says so.
    peers: FxHashMap<PortId, (PortId, usize)>,
    cables: Vec<(PortId, PortId, u32)>,
    loops: usize,
}

impl<'a> Reader<'a> {
    fn node(&mut self, id: NodeId, description: &'a str, line: usize) -> Result<(), ReadError> {
        if !self.has_section.insert(id) {
            return Err(ReadError::at(
                line,
                format!(
                    "a second section of node {:016x}; save the output of one run of ibnetdiscover",
                    id.guid
                ),
            ));
        }
        self.section = Some(self.mention(id, description, line)?);
        Ok(())
    }

    /// Records a node and its description, of which the first counts; returns the node's number.
    fn mention(&mut self, id: NodeId, description: &'a str, line: usize) -> Result<u32, ReadError> {
        let next = self.nodes.len() as u32;
        let number = *self.numbers.entry(id).or_insert(next);
        if number == next {
            if self.nodes.len() == NODES_MAX {
                return Err(ReadError::at(
                    line,
                    format!("the file has more than {NODES_MAX} nodes, which is the limit"),
                ));
            }
            self.nodes.push((id, description));
        } else if self.nodes[number as usize].1.is_empty() {
            self.nodes[number as usize].1 = description;
        }
        Ok(number)
    }

    fn cable(&mut self, (own, peer): (PortId, PortId), gbit: u32, line: usize) -> Result<(), ReadError> {
        if own.node() == peer.node() {
            self.loops += 1;
            return Ok(());
        }
        let mut is_new = true;
        for (one, other) in [(own, peer), (peer, own)] {
            let (known, before) = *self.peers.entry(one).or_insert((other, line));
            if known != other {
                let (port, guid) = (one.port(), self.nodes[one.node()].0.guid);
                return Err(ReadError::at(
                    line,
                    format!(
                        "port {port} of node {guid:016x} has another cable on line {before}; a port takes one"
                    ),
                ));
            }
            is_new &= before == line;
        }
        if is_new {
            self.cables.push((own, peer, gbit));
        }
        if self.cables.len() > CABLES_MAX {
            return Err(ReadError::at(
                line,
                format!("the file has more than {CABLES_MAX} cables, which is the limit"),
            ));
        }
        Ok(())
    }

    fn finish(self, last_line: usize) -> Result<HostNetwork, ReadError> {
        let mut notes = Vec::new();
        let switch_ids: Vec<NodeId> = self.of_kind(NodeKind::Switch).map(|(id, _)| id).collect();
        let is_host = |(_, description): &(NodeId, &str)| !is_aggregation_node(description);
        let adapters: Vec<(NodeId, &str)> = self.of_kind(NodeKind::Adapter).filter(is_host).collect();
        if switch_ids.is_empty() && adapters.is_empty() {
            return Err(ReadError::at(last_line.max(1), "the file has no switch and no adapter"));
        }
        if switch_ids.len() > SWITCHES_MAX {
            let reason = format!("the file has more than {SWITCHES_MAX} switches, which is the limit");
            return Err(ReadError::at(last_line, reason));
        }
        let groups = Groups::of(&adapters);
        if groups.hosts.len() > HOSTS_MAX {
            return Err(ReadError::at(
                last_line,
                format!("the file has more than {HOSTS_MAX} hosts, which is the limit"),
            ));
        }
        if let Some(host) = groups.hosts.iter().find(|host| host.adapters.len() > ADAPTERS_MAX) {
            let reason =
                format!("host {} has more than {ADAPTERS_MAX} adapters, which is the limit", host.name);
            return Err(ReadError::at(last_line, reason));
        }
        let numbers: FxHashMap<NodeId, u32> =
            (0..).zip(&switch_ids).map(|(number, id)| (*id, number)).collect();
        let end = |port: PortId| {
            let (id, _) = self.nodes[port.node()];
            match id.kind {
                NodeKind::Switch => numbers.get(&id).map(|number| End::Switch(*number)),
                _ => groups.ends.get(&id).copied(),
            }
        };
        let cables = self.cables.iter();
        let cables: Vec<Cable> = cables
            .filter_map(|(a, b, gbit)| Some(Cable { ends: (end(*a)?, end(*b)?), gbit: *gbit }))
            .collect();
        let routers = self.of_kind(NodeKind::Router).count();
        if routers > 0 {
            notes.push(format!("{routers} InfiniBand routers are left out"));
        }
        let cut = self.nodes.iter().filter(|(id, _)| !self.has_section.contains(id)).count();
        if cut > 0 {
            notes.push(format!("{cut} nodes are named as peers only; the file may be cut"));
        }
        if self.loops > 0 {
            notes.push("Cables from a node to itself are left out".to_owned());
        }
        notes.extend(groups.note());
        notes.extend(mixed_rates(&cables));
        let switches = self.switch_names(&switch_ids);
        Ok(HostNetwork { hosts: groups.hosts, switches, wiring: Wiring::Cables(cables), notes })
    }

    fn of_kind(&self, kind: NodeKind) -> impl Iterator<Item = (NodeId, &'a str)> {
        self.nodes.iter().copied().filter(move |(id, _)| id.kind == kind)
    }

    /// The switches' names; those that are not unique get the GUID instead.
    fn switch_names(&self, ids: &[NodeId]) -> Vec<String> {
        let names: Vec<String> =
            ids.iter().map(|id| switch(self.nodes[self.numbers[id] as usize].1)).collect();
        let mut uses: FxHashMap<&str, usize> = FxHashMap::default();
        names.iter().for_each(|name| *uses.entry(name).or_default() += 1);
        let unique = |(name, id): (&String, &NodeId)| match uses[name.as_str()] {
            1 if !name.is_empty() => name.clone(),
            _ => format!("S-{:016x}", id.guid),
        };
        names.iter().zip(ids).map(unique).collect()
    }
}

/// An adapter, with its name if it has one.
type NamedAdapter = (Option<String>, NodeId);

/// Adapters, grouped into hosts.
struct Groups {
    hosts: Vec<NetworkHost>,
    ends: FxHashMap<NodeId, End>,
    unnamed: Vec<String>,
}

impl Groups {
    fn of(adapters: &[(NodeId, &str)]) -> Self {
        let mut numbers: FxHashMap<String, usize> = FxHashMap::default();
        let mut taken: FxHashSet<(usize, String)> = FxHashSet::default();
        let mut members: Vec<(String, Vec<NamedAdapter>)> = Vec::new();
        let mut unnamed = Vec::new();
        for (id, description) in adapters {
            let guid = format!("H-{:016x}", id.guid);
            let (host, adapter) = host_and_adapter(description).unwrap_or_else(|| (guid.clone(), None));
            let mut number = *numbers.entry(host.clone()).or_insert(members.len());
            // Hosts without a name of their own are all called `localhost`: a second `localhost mlx5_0` is another host.
            let is_taken = adapter.as_ref().is_some_and(|name| !taken.insert((number, name.clone())));
            if is_taken {
                number = *numbers.entry(guid.clone()).or_insert(members.len());
            }
            if number == members.len() {
                members.push((if is_taken { guid.clone() } else { host }, Vec::new()));
            }
            if members[number].0 == guid {
                unnamed.push(guid);
            }
            members[number].1.push((adapter, *id));
        }
        members.sort_by(|(a, _), (b, _)| natural(a, b));
        let mut ends = FxHashMap::default();
        let mut hosts = Vec::with_capacity(members.len());
        for (host, (name, mut adapters)) in (0..).zip(members) {
            // By name and GUID, so that the order does not depend on where the run began.
            let name_of = |adapter: &Option<String>| adapter.clone().unwrap_or_default();
            adapters.sort_by(|(a, a_id), (b, b_id)| natural(&name_of(a), &name_of(b)).then(a_id.cmp(b_id)));
            ends.extend((0..).zip(&adapters).map(|(adapter, (_, id))| (*id, End::Adapter { host, adapter })));
            hosts.push(NetworkHost { name, adapters: adapters.into_iter().map(|(name, _)| name).collect() });
        }
        Self { hosts, ends, unnamed }
    }

    fn note(&self) -> Option<String> {
        let names: Vec<&str> = self.unnamed.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| {
            format!(
                "The descriptions of {} adapters name no host of their own; each is shown as a host: {}",
                names.len(),
                some_of(&names)
            )
        })
    }
}

/// A cable that is slower than the others of its switch pair often has a fault.
fn mixed_rates(cables: &[Cable]) -> Option<String> {
    let mut rates: FxHashMap<(End, End), (u32, u32)> = FxHashMap::default();
    let between_switches = |cable: &&Cable| matches!(cable.ends, (End::Switch(_), End::Switch(_)));
    for cable in cables.iter().filter(between_switches) {
        let (a, b) = cable.ends;
        let pair = rates.entry((a.min(b), a.max(b))).or_insert((cable.gbit, cable.gbit));
        *pair = (pair.0.min(cable.gbit), pair.1.max(cable.gbit));
    }
    let mixed = rates.values().filter(|(least, most)| least < most).count();
    (mixed > 0).then(|| format!("{mixed} pairs of switches have cables of different rates between them"))
}
