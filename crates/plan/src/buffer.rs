//! The buffers of a rank.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The three buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buffer {
    /// What the user passes in. No step writes it.
    Input,
    /// What the user gets back.
    Output,
    /// Memory of the library that lives as long as the communicator and is reused by every tile and call.
    Scratch,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
        })
    }
}
