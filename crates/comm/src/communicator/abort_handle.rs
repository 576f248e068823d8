//! Aborting a communicator on purpose, from any thread, while another thread is in a call; and what else a background's worker
//! needs of a communicator.
//!
//! The aborting rank writes what it did into the payload of its departure line, seven words that no other rank writes, and then
//! sets the abort word with release. A rank that finds the abort word set for such a reason reads the note after it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::{Blame, BlameKind, BootstrapError, Event, Failure, Reason};
use weftlink_shm::counter::Counter;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{AbortCode, WaitPolicy, Waiter};

use super::Communicator;
use crate::abort_note::{ended_by, note};
use crate::error::Error;

/// Aborts a communicator on purpose. It keeps the memory that it writes to, so it may outlive the communicator; then no
/// rank reads what it writes.
pub(crate) struct AbortHandle {
    rank: u32,
    waiter: Waiter<'static>,
    departure: Counter<'static>,
    note_written: bool,
    /// Reports to ranks on other hosts.
    report: Box<dyn Fn(Event) + Send>,
    /// Unmapped last: the waiter and the departure point into it.
    _memory: Arc<SharedMemory>,
}

impl AbortHandle {
    /// Aborts it, unless it is aborted already. The others see the first 56 bytes of `what`.
    pub(crate) fn abort(&mut self, reason: Reason, what: &str) {
        if !self.note_written && self.waiter.aborted().is_none() {
            self.departure.line().write_payload(&note(what));
            self.note_written = true;
        }
        let rank = self.rank;
        self.waiter.abort(AbortCode { rank, reason: reason.code() });
        let blamed = vec![Blame::new(rank, BlameKind::Aborted)];
        let error = BootstrapError::GaveUp { rank: rank as usize, cause: what.to_owned(), blamed };
        (self.report)(Event::Failed { rank, reason: reason.code().get(), culprit: rank, error });
    }

    /// Why the communicator is aborted, if it is: for threads that are in no call.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let AbortCode { rank, reason } = self.waiter.aborted()?;
        let (kind, why) = match reason == Reason::Died.code() {
            true => (BlameKind::Died, format!("rank {rank} died")),
            false => (BlameKind::Aborted, format!("rank {rank} aborted it ({})", Reason::name(reason))),
        };
        Some(Failure { why, blamed: vec![Blame::new(rank, kind)], aborted_by: None })
    }
}

impl Communicator {
    /// Makes a call with a deadline or a wait policy of its own.
    #[cold]
    pub(super) fn waiting_as(
        &mut self,
        deadline: Option<Duration>,
        yields_core: bool,
        call: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let usual = (self.shared.waiter, self.options.deadline);
        if let Some(deadline) = deadline {
            (self.shared.waiter, self.options.deadline) = (usual.0.within(deadline), deadline);
        }
        if yields_core {
            self.set_wait_policy(WaitPolicy::crowded(self.wait_policy().timeout));
        }
        // A call may panic in a caller's operation, and the communicator keeps its own deadline then, too.
        let ran = catch_unwind(AssertUnwindSafe(|| call(self)));
        if !mutant!("timeout-of-a-call-stays") {
            (self.shared.waiter, self.options.deadline) = usual;
        }
        ran.unwrap_or_else(|panic| resume_unwind(panic))
    }

    pub(crate) fn abort_handle(&self) -> AbortHandle {
        let departure = self.shared.departures[self.rank];
        let report = Box::new(self.bootstrap.notifier());
        let (rank, waiter, memory) = (self.rank as u32, self.shared.waiter, Arc::clone(&self.control));
        AbortHandle { rank, waiter, departure, note_written: false, report, _memory: memory }
    }

    /// Identifies this communicator in its process.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Aborts a communicator that a closure put in the place of the one it had borrowed.
    #[cold]
    pub(crate) fn replaced(&mut self) -> Error {
        self.abort_handle().abort(Reason::Ended, "aborted: it replaced another one");
        self.fail_if_aborted();
        Error::Misuse(
            "the closure passed to Background::with replaced its communicator, which aborted both: close this background and make \
             a new one instead"
                .to_owned(),
        )
    }

    /// Why no more calls can be made, if the communicator has failed.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failed.as_ref()
    }

    /// How this rank waits.
    pub(crate) fn wait_policy(&self) -> WaitPolicy {
        self.shared.waiter.policy()
    }

    /// How a thread beside the rank's own waits: it yields its core where there are not two per rank, unless the caller has
    /// chosen how to wait.
    pub(crate) fn wait_policy_of_workers(&self) -> WaitPolicy {
        let yields = self.options.spin.is_none() && self.is_short_of_cores();
        if yields { WaitPolicy::crowded(self.wait_policy().timeout) } else { self.wait_policy() }
    }

    /// Whether there are not two cores for every rank of this host.
    fn is_short_of_cores(&self) -> bool {
        self.own_cores < 2
    }

    pub(crate) fn set_wait_policy(&mut self, policy: WaitPolicy) {
        self.shared.waiter = self.shared.waiter.with(policy);
    }

    /// The waiter of a thread beside the rank's own.
    pub(super) fn waiter_beside(&self) -> Waiter<'static> {
        self.shared.waiter.with(self.wait_policy_of_workers())
    }

    /// Records the failure of a communicator that was aborted while no call was running.
    pub(crate) fn fail_if_aborted(&mut self) {
        if let (None, Some(code)) = (&self.failed, self.shared.waiter.aborted()) {
            let why = Failure::from(&self.cancelled(self.calls.wrapping_add(1)));
            self.bootstrap.give_up(&why, code.rank, code.reason.get());
            self.failed = Some(why);
        }
    }

    /// Aborts the communicator after the caller's code panicked in a call, unless the call has done so.
    pub(crate) fn panicked(&mut self, what: String) -> Error {
        let (rank, reason) = (self.rank as u32, Reason::Panicked.code());
        self.shared.waiter.abort(AbortCode { rank, reason });
        // A call that was running has recorded its failure.
        let call = if self.failed.is_some() { self.calls } else { self.calls.wrapping_add(1) };
        let error = Error::Panicked { call, rank, what };
        let failure = Failure::from(&error);
        self.bootstrap.give_up(&failure, rank, reason.get());
        self.failed = Some(failure);
        error
    }

    /// The error of a call on a communicator that a rank has aborted on purpose.
    #[cold]
    pub(super) fn cancelled(&self, call: u32) -> Error {
        let blame = |rank, kind| self.bootstrap.blame(rank, kind);
        ended_by(&self.shared.waiter, &self.shared.departures, self.rank as u32, call, blame)
    }
}
