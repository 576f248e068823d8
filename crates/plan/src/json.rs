//! The JSON form of a plan: what files hold and what `weft plan --emit json` prints. Fields are those of [`Plan`].

use crate::plan::Plan;

/// A text that is no plan, or a plan of another version: it says where it stops making sense.
#[derive(Debug, thiserror::Error)]
#[error("this is no plan: {0}")]
pub struct JsonError(#[from] serde_json::Error);

impl Plan {
    /// Reads the JSON form. What is read is not proved yet.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The JSON form, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("a plan has string keys only"))
    }

    /// A number that is the same for equal plans, on any machine: FNV-1a over the JSON form without spaces.
    pub(crate) fn fingerprint(&self) -> u64 {
        let text = serde_json::to_vec(self).unwrap_or_else(|_| unreachable!("a plan has string keys only"));
        text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}
