//! The fabric of the local machine. This is the only crate that reads hardware.
//!
//! [`this_machine`] reads sysfs and NVML, which it loads at run time; [`probe`] does the same with any [`Tree`] and
//! [`GpuSource`]. [`record`] saves what a probe read as one text file, which probes to the same fabric on any machine. On
//! a machine without GPUs or driver, the fabric contains what is visible, and notes say what is missing. [`inspect`] reads more than the
//! wiring: errors, clocks, logs, outputs of commands.
//!
//! [`links`] reads state, traffic and errors of the links, live and from the output of other tools.
//!
//! Deliberately absent: GPU links of Intel's driver, and the network past the NICs.

mod cores;
mod cpu;
mod gpu_source;
mod gpus;
mod inspect;
mod interfaces;
mod kfd;
pub mod links;
mod models;
mod nvlinks;
mod nvml;
mod pci;
mod pcie;
mod record;
mod recording;
mod software;
mod target;
mod tree;
mod wiring;
mod xgmi;

pub use cores::{BindTo, Core, CoreSet, cores, cpu_list, cpu_ranges, divide};
pub use gpu_source::{GpuReport, GpuReports, GpuSource, NvLinkReport, NvLinkUp, Remote};
pub use inspect::{Inspection, inspect};
pub use nvml::Nvml;
pub use record::record;
pub use recording::{Recording, RecordingError};
pub use software::{Library, SearchPaths, libraries, software};
pub use target::{TargetError, open};
pub use tree::{Folder, Tree};

use weftlink_fabric::{Fabric, FabricError};

use cpu::Sockets;
use interfaces::Interfaces;
use kfd::Kfd;
use models::model_of;
use pci::Functions;
use wiring::Machine;

/// Probes the local machine.
pub fn this_machine() -> Result<Fabric, ProbeError> {
    probe(&Folder::new("/"), &Nvml)
}

/// Probes the machine whose `sys/` and `proc/` are in `tree` and whose GPUs `gpus` reports.
///
/// Entries that cannot be interpreted are left out with a note ([`Fabric::notes`]). Only a tree without a machine, or one
/// above the limits, is an error.
pub fn probe(tree: &dyn Tree, gpus: &dyn GpuSource) -> Result<Fabric, ProbeError> {
    if tree.list("sys").is_empty() && tree.read(cpu::CPUINFO).is_none() {
        return Err(ProbeError::NoMachine);
    }
    let mut machine = Machine {
        name: host_name(tree),
        sockets: Sockets::read(tree)?,
        kfd: Kfd::default(),
        functions: Functions::read(tree)?,
        interfaces: Interfaces::read(tree)?,
        reports: gpus.gpus(),
    };
    machine.kfd = Kfd::read(tree, &machine.functions)?;
    if has_c2c(&machine) && machine.sockets.cpu.arch.as_deref() == Some("arm64") {
        // Grace reports ARM as its vendor; C2C links identify it.
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
        "no machine found: neither sys/ nor proc/cpuinfo can be read. Probing needs Linux with /sys mounted; \
         elsewhere, describe the machine by a preset, a spec or a file"
    )]
    NoMachine,
    /// A folder has more entries than the limit.
    #[error("{path} lists more than {limit} {what}, which is the limit")]
    TooMany {
        /// What the entries are.
        what: &'static str,
        /// The folder.
        path: String,
        /// The limit.
        limit: usize,
    },
    /// The probed fabric is invalid.
    #[error("cannot build a fabric of this machine: {0}")]
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
    let reported = machine.reports.gpus.iter().any(|report| report.c2c_links.is_some_and(|links| links > 0));
    let models = machine.functions.by_bus.values().filter(|function| function.role == pci::Role::Gpu);
    reported
        || models
            .filter_map(|function| model_of(Some((function.vendor, function.device)), None))
            .any(|model| model.c2c_links() > 0)
}
