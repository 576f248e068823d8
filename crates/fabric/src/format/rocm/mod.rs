//! The output of `rocm-smi --showtopo`, and with it that of `--shownodesbw`: which GPUs xGMI connects.
//!
//! The text has one table for each property, with a row and a column for each GPU. It does not contain the GPU model, the PCIe wiring or
//! NICs, and without `--shownodesbw` neither rates nor numbers of links. Every pair in a group of GPUs is listed as connected by xGMI, also
//! through other GPUs: direct pairs have the least weight, 15, or a bandwidth.

mod build;
mod tables;

use crate::catalog::gpus::GpuModel;
use crate::fabric::Fabric;
use crate::format::ReadError;

pub(crate) use tables::looks_like;

/// Reads the output of `rocm-smi --showtopo`. `gpu` is the model of all GPUs and gives the rates of their links.
pub fn read(bytes: &[u8], name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, ReadError> {
    let tables = tables::parse(crate::format::text(bytes)?)?;
    build::build(&tables, name, gpu)
}
