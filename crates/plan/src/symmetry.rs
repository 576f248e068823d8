//! The symmetry that a plan declares; [`classes`](crate::classes) defines and checks it.

use serde::{Deserialize, Serialize};

/// Turns that map a plan to itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symmetry {
    /// The digits of a rank, the most significant first.
    pub ranks: Vec<RankDigit>,
    /// The digits of a chunk of input.
    #[serde(default)]
    pub input: Vec<Digit>,
    /// The digits of a chunk of output.
    #[serde(default)]
    pub output: Vec<Digit>,
    /// The digits of a chunk of scratch.
    #[serde(default)]
    pub scratch: Vec<Digit>,
}

/// A digit of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankDigit {
    /// The number of its values.
    pub size: u32,
    /// Whether it turns.
    pub turns: bool,
}

/// A digit of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digit {
    /// The number of its values.
    pub size: u32,
    /// The digit of the ranks that it turns with, which has the same size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<u32>,
}
