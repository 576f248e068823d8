//! Queued calls, each with its arguments and the slot of its handle.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::handle::{Completion, Slot};
use super::owned::OwnedBuffers;
use super::queue::GONE;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::request::{CallArgs, Request};

/// A queued call, with its types erased. It is run or refused exactly once.
pub(super) trait Job: Send {
    /// Runs it. `after` runs when it is over and before its handle completes, and may turn success into an error.
    fn run(self: Box<Self>, comm: &mut Communicator, after: After<'_>);
    /// Whether the worker yields its core while it waits in this call.
    fn yields_core(&self) -> bool;
    fn refuse(self: Box<Self>, why: Error);
}

/// Looks at the communicator after a call.
pub(super) type After<'a> = &'a mut dyn FnMut(&mut Communicator) -> Result<(), Error>;

/// What a job runs, and what its handle returns.
pub(super) trait Load: Send {
    type Back: Send;
    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error>;
    fn back(self) -> Option<Self::Back>;
    fn yields_core(&self) -> bool {
        false
    }
}

/// A load and the slot of its handle.
pub(super) struct Task<L: Load> {
    slot: Arc<Slot<L::Back>>,
    /// Present until the call completes.
    load: Option<L>,
}

impl<L: Load> Task<L> {
    pub(super) fn new(load: L) -> (Self, Arc<Slot<L::Back>>) {
        let slot = Arc::new(Slot::new());
        (Self { slot: Arc::clone(&slot), load: Some(load) }, slot)
    }

    fn complete(&mut self, result: Result<(), Error>) {
        if let Some(load) = self.load.take() {
            self.slot.complete(Completion { result, buffers: load.back() });
        }
    }
}

impl<L: Load> Job for Task<L> {
    fn run(mut self: Box<Self>, comm: &mut Communicator, after: After<'_>) {
        let Some(load) = &mut self.load else { return };
        // A communicator in which a call panicked has failed, so nothing observes a half-finished call.
        let ran = catch_unwind(AssertUnwindSafe(|| load.run(comm)));
        let result = ran.unwrap_or_else(|panic| Err(comm.panicked(panic_message(&*panic))));
        let after = after(comm);
        self.complete(result.and(after));
    }

    fn yields_core(&self) -> bool {
        self.load.as_ref().is_some_and(Load::yields_core)
    }

    fn refuse(mut self: Box<Self>, why: Error) {
        self.complete(Err(why));
    }
}

impl<L: Load> Drop for Task<L> {
    fn drop(&mut self) {
        self.complete(Err(Error::gone(GONE)));
    }
}

/// The message of a panic, if it is text.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}

/// A call that owns its buffers.
pub(super) struct Owned<B>(pub(super) Request<'static, B>);

impl<B: OwnedBuffers> Load for Owned<B> {
    type Back = B;

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let deadline = self.0.deadline;
        let (buffers, args) = self.0.split();
        comm.call_within(CallArgs { buffers: buffers.lend()?, ..args }, deadline)
    }

    fn back(self) -> Option<B> {
        Some(self.0.buffers)
    }

    fn yields_core(&self) -> bool {
        self.0.yields_core
    }
}

/// A closure that borrows the communicator.
pub(super) struct With<F, R> {
    work: Option<F>,
    result: Option<R>,
}

impl<F, R> With<F, R> {
    pub(super) fn new(work: F) -> Self {
        Self { work: Some(work), result: None }
    }
}

impl<R: Send, F: FnOnce(&mut Communicator) -> Result<R, Error> + Send> Load for With<F, R> {
    type Back = R;

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        if let Some(work) = self.work.take() {
            self.result = Some(work(comm)?);
        }
        Ok(())
    }

    fn back(self) -> Option<R> {
        self.result
    }
}
