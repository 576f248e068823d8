//! How long ranks wait for each other outside of calls.

use std::time::{Duration, Instant};

use weftlink_shm::wait::Waiter;

use crate::reason::is_on_purpose;

/// A moment after which nobody waits, and how long it was away when the wait began.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    start: Instant,
    limit: Duration,
    /// Ends it early when a caller aborts the communicator on purpose.
    unless: Option<Waiter<'static>>,
}

/// How often a wait that may end before its time looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Deadline {
    /// Longer waits than a year are waits of a year, which every system call can represent.
    pub fn new(limit: Duration) -> Deadline {
        let limit = limit.min(Duration::from_secs(31_536_000));
        Deadline { start: Instant::now(), limit, unless: None }
    }

    /// The same, but over as soon as a caller aborts the communicator of this waiter on purpose.
    pub fn unless_ended(self, unless: Option<Waiter<'static>>) -> Deadline {
        Deadline { unless, ..self }
    }

    /// How long is left, if anything is, or until it has to be asked again. It may be asked under a lock, so it does nothing else.
    pub fn left(self) -> Option<Duration> {
        let left = self.limit.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero());
        match self.unless {
            None => left,
            Some(waiter) if is_on_purpose(&waiter) => None,
            Some(_) => left.map(|left| left.min(LOOK_EVERY)),
        }
    }

    /// Whether a caller has ended it early.
    pub fn is_ended(self) -> bool {
        self.unless.is_some_and(|waiter| is_on_purpose(&waiter))
    }

    /// The whole time.
    pub fn limit(self) -> Duration {
        self.limit
    }

    /// The time that has passed.
    pub fn waited(self) -> Duration {
        self.start.elapsed()
    }

    /// A deadline after this one.
    pub fn later(self, by: Duration) -> Deadline {
        Deadline { limit: self.limit + by, ..self }
    }

    /// A deadline before this one.
    pub fn sooner(self, by: Duration) -> Deadline {
        Deadline { limit: self.limit.saturating_sub(by), ..self }
    }

    /// This one or `limit` from now, whichever comes first.
    pub fn or_within(self, limit: Duration) -> Deadline {
        Deadline::new(self.left().unwrap_or_default().min(limit))
    }
}
