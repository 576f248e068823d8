//! Calls that do not block: a communicator whose calls are made, in the order in which they were submitted, by one thread of
//! its own.
//!
//! A [`Background`] is made from a [`Communicator`] and can be cloned and shared. [`Background::start`] takes what a call
//! needs, buffers included, puts it into a queue and returns a [`Handle`]; the buffers come back with the result.
//! [`Background::scope`] does the same with buffers that are borrowed, and [`Background::start_raw`] with buffers that are
//! addresses. The worker takes one call after the other; when there is none it sleeps at once, so that it costs nothing.
//! [`RawHandle::help`] makes calls that it has not begun on the caller's thread.
//!
//! All ranks submit the same calls in the same order, as they would make them. Calls of one thread keep their order; threads that
//! submit to one communicator at the same time must see to it themselves that their order is the same on all ranks, or
//! have a communicator each.
//!
//! A call that was submitted cannot be taken back on one rank only: the others would wait for it. So
//! [`Handle::cancel`] and [`Background::abort`] end the communicator for all ranks, at once, and all are told who did it.
//!
//! **States.** A call is *queued*, then *made*, then *done*; its [`Slot`](handle::Slot) knows. Whatever happens, it becomes
//! done exactly once: by the worker, or by whoever drops it. The communicator belongs to the worker until the worker ends, which
//! it does when it is told to close and the queue is empty. What others need of it meanwhile, the means to end it, is
//! taken away before that ([`queue::Inner`]).
//!
//! **Fork.** A process that was forked has no worker. Whatever it asks of a background is refused; it never waits, and what
//! it drops does not disturb the ranks.
//!
//! Deliberately absent: futures, as [`Handle::on_done`] is what a runtime needs to make one; and memory that is kept from call to
//! call: submitting one allocates, making it does not.

mod handle;
mod queue;
mod raw;
mod request;
mod scope;
mod task;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub use handle::{Done, Ended, Handle};
pub use queue::QUEUE_MAX;
pub use raw::{RawBuffers, RawHandle, RawRequest};
pub use request::{OwnedBuffers, OwnedOperation, OwnedRequest, ReadOnly};
pub use scope::{Scope, ScopedHandle};

use weftlink_shm::limits;

use crate::affinity;
use crate::communicator::Communicator;
use crate::error::Error;
use queue::{GONE, Inner};
use task::{Job, Load, Owned, Task, With};
use weftlink_plan::Collective;

/// A communicator whose calls run on a thread of its own.
///
/// When the last clone is dropped, the calls that were submitted are still made, and then this rank leaves. A program
/// that ends before takes them with it: wait for them, or [close](Background::close).
///
/// ```
/// use weftlink_comm::{Reduction, on_threads};
///
/// let sums = on_threads(2, |comm| {
///     let background = comm.into_background()?;
///     let call = background.all_reduce(vec![1.0_f32; 1000], Reduction::Sum);
///     let meanwhile: f32 = (0..1000).map(|number| number as f32).sum();
///     Ok(call.wait()?.buffers[0] + meanwhile)
/// })?;
/// assert_eq!(sums, [499_502.0; 2]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Background {
    client: Arc<Client>,
}

/// All clones together: when it goes, the worker may.
#[derive(Debug)]
struct Client {
    inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<Communicator>>>,
}

impl Communicator {
    /// Hands the communicator to a thread of its own, which makes the calls that are submitted to it.
    ///
    /// The thread may run wherever the caller's thread may; if that is a single core, on all others. Where there are not two
    /// cores for every rank, it gives way while it waits, unless [`Options::spin`](crate::Options::spin) says otherwise.
    pub fn into_background(self) -> Result<Background, Error> {
        if let Some(failure) = self.failure() {
            return Err(Error::again(failure));
        }
        let rank = self.rank() as u32;
        let name = format!("weft rank {}", self.rank());
        let inner = Arc::new(Inner::new(self));
        let (worker, elsewhere) = (Arc::clone(&inner), affinity::beside_this_thread());
        let work = move || {
            affinity::move_to(elsewhere);
            queue::work(&worker)
        };
        let thread = std::thread::Builder::new().name(name).spawn(work);
        let thread = thread.map_err(|error| Error::System {
            rank,
            what: "start a thread for calls in the background",
            error: limits::thread_advice(&error),
        })?;
        Ok(Background { client: Arc::new(Client { inner, worker: Mutex::new(Some(thread)) }) })
    }
}

