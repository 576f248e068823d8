//! The fabric of this very machine: the only crate that looks at hardware.
//!
//! [`this_machine`] reads sysfs and asks NVIDIA's driver, loaded at run time; [`probe`] does the same with any
//! [`Tree`] and [`GpuSource`], and [`record`] keeps what it read as one text file that probes to the same fabric
//! anywhere else. A machine without GPUs or driver is drawn as far as it can be seen, with notes that say what
//! could not.
//!
//! Deliberately absent: the graph that AMD's and Intel's drivers know of their GPUs, and what lies past the NICs.

mod cores;
mod cpu;
mod gpu_source;
mod gpus;
mod interfaces;
mod models;
mod nvlinks;
mod nvml;
mod pci;
mod pcie;
mod record;
mod recording;
mod target;
mod tree;
mod wiring;

pub use cores::{Closeness, Core, Share, cores, cpu_list, cpu_ranges, divide};
pub use gpu_source::{GpuReport, GpuReports, GpuSource, NvLinkReport, NvLinkUp, Remote};
pub use nvml::Nvml;
pub use record::record;
pub use recording::{BadRecording, Recording};
pub use target::{TargetError, open};
pub use tree::{Folder, Tree};

use weftlink_fabric::{Fabric, FabricError};

use cpu::Sockets;
use interfaces::Interfaces;
use models::model_of;
use pci::Functions;
use wiring::Machine;

/// The fabric of the machine this runs on.
pub fn this_machine() -> Result<Fabric, ProbeError> {
    probe(&Folder::new("/"), &Nvml)
}

/// The fabric of the machine whose `sys/` and `proc/` are in `tree` and whose GPUs `gpus` tells about.
///
/// What is strange is left out and noted ([`Fabric::notes`]); only a tree that shows no machine at all, or one too
/// large to be real, is an error.
pub fn probe(tree: &dyn Tree, gpus: &dyn GpuSource) -> Result<Fabric, ProbeError> {
    if tree.list("sys").is_empty() && tree.read(cpu::CPUINFO).is_none() {
        return Err(ProbeError::NothingThere);
    }
    let mut machine = Machine {
        name: host_name(tree),
        sockets: Sockets::read(tree)?,
        functions: Functions::read(tree)?,
        interfaces: Interfaces::read(tree)?,
        reports: gpus.gpus(),
    };
    if has_c2c(&machine) && machine.sockets.cpu.arch.as_deref() == Some("arm64") {
        // The cores call themselves ARM's; a GPU wired to them by C2C gives Grace away.
        machine.sockets.cpu.vendor = Some("NVIDIA".into());
    }
    Ok(machine.assemble()?)
}

/// A machine could not be probed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// Neither sysfs nor `/proc/cpuinfo`.
    #[error(
        "there is no machine to see: neither sys/ nor proc/cpuinfo is there. Probing needs Linux with /sys mounted; \
         elsewhere, describe the machine by a preset, a spec or a file"
    )]
    NothingThere,
    /// More than any machine has.
    #[error("{path} lists more than {limit} {what}: that is no real machine")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// Where.
        path: String,
        /// How many there may be.
        limit: usize,
    },
    /// The fabric does not hold together.
    #[error("what the machine shows does not make a fabric: {0}")]
    Fabric(#[from] FabricError),
}

const HOST_NAME: &str = "proc/sys/kernel/hostname";

fn host_name(tree: &dyn Tree) -> String {
    let name = tree.read(HOST_NAME).unwrap_or_default();
    match name.chars().all(|c| c.is_ascii_graphic() && c != '/') {
        true if !name.is_empty() && name.len() < 256 => name,
        _ => "host0".to_owned(),
    }
}

fn has_c2c(machine: &Machine) -> bool {
    let told = machine.reports.gpus.iter().any(|report| report.c2c_links.is_some_and(|links| links > 0));
    let models = machine.functions.by_bus.values().filter(|function| function.role == pci::Role::Gpu);
    told || models
        .filter_map(|function| model_of(Some((function.vendor, function.device)), None))
        .any(|model| model.c2c_links > 0)
}
