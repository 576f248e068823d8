//! Which machines, libraries and collectives the model was compared with, and where a prediction leaves these.

use std::fmt;

use super::Class;
use super::intervals::{self, Intervals, Spread, Spreads, WIDER};
use crate::gpu::Generation;
use crate::library::version_of;
use crate::setup::{Library, Operation, Setup, Version};

/// Published measurements that are alike, from sites that are not frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The class of the machines.
    pub class: Class,
    /// The library.
    pub library: Library,
    /// The GPUs' generation.
    pub generation: Generation,
    /// The collective.
    pub operation: Operation,
    /// The sites, by number.
    pub sites: &'static [u16],
    /// The most nodes.
    pub nodes: u32,
}

/// Fewer sites than this say little about others.
pub const SITES_LEAST: usize = 4;

/// Machines with more than this many times the nodes of the largest measured one are outside the evidence.
const NODES_MORE: u32 = 2;

include!("table.rs");

/// How a prediction leaves the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outside {
    /// The published measurements of the library in this class come from few sites.
    FewSites {
        /// The library.
        library: Library,
        /// The class.
        class: Class,
        /// Their number.
        sites: usize,
    },
    /// There are no published measurements of the collective with this library in this class.
    Collective {
        /// The collective.
        operation: Operation,
        /// The library.
        library: Library,
        /// The class.
        class: Class,
    },
    /// The measured machines of the class have GPUs of other generations.
    Gpu {
        /// The GPU.
        gpu: &'static str,
        /// The class.
        class: Class,
    },
    /// The machine has many more nodes than the largest measured one of its class.
    Nodes {
        /// The nodes of the machine.
        nodes: u32,
        /// The most that were measured.
        most: u32,
    },
    /// There are no published measurements of calls with blocks of different lengths.
    Counts,
    /// The library is older than the GPU.
    OlderThanGpu {
        /// The GPU.
        gpu: &'static str,
        /// The first version that supports it.
        first: Version,
    },
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewSites { library, class, sites: 0 } => {
                write!(f, "there are no published measurements of {} ({})", library.name(), class.name())
            }
            Self::FewSites { library, class, sites } => {
                let sites = if *sites == 1 { "one site" } else { &format!("{sites} sites") };
                write!(f, "measurements of {} come from {sites} only ({})", library.name(), class.name())
            }
            Self::Collective { operation, library, class } => write!(
                f,
                "there are no published measurements of {} with {} ({})",
                operation.name(),
                library.name(),
                class.name()
            ),
            Self::Gpu { gpu, class } => {
                write!(f, "the measured GPUs are of other generations than the {gpu} ({})", class.name())
            }
            Self::Nodes { nodes, most } => {
                write!(f, "the machine has {nodes} nodes, and the largest measured one has {most}")
            }
            Self::Counts => {
                f.write_str("there are no published measurements with blocks of different lengths")
            }
            Self::OlderThanGpu { gpu, first } => {
                write!(f, "the library is older than the {gpu}, which NCCL supports since {first}")
            }
        }
    }
}

/// How a call leaves the evidence; nothing if it is inside.
pub fn outside(setup: &Setup, operation: Operation) -> Vec<Outside> {
    let (class, library) = (Class::of(setup), setup.library);
    let of_class = || MEASURED.iter().filter(|measured| measured.class == class);
    let of_library = || of_class().filter(|measured| measured.library == library);
    let mut outside = Vec::new();
    let sites = sites(of_library());
    if sites < SITES_LEAST {
        outside.push(Outside::FewSites { library, class, sites });
    }
    if sites > 0 && !of_library().any(|measured| measured.operation == operation) {
        outside.push(Outside::Collective { operation, library, class });
    }
    let gpu = setup.gpu.model();
    if sites > 0 && !of_class().any(|measured| measured.generation == setup.gpu.generation()) {
        outside.push(Outside::Gpu { gpu: gpu.name, class });
    }
    let most = of_class().map(|measured| measured.nodes).max().unwrap_or(0);
    if most > 0 && setup.nodes > NODES_MORE * most {
        outside.push(Outside::Nodes { nodes: setup.nodes, most });
    }
    let first = first_version(setup.gpu.generation());
    if library == Library::Nccl && version_of(setup).is_some_and(|version| version < first) {
        outside.push(Outside::OlderThanGpu { gpu: gpu.name, first });
    }
    outside
}

/// The number of different sites.
pub fn sites<'m>(measured: impl Iterator<Item = &'m Measured>) -> usize {
    let mut sites: Vec<u16> = measured.flat_map(|measured| measured.sites.iter().copied()).collect();
    sites.sort_unstable();
    sites.dedup();
    sites.len()
}

/// The sites behind the intervals of a class.
pub fn sites_of(class: Class) -> usize {
    sites(MEASURED.iter().filter(|measured| measured.class == class))
}

/// Whether there are published measurements of the library on GPUs; without them, a prediction has no interval.
pub fn is_measured(library: Library) -> bool {
    MEASURED.iter().any(|measured| measured.library == library)
}

/// The first NCCL for GPUs of a generation (release notes).
fn first_version(generation: Generation) -> Version {
    let minor = match generation {
        Generation::Pascal | Generation::Volta | Generation::Instinct => 0,
        Generation::Ampere => 7,
        Generation::Hopper => 15,
        Generation::Blackwell => 25,
    };
    Version { major: 2, minor }
}

/// The intervals around a predicted time, wider outside the evidence. `None` for a library without published measurements.
pub fn intervals(setup: &Setup, bytes: u64, time_us: f64, outside: &[Outside]) -> Option<Intervals> {
    is_measured(setup.library).then(|| {
        let spread = intervals::at(&SPREADS, Class::of(setup), bytes);
        // The intervals of a class account for the number of its sites, but not for that of one of its libraries.
        let is_wider = |outside: &Outside| match outside {
            Outside::FewSites { class, sites, .. } => *sites < sites_of(*class),
            _ => true,
        };
        let spread = if outside.iter().any(is_wider) { spread.wider(WIDER) } else { spread };
        spread.around(time_us)
    })
}
