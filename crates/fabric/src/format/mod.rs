//! Files that describe a fabric, read from bytes the caller already holds.
//!
//! [`read`] looks at the bytes to tell which format they are in. Nothing here opens a file, and nothing here trusts
//! its input: every reader has limits, and whatever is wrong is a [`ReadError`] with a line and a reason.

pub mod document;
pub mod dot;
pub mod smi;
pub mod svg;
pub mod xml;

use crate::catalog::gpus::GpuModel;
use crate::fabric::{Fabric, FabricError};

/// The largest input a reader takes. Real descriptions have some kilobytes.
pub const MAX_INPUT_BYTES: usize = 64 << 20;

/// Why an input could not be read. The reason is a sentence that says what to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Something is wrong on a line.
    #[error("line {line}: {reason}")]
    At {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// More bytes than any description has.
    #[error(
        "the input has {bytes} bytes, and a description of a fabric may have {MAX_INPUT_BYTES}; is it the right file?"
    )]
    TooLarge {
        /// How many there are.
        bytes: usize,
    },
    /// The bytes are in no format that is known here.
    #[error(
        "this is none of topology XML, the text of `nvidia-smi topo -m`, and a TOML or JSON document with a `weft` key"
    )]
    UnknownFormat,
    /// What was read does not make a fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl ReadError {
    /// An error on a line.
    pub(crate) fn at(line: usize, reason: impl Into<String>) -> Self {
        Self::At { line, reason: reason.into() }
    }
}

/// A format that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// NCCL topology XML, or RCCL's dialect of it.
    Xml,
    /// The text of `nvidia-smi topo -m`.
    Smi,
    /// A document in TOML.
    Toml,
    /// A document in JSON.
    Json,
}

/// Tells the format from the bytes alone.
pub fn detect(bytes: &[u8]) -> Option<Format> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let has_version = |line: &[u8]| {
        line.strip_prefix(b"weft").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"="))
    };
    match bytes.first()? {
        b'<' => Some(Format::Xml),
        b'{' => Some(Format::Json),
        _ if smi::looks_like(bytes) => Some(Format::Smi),
        _ if bytes.split(|b| *b == b'\n').any(has_version) => Some(Format::Toml),
        _ => None,
    }
}

/// Reads a fabric in whichever format the bytes are; `name` is what it is called where the bytes do not say. `gpu` is
/// the GPU of an `nvidia-smi` matrix, which does not say; the other formats do not need it.
pub fn read(bytes: &[u8], name: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric, ReadError> {
    match detect(bytes).ok_or(ReadError::UnknownFormat)? {
        Format::Xml => xml::read(bytes, name),
        Format::Smi => smi::read(bytes, name, gpu),
        Format::Toml => document::read_toml(bytes),
        Format::Json => document::read_json(bytes),
    }
}

/// The input as text, if there is not too much of it and it is UTF-8.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, ReadError> {
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(ReadError::TooLarge { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        ReadError::at(line, "this byte is not UTF-8 text; save the file as UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// A piece of the input for a message: short, and on one line.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 40;
    let mut shown: String =
        text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart() {
        assert_eq!(detect(b"\xef\xbb\xbf\n <system/>"), Some(Format::Xml));
        assert_eq!(detect(b"\tGPU0\tGPU1\nGPU0\t X \tNV4\n"), Some(Format::Smi));
        assert_eq!(detect(b"# a rack\nweft = 1\n"), Some(Format::Toml));
        assert_eq!(detect(b" {\"weft\": 1}"), Some(Format::Json));
        for other in ["", "  \n", "hello", "weft topo"] {
            assert_eq!(detect(other.as_bytes()), None, "{other}");
            assert_eq!(read(other.as_bytes(), "x", None), Err(ReadError::UnknownFormat));
        }
    }

    #[test]
    fn too_much_and_not_text() {
        let bytes = vec![b' '; MAX_INPUT_BYTES + 1];
        assert_eq!(text(&bytes), Err(ReadError::TooLarge { bytes: bytes.len() }));
        let error = text(b"<system>\n<!-- caf\xe9 -->").unwrap_err();
        assert_eq!(error.to_string(), "line 2: this byte is not UTF-8 text; save the file as UTF-8");
    }

    #[test]
    fn excerpts_are_short_and_on_one_line() {
        assert_eq!(excerpt("a\nb"), "a b");
        assert_eq!(excerpt(&"x".repeat(50)), format!("{}...", "x".repeat(40)));
    }
}
