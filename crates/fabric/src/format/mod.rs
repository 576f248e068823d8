//! Readers and writers of fabric descriptions. They work on bytes and open no file.
//!
//! [`read`] detects the format. The readers do not trust their input: each has limits, and every mistake is a
//! [`ReadError`] with a line and a reason.

pub mod document;
pub mod dot;
pub mod hwloc;
pub mod ibnetdiscover;
mod lines;
pub mod network;
pub mod rocm;
pub mod slurm;
pub mod smi;
pub mod svg;
pub mod xml;

use crate::catalog::gpus::GpuModel;
use crate::fabric::{Fabric, FabricError};

/// The largest input that the readers accept. Real descriptions have some kilobytes.
pub const INPUT_BYTES_MAX: usize = 64 << 20;

/// Why an input could not be read. The reason says what to fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A mistake on a line.
    #[error("line {line}: {reason}")]
    At {
        /// The line, counted from 1.
        line: usize,
        /// The mistake and how to fix it.
        reason: String,
    },
    /// The input exceeds [`INPUT_BYTES_MAX`].
    #[error(
        "the input has {bytes} bytes; the limit for a fabric description is {INPUT_BYTES_MAX}. Is this the right file?"
    )]
    TooLarge {
        /// Bytes of the input.
        bytes: usize,
    },
    /// The input is in none of the supported formats.
    #[error(
        "unknown format: expected topology XML of NCCL or lstopo, the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or \
         `ibnetdiscover`, Slurm's topology.conf, or a TOML or JSON document with a `weft` key"
    )]
    UnknownFormat,
    /// The described fabric is invalid.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl ReadError {
    /// An error on a line.
    pub(crate) fn at(line: usize, reason: impl Into<String>) -> Self {
        Self::At { line, reason: reason.into() }
    }
}

/// A supported input format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// NCCL topology XML, or RCCL's dialect of it.
    Xml,
    /// The text of `nvidia-smi topo -m`.
    Smi,
    /// The text of `rocm-smi --showtopo`.
    Rocm,
    /// A document in TOML.
    Toml,
    /// A document in JSON.
    Json,
    /// The XML of hwloc's `lstopo`.
    Hwloc,
    /// The output of `ibnetdiscover`: a network without GPUs.
    IbNetDiscover,
    /// Slurm's `topology.conf`: a network without GPUs.
    Slurm,
}

/// Detects the format of an input.
pub fn detect(bytes: &[u8]) -> Option<Format> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let has_version = |line: &[u8]| {
        line.strip_prefix(b"weft").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"="))
    };
    match bytes.first()? {
        b'<' if hwloc::looks_like(bytes) => Some(Format::Hwloc),
        b'<' => Some(Format::Xml),
        b'{' => Some(Format::Json),
        _ if rocm::looks_like(bytes) => Some(Format::Rocm),
        _ if smi::looks_like(bytes) => Some(Format::Smi),
        _ if bytes.split(|b| *b == b'\n').any(has_version) => Some(Format::Toml),
        _ if ibnetdiscover::looks_like(bytes) => Some(Format::IbNetDiscover),
        _ if slurm::looks_like(bytes) => Some(Format::Slurm),
        _ => None,
    }
}

/// Reads a fabric in any supported format. `name` is used where the input has no name of its own. `gpu` is the model of
/// the GPUs in the tables of `nvidia-smi` and `rocm-smi`, which do not name them; other formats ignore it.
pub fn read(bytes: &[u8], name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, ReadError> {
    match detect(bytes).ok_or(ReadError::UnknownFormat)? {
        Format::Xml => xml::read(bytes, name),
        Format::Smi => smi::read(bytes, name, gpu),
        Format::Rocm => rocm::read(bytes, name, gpu),
        Format::Toml => document::read_toml(bytes),
        Format::Json => document::read_json(bytes),
        Format::Hwloc => hwloc::read(bytes, name),
        Format::IbNetDiscover => Ok(ibnetdiscover::read(bytes)?.bare(name)?),
        Format::Slurm => Ok(slurm::read(bytes)?.bare(name)?),
    }
}

/// The input as UTF-8 text, if it is within the limit.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, ReadError> {
    if bytes.len() > INPUT_BYTES_MAX {
        return Err(ReadError::TooLarge { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        ReadError::at(line, "the line has bytes that are not UTF-8; save the file as UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// A part of the input for a message: at most 40 characters, on one line.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    let mut shown: String =
        text.chars().take(CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_detected() {
        assert_eq!(detect(b"\xef\xbb\xbf\n <system/>"), Some(Format::Xml));
        assert_eq!(detect(b"\tGPU0\tGPU1\nGPU0\t X \tNV4\n"), Some(Format::Smi));
        assert_eq!(detect(b"== Weight between two GPUs ==\n  GPU0 GPU1\n"), Some(Format::Rocm));
        assert_eq!(detect(b"# a rack\nweft = 1\n"), Some(Format::Toml));
        assert_eq!(detect(b" {\"weft\": 1}"), Some(Format::Json));
        assert_eq!(detect(b"<?xml version=\"1.0\"?>\n<!DOCTYPE topology>\n<topology>"), Some(Format::Hwloc));
        assert_eq!(detect(b"<!-- <topology --><system/>"), Some(Format::Xml));
        assert_eq!(detect(b"#\n# Topology file: generated on a day"), Some(Format::IbNetDiscover));
        assert_eq!(detect(b"# tree\nswitchname=s0 Nodes=n0"), Some(Format::Slurm));
        for other in ["", "  \n", "hello", "weft topo"] {
            assert_eq!(detect(other.as_bytes()), None, "{other}");
            assert_eq!(read(other.as_bytes(), "x", None), Err(ReadError::UnknownFormat));
        }
    }

    #[test]
    fn large_and_non_utf8_inputs_are_refused() {
        let bytes = vec![b' '; INPUT_BYTES_MAX + 1];
        assert_eq!(text(&bytes), Err(ReadError::TooLarge { bytes: bytes.len() }));
        let error = text(b"<system>\n<!-- caf\xe9 -->").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: the line has bytes that are not UTF-8; save the file as UTF-8"
        );
    }

    #[test]
    fn excerpts_are_short_and_on_one_line() {
        assert_eq!(excerpt("a\nb"), "a b");
        assert_eq!(excerpt(&"x".repeat(50)), format!("{}...", "x".repeat(40)));
    }
}
