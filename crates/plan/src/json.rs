//! The JSON form of a plan, as in files and in the output of `weft plan --emit json`. Fields are those of [`Plan`].

use crate::plan::Plan;

/// A text that is not a plan, or a plan of another version, with the place of the error.
#[derive(Debug, thiserror::Error)]
#[error("not a plan: {0}")]
pub struct JsonError(#[from] serde_json::Error);

impl Plan {
    /// Reads the JSON form. The plan is not proved.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The JSON form, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("a plan has string keys only"))
    }

    /// A hash that is the same for equal plans on any machine: FNV-1a over the JSON form without spaces.
    pub(crate) fn fingerprint(&self) -> u64 {
        let text = serde_json::to_vec(self).unwrap_or_else(|_| unreachable!("a plan has string keys only"));
        text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}
