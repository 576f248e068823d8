//! The output of `nvidia-smi topo -m`: a matrix of the paths between GPUs and NICs.
//!
//! The matrix gives the number of NVLinks between GPUs, and for every other pair how far up PCIe the path goes. The
//! reader rebuilds the tree from that: `table` parses the text, `groups` finds the devices that share a switch, a root
//! complex or a NUMA node, `build` builds the fabric. `PHB` and `NODE` both lead through the NUMA node, because NCCL has
//! no path type in between.
//!
//! The matrix does not contain the GPU model, any rate, or the PCIe distance of GPUs connected by NVLink. The caller may
//! pass the model; notes list the rest.

mod build;
mod groups;
mod table;

use crate::catalog::gpus::GpuModel;
use crate::fabric::Fabric;
use crate::format::ReadError;

pub(crate) use table::looks_like;

/// Reads the output of `nvidia-smi topo -m`. `gpu` is the model of all GPUs and gives the rates of their links.
pub fn read(bytes: &[u8], name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, ReadError> {
    let table = table::parse(crate::format::text(bytes)?)?;
    let groups = groups::Groups::of(&table)?;
    build::build(&table, &groups, name, gpu)
}
