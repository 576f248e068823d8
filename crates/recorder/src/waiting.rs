//! What a call waits for.

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
    /// What was put out for a rank elsewhere is on its way.
    Sent { to: u32 },
    /// Any of several lanes.
    Anything,
}

impl Waiting {
    /// The rank that is waited for, if it is one.
    pub fn rank(&self) -> Option<u32> {
        match *self {
            Waiting::Entered { rank } | Waiting::Reached { rank, .. } => Some(rank),
            Waiting::Message { from } => Some(from),
            Waiting::Slot { to } | Waiting::Sent { to } => Some(to),
            Waiting::Anything => None,
        }
    }
}
