//! Rings and trees of a communicator as pairs of ranks with their links, for pictures and for text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use weftlink_fabric::{Fabric, PathType, Paths};

use super::model::{Communicator, Log, Rank, TransportKind};

/// Rings of more ranks are not drawn.
const RANKS_MAX: usize = 4096;
/// Runs of more equal links than this are shortened in text.
const RUN_MAX: usize = 8;

/// What connects two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// NVLink or xGMI: GPUs access each other's memory over it.
    NvLink,
    /// GPUs access each other's memory, over what the log does not say.
    Peer,
    /// Host memory.
    SharedMemory,
    /// A network by its name, and whether the NIC accesses the GPU's memory.
    Network(String, bool),
    /// The log does not say.
    Unknown,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink => f.write_str("NVL"),
            Self::Peer => f.write_str("P2P"),
            Self::SharedMemory => f.write_str("SHM"),
            Self::Network(name, _) => f.write_str(name),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// Data that goes from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Hop {
    /// The sending rank.
    pub source: u32,
    /// The receiving rank.
    pub target: u32,
    /// What connects them.
    pub link: Link,
}

/// A ring, and the channels that use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ring {
    /// The channels.
    pub channels: Vec<u32>,
    /// Its hops in order. A hop that does not begin where the one before it ends follows a gap in the log.
    pub hops: Vec<Hop>,
}

/// A tree, and the channels that use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tree {
    /// The channels.
    pub channels: Vec<u32>,
    /// Hops from children to their parents.
    pub hops: Vec<Hop>,
}

/// The rings and trees of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wires {
    /// Different rings.
    pub rings: Vec<Ring>,
    /// Different trees.
    pub trees: Vec<Tree>,
}

/// The rings and trees of a communicator. The fabric, if it is given, says which peers NVLink connects.
pub fn wires(log: &Log, communicator: &Communicator, fabric: Option<&Fabric>) -> Wires {
    if communicator.ranks.len() > RANKS_MAX {
        return Wires::default();
    }
    let ranks: Vec<&Rank> = log.ranks_of(communicator).collect();
    let links = Links::of(log, &ranks, fabric);
    let channels: BTreeSet<u32> = ranks
        .iter()
        .flat_map(|rank| {
            rank.orders.keys().chain(rank.rings.keys()).chain(rank.edges.iter().map(|edge| &edge.channel))
        })
        .copied()
        .collect();
    let rings = channels.into_iter().map(|channel| (channel, ring(&ranks, communicator.size, channel)));
    let rings = rings.map(|(channel, pairs)| (channel, links.hops(channel, pairs)));
    let channels: BTreeSet<u32> = ranks.iter().flat_map(|rank| rank.trees.keys()).copied().collect();
    let trees = channels.into_iter().map(|channel| (channel, links.hops(channel, tree(&ranks, channel))));
    Wires {
        rings: alike(rings).into_iter().map(|(hops, channels)| Ring { channels, hops }).collect(),
        trees: alike(trees).into_iter().map(|(hops, channels)| Tree { channels, hops }).collect(),
    }
}

/// Equal ones together, in the order of their first channel.
fn alike(all: impl Iterator<Item = (u32, Vec<Hop>)>) -> Vec<(Vec<Hop>, Vec<u32>)> {
    let mut found: Vec<(Vec<Hop>, Vec<u32>)> = Vec::new();
    for (channel, hops) in all.filter(|(_, hops)| !hops.is_empty()) {
        match found.iter_mut().find(|(known, _)| *known == hops) {
            Some((_, channels)) => channels.push(channel),
            None => found.push((hops, vec![channel])),
        }
    }
    found
}

/// The pairs of a ring: as rank 0 printed it, or from the neighbours of each rank, or from connections.
fn ring(ranks: &[&Rank], size: u32, channel: u32) -> Vec<(u32, u32)> {
    let order =
        ranks.iter().filter_map(|rank| rank.orders.get(&channel)).find(|order| order.len() == size as usize);
    if let Some(order) = order.filter(|order| order.len() > 1) {
        return order.iter().copied().zip(order.iter().cycle().skip(1).copied()).collect();
    }
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    for rank in ranks {
        let neighbours = rank.rings.get(&channel).and_then(|(_, next)| Some((rank.rank?, *next)));
        next.extend(neighbours);
    }
    if next.is_empty() {
        let edges = ranks.iter().flat_map(|rank| &rank.edges);
        for edge in edges.filter(|edge| edge.is_ring && edge.channel == channel && edge.source != edge.target)
        {
            next.entry(edge.source).or_insert(edge.target);
        }
    }
    let mut pairs = Vec::new();
    while let Some((first, _)) = next.first_key_value() {
        let mut source = *first;
        while let Some(target) = next.remove(&source) {
            pairs.push((source, target));
            source = target;
        }
    }
    pairs
}

