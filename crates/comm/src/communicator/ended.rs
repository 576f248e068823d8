//! Ends that are wanted: a communicator is ended on purpose, from any thread, while another is in a call; and what a worker
//! that makes calls for others asks of it.
//!
//! Whoever ends a communicator leaves a note of what it did in the line that will also tell of its departure, seven words
//! that nobody else writes, and then sets the abort word with release. Whoever finds the abort word set by that rank for a
//! purpose reads the note after it.

use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::{Blame, BlameKind, BootstrapError, Event, Failure, Reason};
use weftlink_shm::counter::Counter;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{AbortCode, WaitPolicy, Waiter};

use super::{Communicator, Request};
use crate::error::Error;
use crate::note::{ended_by, note};

/// Ends a communicator on purpose. It keeps the memory that it writes to, so it may outlive the communicator; nobody reads what it
/// writes then.
pub(crate) struct Ender {
    rank: u32,
    waiter: Waiter<'static>,
    departure: Counter<'static>,
    noted: bool,
    /// Tells ranks on other hosts.
    tell: Box<dyn Fn(Event) + Send>,
    /// Unmapped last: the waiter and the departure point into it.
    _memory: Arc<SharedMemory>,
}

impl Ender {
    /// Ends it, unless it has ended already. What is told to the others is cut after 56 bytes.
    pub(crate) fn end(&mut self, reason: Reason, what: &str) {
        if !self.noted && self.waiter.aborted().is_none() {
            self.departure.line().write_payload(&note(what));
            self.noted = true;
        }
        let rank = self.rank;
        self.waiter.abort(AbortCode { rank, reason: reason.code() });
        let blamed = vec![Blame::new(rank, BlameKind::Aborted)];
        let error = BootstrapError::GaveUp { rank: rank as usize, cause: what.to_owned(), blamed };
        (self.tell)(Event::Failed { rank, reason: reason.code().get(), culprit: rank, error });
    }
}

impl Communicator {
    /// Makes a call that waits so long for other ranks, instead of as long as [`Options`](super::Options) say. If that passes,
    /// the call fails and names whom it waited for, and the communicator has failed, as with any deadline.
    pub fn run_within(&mut self, request: Request<'_>, deadline: Duration) -> Result<(), Error> {
        let usual = (self.shared.waiter, self.options.deadline);
        (self.shared.waiter, self.options.deadline) = (usual.0.within(deadline), deadline);
        let ran = self.run(request);
        if !mutant!("timeout-of-a-call-stays") {
            (self.shared.waiter, self.options.deadline) = usual;
        }
        ran
    }

    pub(crate) fn ender(&self) -> Ender {
        let departure = self.shared.departures[self.rank];
        let tell = Box::new(self.bootstrap.teller());
        let (rank, waiter, memory) = (self.rank as u32, self.shared.waiter, Arc::clone(&self.control));
        Ender { rank, waiter, departure, noted: false, tell, _memory: memory }
    }

    /// Tells this communicator from all others of the process.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Gives up a communicator that a closure put in the place of the one it was lent.
    #[cold]
    pub(crate) fn replaced(&mut self) -> Error {
        self.ender().end(Reason::Ended, "aborted: it replaced another one");
        self.let_go();
        Error::Misuse(
            "a closure replaced the communicator that Background::with lent it, so both ended: to put another in its place, close \
             this background and make a new one"
                .to_owned(),
        )
    }

    /// Why no more calls can be made, if that is so.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failed.as_ref()
    }

    /// How this rank waits.
    pub(crate) fn patience(&self) -> WaitPolicy {
        self.shared.waiter.policy()
    }

    /// How a thread beside the rank's own waits: so that both have a core, unless the caller has said how to wait.
    pub(crate) fn wait_policy_of_workers(&self) -> WaitPolicy {
        let makes_way = self.options.spin.is_none() && self.is_short_of_cores();
        if makes_way { WaitPolicy::crowded(self.patience().timeout) } else { self.patience() }
    }

    /// Whether there are not two cores for every rank of this host.
    fn is_short_of_cores(&self) -> bool {
        self.own_cores < 2
    }

    pub(crate) fn set_wait_policy(&mut self, patience: WaitPolicy) {
        self.shared.waiter = self.shared.waiter.with(patience);
    }

    /// How a thread waits that is not the rank's only one.
    pub(super) fn waiter_beside(&self) -> Waiter<'static> {
        self.shared.waiter.with(self.wait_policy_of_workers())
    }

    /// Lets go of a communicator that this rank has ended on purpose while no call was being made.
    pub(crate) fn let_go(&mut self) {
        if let (None, Some(code)) = (&self.failed, self.shared.waiter.aborted()) {
            let why = Failure::from(&self.ended(self.calls.wrapping_add(1)));
            self.bootstrap.give_up(&why, code.rank, code.reason.get());
            self.failed = Some(why);
        }
    }

    /// Ends the communicator after a panic of the caller's in a call, unless the call has done so.
    pub(crate) fn panicked(&mut self, what: String) -> Error {
        let (rank, reason) = (self.rank as u32, Reason::Panicked.code());
        self.shared.waiter.abort(AbortCode { rank, reason });
        // A call that was being made has noticed by itself.
        let call = if self.failed.is_some() { self.calls } else { self.calls.wrapping_add(1) };
        let error = Error::Panicked { call, rank, what };
        let failure = Failure::from(&error);
        self.bootstrap.give_up(&failure, rank, reason.get());
        self.failed = Some(failure);
        error
    }

    /// The error of a call that cannot be made because a rank has ended the communicator.
    #[cold]
    pub(super) fn ended(&self, call: u32) -> Error {
        ended_by(&self.shared.waiter, &self.shared.departures, self.rank as u32, call)
    }
}
