//! A log in words: library, hosts, network, links between ranks, rings and trees, algorithms.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use weftlink_fabric::Fabric;

use super::model::{Choice, Log, Stage};
use super::wires::{Link, Wires, wires};
use crate::size::size;

/// Matrices of more ranks are not drawn.
const MATRIX_MAX: u32 = 32;
/// Rings and trees that are listed.
const WIRES_MAX: usize = 8;
/// Names that are listed in a line.
const NAMES_MAX: usize = 8;

/// A log in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Lines of the log.
    pub lines: usize,
    /// Libraries and versions: `NCCL 2.21.5+cuda12.4`.
    pub versions: Vec<String>,
    /// CUDA versions that the drivers support: `12.2`.
    pub cuda_drivers: Vec<String>,
    /// Hosts.
    pub hosts: Vec<String>,
    /// Processes.
    pub processes: usize,
    /// Communicators: how many there are of each size, the largest first.
    pub communicators: Vec<Group>,
    /// Networks that were chosen.
    pub networks: Vec<String>,
    /// Interfaces of the rendezvous and of sockets: `eth0`.
    pub interfaces: Vec<String>,
    /// NICs: `mlx5_0:1/IB`.
    pub nics: Vec<String>,
    /// Channels of collectives of the largest communicator, over its ranks the fewest and the most.
    pub channels: Option<(u32, u32)>,
    /// Pairs of ranks of the largest communicator by their link: `NVL`.
    pub links: BTreeMap<String, usize>,
    /// The link from each rank to each other, of a communicator with few ranks; empty where there is none.
    pub matrix: Vec<Vec<String>>,
    /// Rings and trees of the largest communicator.
    pub wires: Wires,
    /// Whether NVLink switches reduce and multicast, if all GPUs agree.
    pub multicast: Option<bool>,
    /// Algorithms by call: `AllReduce: Tree LL to 64 KiB, Ring Simple from 128 KiB`.
    pub algorithms: Vec<String>,
    /// Settings: variable and value.
    pub settings: Vec<(String, String)>,
    /// Warnings of the library.
    pub warnings: usize,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Communicators of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Ranks of each.
    pub size: u32,
    /// How many there are.
    pub count: usize,
    /// Ranks in the log.
    pub seen: usize,
    /// Ranks that finished their initialisation.
    pub complete: usize,
}

/// A log in words. The fabric, if it is given, says which peers NVLink connects.
pub fn summary(log: &Log, fabric: Option<&Fabric>) -> Summary {
    let mut summary = Summary {
        lines: log.lines,
        versions: unique(log.versions.iter().map(|version| format!("{} {}", version.library, version.text))),
        cuda_drivers: unique(
            log.processes.iter().filter_map(|process| process.cuda_driver).map(cuda_version),
        ),
        hosts: log.hosts().into_iter().map(str::to_owned).collect(),
        processes: log.processes.len(),
        networks: unique(
            log.processes.iter().filter_map(|process| Some(process.network.as_ref()?.0.clone())),
        ),
        interfaces: unique(log.processes.iter().flat_map(|process| {
            let bootstrap = process.bootstrap.iter().map(|(interface, _)| interface);
            bootstrap.chain(&process.sockets).map(|interface| interface.name.clone())
        })),
        nics: unique(log.processes.iter().flat_map(|process| process.nics.iter().cloned())),
        communicators: groups(log),
        algorithms: algorithms(&log.choices),
        settings: log.settings.iter().map(|setting| (setting.name.clone(), setting.value.clone())).collect(),
        warnings: log.warnings.len(),
        notes: log.notes.clone(),
        ..Summary::default()
    };
    let multicast: BTreeSet<bool> =
        log.processes.iter().flat_map(|process| process.multicast.values()).copied().collect();
    summary.multicast = multicast.first().copied().filter(|_| multicast.len() == 1);
    if let Some(largest) = log.largest() {
        let counts = log.ranks_of(largest).filter_map(|rank| Some(rank.channels.as_ref()?.0.collectives));
        summary.channels = counts.fold(None, |range: Option<(u32, u32)>, count| {
            Some(range.map_or((count, count), |(least, most)| (least.min(count), most.max(count))))
        });
        summary.wires = wires(log, largest, fabric);
        summary.pairs(largest.size);
    }
    summary
}

