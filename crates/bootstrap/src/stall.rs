//! Stall warnings of a rank that waits for others to join, before there is a group in which ranks announce their waits (`waits.rs`).

use std::time::{Duration, Instant};

use super::error::list;

/// A wait for other ranks: what for, since when, and when the next warning is due.
pub(super) struct Stall {
    rank: usize,
    purpose: String,
    began: Instant,
    warn_after: Duration,
    next: Duration,
}

impl Stall {
    pub(super) fn new(rank: usize, purpose: String, warn_after: Duration) -> Stall {
        Stall { rank, purpose, began: Instant::now(), warn_after, next: warn_after }
    }

    /// Logs a warning that names these ranks, if one is due. Returns whether it was.
    pub(super) fn look(&mut self, awaited: &[u32]) -> bool {
        let waited = self.began.elapsed();
        if waited < self.next || awaited.is_empty() {
            return false;
        }
        self.next = waited + self.warn_after;
        let awaited: Vec<usize> = awaited.iter().map(|&rank| rank as usize).collect();
        let (what, awaited, seconds) = (&self.purpose, list(&awaited), waited.as_secs_f64());
        tracing::warn!(target: "weft::meet", rank = self.rank, "{what} has waited {seconds:.1} s for {awaited}");
        true
    }

    /// After how long a warning is due.
    pub(super) fn warn_after(&self) -> Duration {
        self.warn_after
    }

    /// How long one try to reach a rank may take, so that a warning is not late by more than that.
    pub(super) fn slice(&self, limit: Duration) -> Duration {
        self.warn_after.clamp(SLICE_MIN.min(limit), limit)
    }
}

/// A rank on a busy machine must have time to answer.
const SLICE_MIN: Duration = Duration::from_secs(1);
