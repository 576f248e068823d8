//! What the library detected of the machine: the dump that `NCCL_DEBUG_SUBSYS=GRAPH` prints.
//!
//! Between `=== System : maxBw 48.0 totalBw 360.0 ===` and a line of `=`, a tree of CPUs, switches, GPUs and NICs with the bandwidth of each
//! link; after it, one line per device with its paths to the others.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::line::{self, Message};
use super::model::{Log, Rank, Seen};

const DEVICES_MAX: usize = 1024;
const PATHS_MAX: usize = 16_384;

/// What the library detected of one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Topology {
    /// The process that printed it: an index into the log's processes.
    pub process: usize,
    /// The line at which it begins.
    pub seen: Seen,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Its network ports: name and GB/s.
    pub ports: Vec<(String, f64)>,
    /// Paths between GPUs.
    pub paths: Vec<Path>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// Its name in the dump, of which the last part is the PCI address: `GPU/1B000`, `GPU/0-1b000`.
    pub name: String,
    /// Its rank.
    pub rank: Option<u32>,
    /// GB/s of all its NVLinks.
    pub nvlink_gb_per_s: f64,
    /// GB/s of its PCIe link.
    pub pcie_gb_per_s: f64,
    /// The line.
    pub seen: Seen,
}

/// A path between two GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// The one GPU.
    pub source: String,
    /// The other.
    pub target: String,
    /// NCCL's type: `NVL`, `PIX`, `PHB`, `SYS`.
    pub kind: String,
    /// GB/s.
    pub gb_per_s: f64,
    /// The line.
    pub line: usize,
}

impl Topology {
    /// The rank on each GPU: by its PCI address, or as the dump says, which means the ranks of the communicator that was initialised.
    pub(super) fn ranks<'t>(&'t self, log: &Log, ranks: &[&Rank]) -> BTreeMap<&'t str, u32> {
        let host = log.processes.get(self.process).map(|process| process.host.as_str());
        let of = |gpu: &'t Gpu| {
            let bus = gpu.name.rsplit(['/', '-']).next().unwrap_or("");
            let is_on = |rank: &&&Rank| {
                Some(log.host_of(rank)) == host
                    && rank.bus.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(bus))
            };
            let by_bus = ranks.iter().find(is_on).and_then(|rank| rank.rank);
            let has_bus = || ranks.iter().any(|rank| rank.bus.is_some());
            Some((gpu.name.as_str(), by_bus.or_else(|| gpu.rank.filter(|_| !has_bus()))?))
        };
        self.gpus.iter().filter_map(of).collect()
    }

    /// The pairs of ranks that NVLink connects, directly or through another GPU.
    pub(super) fn nvlink_pairs(&self, log: &Log, ranks: &[&Rank]) -> BTreeSet<(u32, u32)> {
        let ranks = self.ranks(log, ranks);
        let near = self.paths.iter().filter(|path| matches!(path.kind.as_str(), "NVL" | "NVB"));
        near.filter_map(|path| Some((*ranks.get(path.source.as_str())?, *ranks.get(path.target.as_str())?)))
            .collect()
    }

    /// Whether the GPUs have the same links as those of another.
    pub(super) fn has_rates_of(&self, other: &Self) -> bool {
        let rates = |topology: &Self| -> Vec<(String, u64, u64)> {
            let of =
                |gpu: &Gpu| (gpu.name.clone(), gpu.nvlink_gb_per_s.to_bits(), gpu.pcie_gb_per_s.to_bits());
            topology.gpus.iter().map(of).collect()
        };
        rates(self) == rates(other)
    }
}

/// A dump that is being read.
#[derive(Debug, Default)]
pub(super) struct Dump {
    topology: Topology,
    /// Whether the tree is complete.
    has_tree: bool,
    /// The devices above the current line, with the column of their names: the GPU's index for GPUs.
    above: Vec<(usize, Option<usize>)>,
}

impl Dump {
    /// Begins a dump, if the line is its first.
    pub(super) fn begins(process: usize, message: &Message<'_>) -> Option<Self> {
        let is_first = message.text.starts_with("=== System : max");
        let seen = Seen { line: message.number, text: line::kept(message.whole) };
        is_first
            .then(|| Self { topology: Topology { process, seen, ..Topology::default() }, ..Self::default() })
    }

