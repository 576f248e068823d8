//! How long ranks wait for each other before they meet in a communicator.

use std::time::{Duration, Instant};

/// A moment after which nobody waits, and how long it was away when the wait began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    /// Longer waits than a year are waits of a year, which every system call can represent.
    pub(crate) fn new(limit: Duration) -> Deadline {
        Deadline { start: Instant::now(), limit: limit.min(Duration::from_secs(31_536_000)) }
    }

    /// How long is left, if anything is.
    pub(crate) fn left(self) -> Option<Duration> {
        self.limit.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero())
    }

    pub(crate) fn limit(self) -> Duration {
        self.limit
    }

    pub(crate) fn waited(self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn later(self, by: Duration) -> Deadline {
        Deadline { start: self.start, limit: self.limit + by }
    }

    /// This one or `limit` from now, whichever comes first.
    pub(crate) fn or_within(self, limit: Duration) -> Deadline {
        Deadline::new(self.left().unwrap_or_default().min(limit))
    }
}