fn tree(ranks: &[&Rank], channel: u32) -> Vec<(u32, u32)> {
    let up = |rank: &&Rank| Some((rank.rank?, rank.trees.get(&channel)?.up?));
    ranks.iter().filter_map(up).collect()
}

/// What connects pairs of ranks.
struct Links {
    by_channel: BTreeMap<(u32, u32, u32), Link>,
    by_pair: BTreeMap<(u32, u32), Link>,
}

impl Links {
    fn of(log: &Log, ranks: &[&Rank], fabric: Option<&Fabric>) -> Self {
        let mut links = Self { by_channel: BTreeMap::new(), by_pair: BTreeMap::new() };
        let near = Near::of(log, ranks, fabric);
        for edge in ranks.iter().flat_map(|rank| &rank.edges) {
            let pair = (edge.source, edge.target);
            let link = match &edge.transport.kind {
                TransportKind::Peer if near.has_nvlink(pair) => Link::NvLink,
                TransportKind::Peer => Link::Peer,
                TransportKind::SharedMemory => Link::SharedMemory,
                TransportKind::Network(name) => Link::Network(name.clone(), edge.transport.gpudirect),
                TransportKind::CollNet(_) => continue,
            };
            links.by_channel.insert((edge.channel, edge.source, edge.target), link.clone());
            links.by_pair.entry(pair).or_insert(link);
        }
        links
    }

    fn hops(&self, channel: u32, pairs: Vec<(u32, u32)>) -> Vec<Hop> {
        let link = |source: u32, target: u32| {
            let of_channel = self.by_channel.get(&(channel, source, target));
            let of_pair =
                || self.by_pair.get(&(source, target)).or_else(|| self.by_pair.get(&(target, source)));
            of_channel.or_else(of_pair).cloned().unwrap_or(Link::Unknown)
        };
        pairs.into_iter().map(|(source, target)| Hop { source, target, link: link(source, target) }).collect()
    }
}

/// Which ranks NVLink connects, as the log or the fabric says.
struct Near<'f> {
    detected: BTreeSet<(u32, u32)>,
    paths: Option<Paths<'f>>,
    gpus: BTreeMap<u32, weftlink_fabric::DeviceId>,
}

impl<'f> Near<'f> {
    fn of(log: &Log, ranks: &[&Rank], fabric: Option<&'f Fabric>) -> Self {
        let detected = log.topologies.iter().flat_map(|topology| topology.nvlink_pairs(log, ranks)).collect();
        let gpus = fabric.map_or_else(BTreeMap::new, |fabric| super::explain::gpus_of(log, ranks, fabric));
        Self { detected, paths: fabric.map(Paths::of), gpus }
    }

    fn has_nvlink(&self, (source, target): (u32, u32)) -> bool {
        let kind = || {
            let (source, target) = (self.gpus.get(&source)?, self.gpus.get(&target)?);
            Some(self.paths.as_ref()?.path(*source, *target).kind)
        };
        self.detected.contains(&(source, target)) || matches!(kind(), Some(PathType::Nvl | PathType::Nvb))
    }
}

/// `0 -NVL-> 1 -NVL-> 2 -NVL-> ... -NVL-> 7 -IB-> 8`; `|` is a gap.
impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut at = None;
        for run in self.hops.chunk_by(|one, next| one.link == next.link && one.target == next.source) {
            let first = run.first().map(|hop| hop.source);
            if let Some(source) = first.filter(|_| at != first) {
                write!(f, "{}{source}", if at.is_some() { " | " } else { "" })?;
            }
            for (index, Hop { target, link, .. }) in run.iter().enumerate() {
                let is_hidden = run.len() > RUN_MAX && (2..run.len() - 1).contains(&index);
                match is_hidden {
                    false => write!(f, " -{link}-> {target}")?,
                    true if index == 2 => write!(f, " -{link}-> ...")?,
                    true => {}
                }
            }
            at = run.last().map(|hop| hop.target);
        }
        Ok(())
    }
}

/// `0 <- 1 NVL, 8 IB; 1 <- 2 NVL`: each parent with its children.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parents: BTreeMap<u32, Vec<&Hop>> = BTreeMap::new();
        for hop in &self.hops {
            parents.entry(hop.target).or_default().push(hop);
        }
        for (at, (parent, hops)) in parents.into_iter().enumerate() {
            let children: Vec<String> =
                hops.iter().map(|hop| format!("{} {}", hop.source, hop.link)).collect();
            write!(f, "{}{parent} <- {}", if at == 0 { "" } else { "; " }, children.join(", "))?;
        }
        Ok(())
    }
}
