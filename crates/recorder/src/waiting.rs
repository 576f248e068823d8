//! Waits.

/// What a call waits for.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum Waiting {
    /// A rank enters the call.
    Entered { rank: u32 },
    /// A rank's counter reaches its threshold.
    Reached { rank: u32, counter: u32 },
    /// A message arrives.
    Message { from: u32 },
    /// The receiver frees a slot.
    Slot { to: u32 },
    /// Messages to a rank on another host have been sent.
    Sent { to: u32 },
    /// Any of several lanes.
    Anything,
}

impl Waiting {
    /// The awaited rank, if it is a single one.
    pub fn rank(&self) -> Option<u32> {
        match *self {
            Waiting::Entered { rank } | Waiting::Reached { rank, .. } => Some(rank),
            Waiting::Message { from } => Some(from),
            Waiting::Slot { to } | Waiting::Sent { to } => Some(to),
            Waiting::Anything => None,
        }
    }
}
