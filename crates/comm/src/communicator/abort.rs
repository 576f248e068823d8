//! Aborting a communicator after a call that cannot be finished.
//!
//! The abort word comes first, because ranks of this host poll it wherever they wait. The report to the group is next: it reaches ranks on
//! other hosts and those between calls. Then the buffers that peers may still access become private (`failure.rs`).

use weftlink_bootstrap::{Failure, Reason};
use weftlink_shm::wait::AbortCode;

use super::Communicator;
use crate::error::Error;
use crate::failure::take_back;
use crate::symmetric::Reached;

impl Communicator {
    /// Sets the abort word, unless it is set. Returns this rank's abort code and that of the first rank that aborted.
    pub(super) fn set_abort_word(&self, reason: Reason) -> (AbortCode, AbortCode) {
        let mine = AbortCode { rank: self.rank as u32, reason: reason.code() };
        (mine, self.shared.waiter.abort(mine))
    }

    /// Aborts the communicator with an error: reports it to the group, takes back the buffers that peers may access, and records the failure.
    /// The abort word is set, by the rank that `first` names.
    #[cold]
    pub(super) fn abort(&mut self, error: &Error, first: AbortCode, reached: Reached) {
        let failure = Failure::from(error);
        self.bootstrap.give_up(&failure, first.rank, first.reason.get());
        take_back(&self.shared, &self.windows, reached, (self.rank, self.identity), &failure);
        self.note_failure(failure);
    }

    /// Records why this communicator has failed, and logs where its record is.
    #[cold]
    pub(super) fn note_failure(&mut self, mut failure: Failure) {
        let blamed = failure.blamed.into_iter();
        failure.blamed = blamed.map(|blame| self.bootstrap.identified(blame)).collect();
        let why = &failure.why;
        match self.shared.recorder.fail(&failure) {
            Some(record) => {
                let (record, folder) = (record.display(), record.parent().unwrap_or(&record).display());
                tracing::warn!(target: "weft::fault", rank = self.rank, "{why}; recorded in {record}; run `weft why {folder}` for details");
            }
            None => tracing::info!(target: "weft::fault", rank = self.rank, "{why}"),
        }
        self.failed = Some(failure);
    }
}
