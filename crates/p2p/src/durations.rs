//! The durations of the protocol besides the deadlines of operations.

use std::time::Duration;

/// How long an operation waits for the verdict on a peer whose connection failed or whose memory cannot be read. Most often the peer
/// has died, and the abort that says so follows.
pub const DEATH_VERDICT: Duration = Duration::from_secs(2);
/// How much later than the notice that a rank on another host has left its last frames may arrive.
pub const LAST_FRAMES: Duration = Duration::from_millis(200);

const _: () = assert!(
    LAST_FRAMES.as_nanos() < DEATH_VERDICT.as_nanos(),
    "a rank that left is reported as gone before its connection is reported as broken"
);
