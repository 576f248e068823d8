//! Files that describe a fabric, read from bytes the caller already holds.
//!
//! Nothing here opens a file, and nothing here trusts its input: every reader has limits, and whatever is wrong is a
//! [`ReadError`] with a line and a reason.

pub mod document;

use crate::fabric::FabricError;

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
