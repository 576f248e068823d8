//! Networks of named hosts, as `ibnetdiscover` and Slurm describe them: hosts, switches and cables, but no GPUs.
//!
//! Alone, such a network is a fabric whose hosts have NICs only. With a [`HostSpec`] and a fabric of one host, every host
//! of the file becomes a copy of that one. Hosts and switches keep their names.
//!
//! Deliberately absent: routing. Traffic between two leaf switches is taken to use all cables between them.

mod attach;
mod build;
pub(crate) mod hostlist;
pub(crate) mod names;

use super::{Format, ReadError, detect, ibnetdiscover, slurm};
use crate::fabric::{Fabric, FabricError};
use crate::spec::HostSpec;

/// Switches of a network.
pub const SWITCHES_MAX: usize = 50_000;
/// Hosts of a network.
pub const HOSTS_MAX: usize = 100_000;
/// Cables of a network, and lines of a file that name one.
pub const CABLES_MAX: usize = 700_000;
/// GPUs of a network, the same as in a cluster spec.
pub const GPUS_MAX: u64 = crate::spec::GPUS_MAX;

/// A network of named hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostNetwork {
    pub(crate) hosts: Vec<NetworkHost>,
    /// The names of the switches.
    pub(crate) switches: Vec<String>,
    pub(crate) wiring: Wiring,
    pub(crate) notes: Vec<String>,
}

/// A host of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkHost {
    pub(crate) name: String,
    /// Its adapters' names in natural order; empty where the file does not list adapters.
    pub(crate) adapters: Vec<Option<String>>,
}

/// What the file knows about cables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wiring {
    /// Every cable.
    Cables(Vec<Cable>),
    /// Which switches a host and a switch are below. Numbers of cables and rates are unknown.
    Tree {
        /// For each host.
        leaves: Vec<Vec<u32>>,
        /// For each switch.
        parents: Vec<Vec<u32>>,
    },
}

/// An end of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    Adapter { host: u32, adapter: u32 },
    Switch(u32),
}

/// An InfiniBand cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cable {
    pub(crate) ends: (End, End),
    /// Gb/s, as both ports negotiated.
    pub(crate) gbit: u32,
}

/// A network and a host type do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The host type is not one host.
    #[error("{name} has {hosts} hosts; the file lists the hosts one by one, so name a system of one host")]
    NotOneHost {
        /// The host type.
        name: String,
        /// Its hosts.
        hosts: usize,
    },
    /// The file lists NICs or cables that the spec gives, too.
    #[error("the file lists the {what}: remove `{part}`")]
    InFile {
        /// What the file lists.
        what: &'static str,
        /// The part of the spec.
        part: &'static str,
    },
    /// Neither the file nor the host type has NICs.
    #[error("{name} has no NICs and the file lists none: add them, as in `+ {name} + 8x ndr`")]
    NoNics {
        /// The host type.
        name: String,
    },
    /// The host type has NICs of known rates, and the spec gives NICs, too.
    #[error("{name} has its own NICs: remove `+ {nics}x ...`")]
    OwnNics {
        /// The host type.
        name: String,
        /// NICs in the spec.
        nics: u32,
    },
    /// The host type has fewer NICs than the spec.
    #[error(
        "{name} has {found} NICs that can be cabled, fewer than {wanted}: write the number of those in use"
    )]
    FewerNics {
        /// The host type.
        name: String,
        /// Its NICs.
        found: usize,
        /// NICs in the spec.
        wanted: u32,
    },
    /// The list of hosts is malformed, or names a host that the file does not have.
    #[error("`hosts`: {reason}")]
    Members {
        /// What is wrong.
        reason: String,
    },
    /// More GPUs than the limit.
    #[error("this cluster has {gpus} GPUs; the limit is {GPUS_MAX}. Name fewer hosts with `, hosts NAMES`")]
    TooManyGpus {
        /// The GPUs.
        gpus: u64,
    },
    /// The host type has neither a PCIe switch nor a NUMA node.
    #[error("{name} has no NUMA node to attach a NIC to: name another host type")]
    NoSlot {
        /// The host type.
        name: String,
    },
    /// The fabric exceeds a limit.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// Reads a network, if the input is in a format that describes one.
pub fn read(bytes: &[u8]) -> Option<Result<HostNetwork, ReadError>> {
    match detect(bytes)? {
        Format::IbNetDiscover => Some(ibnetdiscover::read(bytes)),
        Format::Slurm => Some(slurm::read(bytes)),
        _ => None,
    }
}

impl HostNetwork {
    /// The network alone: its hosts have NICs and no GPUs, and a note says how to name the host type.
    pub fn bare(&self, name: &str) -> Result<Fabric, FabricError> {
        build::bare(self, name)
    }

    /// The cluster in which the hosts of the file, or those that the spec names, are copies of `host`.
    pub fn with_host(&self, name: &str, host: &Fabric, spec: &HostSpec) -> Result<Fabric, AttachError> {
        attach::attach(self, name, host, spec)
    }

    /// The number of adapters that most hosts have, and the hosts that have fewer.
    fn with_fewer_adapters(&self) -> (usize, Vec<&str>) {
        let mut numbers: Vec<usize> = self.hosts.iter().map(|host| host.adapters.len()).collect();
        numbers.sort_unstable();
        let most_common = numbers.chunk_by(|a, b| a == b).max_by_key(|same| same.len());
        let usual = most_common.and_then(|same| same.first()).copied().unwrap_or(0);
        let fewer = self.hosts.iter().filter(|host| host.adapters.len() < usual);
        (usual, fewer.map(|host| host.name.as_str()).collect())
    }
}

/// Up to three names and the number of the others, for a note.
pub(crate) fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
