//! What is queued: a call with everything it needs, and where its end is told.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::handle::{Ended, Slot};
use super::queue::GONE;
use super::request::{OwnedBuffers, OwnedRequest};
use crate::communicator::Communicator;
use crate::error::Error;

/// Something that the worker does. It is done, or refused, exactly once.
pub(super) trait Job: Send {
    /// Does it; `note` is called when it is over and before anybody is told, and may find that it went wrong.
    fn make(self: Box<Self>, comm: &mut Communicator, note: Note<'_>);
    /// Whether the worker leaves its core to others while it waits in this.
    fn makes_way(&self) -> bool;
    fn refuse(self: Box<Self>, why: Error);
}

/// What looks at the communicator after a job.
pub(super) type Note<'a> = &'a mut dyn FnMut(&mut Communicator) -> Result<(), Error>;

/// What is done, and what is given back afterwards.
pub(super) trait Load: Send {
    type Back: Send;
    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error>;
    fn back(self) -> Option<Self::Back>;
    fn makes_way(&self) -> bool {
        false
    }
}

/// A load on its way.
pub(super) struct Task<L: Load> {
    slot: Arc<Slot<L::Back>>,
    /// There until its end has been told.
    load: Option<L>,
}

impl<L: Load> Task<L> {
    pub(super) fn new(load: L) -> (Self, Arc<Slot<L::Back>>) {
        let slot = Arc::new(Slot::new());
        (Self { slot: Arc::clone(&slot), load: Some(load) }, slot)
    }

    fn tell(&mut self, result: Result<(), Error>) {
        if let Some(load) = self.load.take() {
            self.slot.complete(Ended { result, buffers: load.back() });
        }
    }
}

impl<L: Load> Job for Task<L> {
    fn make(mut self: Box<Self>, comm: &mut Communicator, note: Note<'_>) {
        let Some(load) = &mut self.load else { return };
        // A communicator in which a call panicked has failed and knows it, and the load is only given back.
        let ran = catch_unwind(AssertUnwindSafe(|| load.run(comm)));
        let result = ran.unwrap_or_else(|panic| Err(comm.panicked(said(&*panic))));
        let noted = note(comm);
        self.tell(result.and(noted));
    }

    fn makes_way(&self) -> bool {
        self.load.as_ref().is_some_and(Load::makes_way)
    }

    fn refuse(mut self: Box<Self>, why: Error) {
        self.tell(Err(why));
    }
}

impl<L: Load> Drop for Task<L> {
    fn drop(&mut self) {
        self.tell(Err(Error::gone(GONE)));
    }
}

/// What a panic said, if it was text.
pub(super) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}

/// A call whose buffers are owned.
pub(super) struct Owned<B>(pub(super) OwnedRequest<B>);

impl<B: OwnedBuffers> Load for Owned<B> {
    type Back = B;

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        self.0.run(comm)
    }

    fn back(self) -> Option<B> {
        Some(self.0.buffers)
    }
}

/// Anything else that is done with a communicator.
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
