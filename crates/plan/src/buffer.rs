//! The buffers of a rank.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The three buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buffer {
    /// The user's input. No step writes it.
    Input,
    /// The user's output.
    Output,
    /// The library's memory, which lives as long as the communicator; every tile and call reuses it.
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