impl Background {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.inner().rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.inner().size
    }

    /// Submits a call. It never blocks: if the call cannot be submitted (because [too many](Error::QueueFull) are, or the
    /// communicator has failed), the handle is done and has the error.
    pub fn start<B: OwnedBuffers>(&self, request: OwnedRequest<B>) -> Handle<B> {
        let name = request.collective.name();
        self.submit(name, Owned(request))
    }

    /// Combines the buffers of all ranks.
    pub fn all_reduce<B: OwnedBuffers>(&self, buffers: B, operation: impl Into<OwnedOperation>) -> Handle<B> {
        self.start(OwnedRequest::new(Collective::AllReduce, buffers).with(operation))
    }

    /// Gives every rank the root's buffer.
    pub fn broadcast<B: OwnedBuffers>(&self, buffers: B, root: usize) -> Handle<B> {
        let root = u32::try_from(root).unwrap_or(u32::MAX);
        self.start(OwnedRequest::new(Collective::Broadcast { root }, buffers))
    }

    /// Is done when all ranks have submitted it, and made all that they submitted before.
    pub fn barrier(&self) -> Handle<()> {
        self.start(OwnedRequest::new(Collective::Barrier, ()))
    }

    /// Does something with the communicator when its turn comes, on the thread that makes calls then, and waits for it: allocates windows,
    /// loads plans, sends [groups](Communicator::group) of messages.
    ///
    /// The closure must leave the communicator where it is. If it puts another one in its place, both end, for all ranks, and this is an
    /// error.
    pub fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Communicator) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        Ok(self.submit("work", With::new(work)).wait()?.buffers)
    }

    /// Whether this thread may wait for a call of this communicator. What runs in one, such as a callback or a signal's handler, may
    /// not: neither that call nor the other would ever be over. For those who wait on another thread on behalf of this one.
    pub fn check_not_in_call(&self) -> Result<(), Error> {
        self.inner().check_not_in_call()
    }

    /// Ends the communicator, for all ranks and from any thread, also while a call is being made: all waits end within
    /// milliseconds with [`Error::Cancelled`], which names this rank and the reason. Others see its first 47 bytes.
    pub fn abort(&self, reason: &str) {
        self.inner().abort(reason);
    }

    /// Waits for all calls that were submitted, and gives the communicator back. Nobody else may have a clone of this.
    pub fn close(self) -> Result<Communicator, Error> {
        self.inner().check_not_in_call()?;
        let Ok(client) = Arc::try_unwrap(self.client) else {
            return Err(Error::Misuse(
                "this communicator has other users: drop their clones first".to_owned(),
            ));
        };
        client.inner.close();
        let worker = client.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let joined = worker.map(JoinHandle::join).and_then(Result::ok);
        joined.ok_or_else(|| Error::gone(GONE))
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.client.inner
    }

    fn submit<L: Load + 'static>(&self, name: &'static str, load: L) -> Handle<L::Back> {
        let inner = self.inner();
        let (task, slot) = Task::new(load);
        let number = inner.submit(Box::new(task));
        Handle::new(slot, Arc::clone(inner), number, name)
    }

    /// A call that is not taken.
    fn refuse<L: Load + 'static>(&self, name: &'static str, load: L, why: Error) -> Handle<L::Back> {
        let (task, slot) = Task::new(load);
        Box::new(task).refuse(why);
        Handle::new(slot, Arc::clone(self.inner()), 0, name)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inner.close();
    }
}
