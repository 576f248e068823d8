//! The text of `nvidia-smi topo -m`: a matrix of how each GPU and NIC reaches each other.
//!
//! The matrix says which GPUs share NVLinks and how many, and for every other pair how far up PCIe the path goes. From
//! that the tree is rebuilt: `table` reads the text, `groups` finds what shares a switch, a root complex and a NUMA
//! node, `build` wires it up. `PHB` and `NODE` both lead through the NUMA node, as NCCL has no path in between.
//!
//! What the text does not say is deliberately absent: which GPU it is, how fast anything is, what PCIe lies between two
//! GPUs that NVLink joins. A caller who knows the GPU gives its model; the rest is in the notes.

mod build;
mod groups;
mod table;

use crate::catalog::gpus::GpuModel;
use crate::fabric::Fabric;
use crate::format::ReadError;

pub use table::looks_like;

/// Reads the text of `nvidia-smi topo -m`. With `gpu`, every GPU is that model and links have its rates.
pub fn read(bytes: &[u8], name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, ReadError> {
    let table = table::parse(crate::format::text(bytes)?)?;
    let groups = groups::Groups::of(&table)?;
    build::build(&table, &groups, name, gpu)
}