    /// Reads a line of the dump; false if the line is not part of it.
    pub(super) fn read(&mut self, message: &Message<'_>) -> bool {
        let text = message.text;
        if text.starts_with("=====") {
            self.has_tree = true;
            return true;
        }
        if self.has_tree { self.paths(message) } else { self.device(message) }
    }

    /// The topology, if it has a device.
    pub(super) fn finish(self) -> Option<Topology> {
        let Topology { gpus, ports, .. } = &self.topology;
        (!gpus.is_empty() || !ports.is_empty()).then_some(self.topology)
    }

    /// `CPU/0 (1/1/2)`, or with a link `+ PCI[24.0] - GPU/1B000 (0)`.
    fn device(&mut self, message: &Message<'_>) -> bool {
        let text = message.text;
        let column = text.len() - text.trim_start().len();
        let entry = text.trim_start();
        let (link, name_column, device) = match entry.strip_prefix("+ ") {
            None => (None, column, entry),
            Some(rest) => {
                let Some((link, device)) = rest.split_once("] - ") else { return false };
                let Some((kind, rate)) = link.split_once('[') else { return false };
                let rate = rate.trim().parse::<f64>().ok().filter(|rate| (0.0..1e6).contains(rate));
                (Some((kind.trim(), rate.unwrap_or(0.0))), text.len() - device.len(), device)
            }
        };
        let name = device.split_whitespace().next().unwrap_or("");
        if !name.contains('/') {
            return false;
        }
        // A link begins in the column of the name of the device that it belongs to.
        while self
            .above
            .last()
            .is_some_and(|(above, _)| *above > column || (link.is_none() && *above == column))
        {
            self.above.pop();
        }
        let owner = self.above.last().and_then(|(_, gpu)| *gpu);
        let mut own = None;
        match link {
            Some(("NVL", rate)) => {
                if let Some(gpu) = owner {
                    self.topology.gpus[gpu].nvlink_gb_per_s += rate;
                }
                return true;
            }
            Some(("NET", rate)) => {
                let is_new = !self.topology.ports.iter().any(|(port, _)| port == name);
                if is_new && self.topology.ports.len() < DEVICES_MAX {
                    self.topology.ports.push((line::shortened(name, 40).to_owned(), rate));
                }
                return true;
            }
            Some(("PCI" | "C2C", rate))
                if name.starts_with("GPU/") && self.topology.gpus.len() < DEVICES_MAX =>
            {
                let rank =
                    device.split_once('(').and_then(|(_, rank)| rank.split(')').next()?.trim().parse().ok());
                self.topology.gpus.push(Gpu {
                    name: line::shortened(name, 40).to_owned(),
                    rank,
                    pcie_gb_per_s: rate,
                    seen: Seen { line: message.number, text: line::kept(message.whole) },
                    ..Gpu::default()
                });
                own = Some(self.topology.gpus.len() - 1);
            }
            _ => {}
        }
        if self.above.len() < DEVICES_MAX {
            self.above.push((name_column, own));
        }
        true
    }

    /// `GPU/1B000 :GPU/1B000 (0/5000.000000/LOC) GPU/1C000 (2/20.000000/NVL)`.
    fn paths(&mut self, message: &Message<'_>) -> bool {
        let Some((source, list)) = message.text.split_once(" :") else { return false };
        let source = source.trim();
        if !source.contains('/') || source.contains(' ') {
            return false;
        }
        let words: Vec<&str> = list.split_whitespace().collect();
        for pair in words.windows(2) {
            let [target, path] = pair else { continue };
            if !source.starts_with("GPU/") || !target.starts_with("GPU/") || *target == source {
                continue;
            }
            let path = path.trim_matches(['(', ')']);
            let mut parts = path.split('/').skip(1);
            let (Some(rate), Some(kind)) = (parts.next().and_then(|rate| rate.parse().ok()), parts.next())
            else {
                continue;
            };
            if self.topology.paths.len() < PATHS_MAX {
                let short = |text: &str| line::shortened(text, 40).to_owned();
                let (source, target, kind) = (short(source), short(target), short(kind));
                self.topology.paths.push(Path { source, target, kind, gb_per_s: rate, line: message.number });
            }
        }
        true
    }
}