fn unique(all: impl Iterator<Item = String>) -> Vec<String> {
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// 12020 is 12.2.
fn cuda_version(code: u32) -> String {
    format!("{}.{}", code / 1000, code % 1000 / 10)
}

fn groups(log: &Log) -> Vec<Group> {
    let mut groups: BTreeMap<u32, Group> = BTreeMap::new();
    for communicator in &log.communicators {
        let size = communicator.size;
        let group = groups.entry(size).or_insert(Group { size, count: 0, seen: 0, complete: 0 });
        group.count += 1;
        group.seen += communicator.ranks.len();
        group.complete += log.ranks_of(communicator).filter(|rank| rank.stage >= Stage::Complete).count();
    }
    groups.into_values().rev().collect()
}

/// For each call, the algorithm and protocol by size.
pub(super) fn algorithms(choices: &[Choice]) -> Vec<String> {
    let mut calls: BTreeMap<&str, BTreeMap<u64, (&str, &str)>> = BTreeMap::new();
    for choice in choices {
        calls.entry(&choice.call).or_default().insert(choice.bytes, (&choice.algorithm, &choice.protocol));
    }
    let of = |(call, sizes): (&str, BTreeMap<u64, (&str, &str)>)| {
        let mut parts: Vec<(u64, u64, (&str, &str))> = Vec::new();
        for (bytes, choice) in sizes {
            match parts.last_mut() {
                Some((_, last, same)) if *same == choice => *last = bytes,
                _ => parts.push((bytes, bytes, choice)),
            }
        }
        let words = parts.into_iter().map(|(first, last, (algorithm, protocol))| {
            let sizes = match first == last {
                true => format!("at {}", size(first)),
                false => format!("from {} to {}", size(first), size(last)),
            };
            format!("{} {sizes}", format!("{algorithm} {protocol}").trim())
        });
        let call = if call.is_empty() { "calls" } else { call };
        format!("{call}: {}", words.collect::<Vec<_>>().join(", "))
    };
    calls.into_iter().map(of).collect()
}

impl Summary {
    /// The links between pairs of ranks, counted and as a matrix.
    fn pairs(&mut self, size: u32) {
        let mut pairs: BTreeMap<(u32, u32), &Link> = BTreeMap::new();
        let hops = self.wires.rings.iter().flat_map(|ring| &ring.hops);
        for hop in hops.chain(self.wires.trees.iter().flat_map(|tree| &tree.hops)) {
            pairs.entry((hop.source, hop.target)).or_insert(&hop.link);
        }
        for link in pairs.values() {
            let words = match link {
                Link::Network(name, true) => format!("{name} with GPUDirect RDMA"),
                link => link.to_string(),
            };
            *self.links.entry(words).or_default() += 1;
        }
        if size <= MATRIX_MAX && !pairs.is_empty() {
            let cell = |pair: (u32, u32)| pairs.get(&pair).map(|link| link.to_string()).unwrap_or_default();
            self.matrix =
                (0..size).map(|source| (0..size).map(|target| cell((source, target))).collect()).collect();
        }
    }
}

/// The first names, and how many more.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `channels 0-3, 8`
fn channels(channels: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for channel in channels {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *channel => *last = *channel,
            _ => parts.push((*channel, *channel)),
        }
    }
    let parts = parts.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// The lines that the command prints above the findings.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, text: String| match text.is_empty() {
            true => Ok(()),
            false => writeln!(f, "{name:<13}{text}"),
        };
        line("library", some(&self.versions))?;
        line("CUDA driver", some(&self.cuda_drivers))?;
        line("hosts", some(&self.hosts))?;
        for group in &self.communicators {
            let Group { size, count, seen, complete } = group;
            let of = count * *size as usize;
            line(
                "communicator",
                format!("{count} of {size} ranks; {seen} of {of} ranks are in the log, {complete} finished"),
            )?;
        }
        line("network", some(&self.networks))?;
        line("interfaces", some(&self.interfaces))?;
        line("NICs", some(&self.nics))?;
        line(
            "NVLS",
            self.multicast
                .map_or_else(String::new, |has| if has { "available" } else { "not available" }.to_owned()),
        )?;
        line(
            "channels",
            self.channels.map_or_else(String::new, |(least, most)| match least == most {
                true => least.to_string(),
                false => format!("{least} to {most}"),
            }),
        )?;
        let links = self.links.iter().map(|(link, count)| format!("{count} {link}"));
        line("links", links.collect::<Vec<_>>().join(", "))?;
        for (at, ring) in self.wires.rings.iter().take(WIRES_MAX).enumerate() {
            line(
                if at == 0 { "rings" } else { "" },
                format!("{ring}  (channels {})", channels(&ring.channels)),
            )?;
        }
        more(f, self.wires.rings.len(), "rings")?;
        for (at, tree) in self.wires.trees.iter().take(WIRES_MAX).enumerate() {
            writeln!(
                f,
                "{:<13}{tree}  (channels {})",
                if at == 0 { "trees" } else { "" },
                channels(&tree.channels)
            )?;
        }
        more(f, self.wires.trees.len(), "trees")?;
        for (at, algorithm) in self.algorithms.iter().enumerate() {
            writeln!(f, "{:<13}{algorithm}", if at == 0 { "algorithms" } else { "" })?;
        }
        for (at, (name, value)) in self.settings.iter().enumerate() {
            writeln!(f, "{:<13}{name}={value}", if at == 0 { "settings" } else { "" })?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{:<13}{note}", "left out"))
    }
}

fn more(f: &mut fmt::Formatter<'_>, count: usize, what: &str) -> fmt::Result {
    match count.saturating_sub(WIRES_MAX) {
        0 => Ok(()),
        more => writeln!(f, "{:<13}and {more} more {what}", ""),
    }
}
