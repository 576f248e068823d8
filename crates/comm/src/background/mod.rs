//! Calls that do not block: a worker thread runs a communicator's calls in the order in which they were submitted.
//!
//! A [`Background`] is made from a [`Communicator`] and can be cloned and shared. [`Background::start`] queues a call with its
//! buffers and returns a [`Handle`]; the buffers come back with the result. [`Background::scope`] does the same with borrowed
//! buffers, and [`Background::start_raw`] with raw addresses. An idle worker sleeps. [`RawHandle::help`] runs queued calls on the
//! caller's thread.
//!
//! All ranks submit the same calls in the same order. Calls of one thread keep their order; threads that share a communicator must
//! agree on an order that is the same on all ranks, or use a communicator each.
//!
//! A submitted call cannot be taken back on one rank only, because the others would wait for it. So [`Handle::cancel`] and
//! [`Background::abort`] abort the communicator on all ranks at once, and the errors name the rank that did it.
//!
//! **States.** A call is *queued*, then *running*, then *done*, as its [`Slot`](handle::Slot) says. It becomes done exactly
//! once: when it has run, or when it is dropped. The communicator belongs to the queue until the worker exits, which it does when
//! the background is closed and the queue is empty. The handle that aborts it is dropped before that ([`queue::Inner`]).
//!
//! **Fork.** A forked process has no worker. Its requests to a background are refused; it never waits, and what it drops does not
//! disturb the ranks.
//!
//! Deliberately absent: reuse of memory between calls. Submitting a call allocates, running it does not.

mod handle;
mod owned;
mod queue;
mod raw;
mod scope;
mod task;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub use handle::{Completion, Handle, HandleFuture};
pub use owned::{OwnedBuffers, ReadOnly};
pub use queue::QUEUE_MAX;
pub use raw::{RawBuffers, RawHandle};
pub use scope::{Scope, ScopedFuture, ScopedHandle};

use weftlink_shm::limits;

use crate::affinity;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::operation::Operation;
use crate::request::Request;
use queue::{GONE, Inner};
use task::{Job, Load, Owned, Task, With};
use weftlink_plan::Collective;

/// A communicator whose calls run on a thread of its own.
///
/// When the last clone is dropped, the worker still runs the submitted calls, and then this rank leaves. If the program ends before,
/// they are lost: wait for them, or [close](Background::close) the background.
///
/// ```
/// use weftlink_comm::{Reduction, on_threads};
///
/// let sums = on_threads(2, |comm| {
///     let background = comm.into_background()?;
///     let call = background.all_reduce(vec![1.0_f32; 1000], Reduction::Sum);
///     let meanwhile: f32 = (0..1000).map(|number| number as f32).sum();
///     Ok(call.wait()?[0] + meanwhile)
/// })?;
/// assert_eq!(sums, [499_502.0; 2]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Background {
    client: Arc<Client>,
}

/// Shared by all clones. Dropping it lets the worker exit.
#[derive(Debug)]
struct Client {
    inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<Communicator>>>,
}

impl Communicator {
    /// Moves the communicator to a worker thread, which runs the calls that are submitted to it.
    ///
    /// The worker runs on the cores of the caller's thread; if that is a single core, on all others. Where there are not two cores
    /// per rank, the worker yields its core while it waits, unless [`Options::spin`](crate::Options::spin) is set.
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

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.inner().size
    }

    /// Submits a call, without blocking. If the call is refused (the [queue is full](Error::QueueFull), or the communicator has
    /// failed), its handle has the error.
    pub fn start<B: OwnedBuffers>(&self, request: Request<'static, B>) -> Handle<B> {
        let name = request.collective.name();
        self.submit(name, Owned(request))
    }

    /// Combines the buffers of all ranks.
    pub fn all_reduce<B: OwnedBuffers>(
        &self,
        buffers: B,
        operation: impl Into<Operation<'static>>,
    ) -> Handle<B> {
        self.start(Request::new(Collective::AllReduce, buffers).operation(operation))
    }

    /// Gives every rank the root's buffer.
    pub fn broadcast<B: OwnedBuffers>(&self, buffers: B, root: usize) -> Handle<B> {
        let root = u32::try_from(root).unwrap_or(u32::MAX);
        self.start(Request::new(Collective::Broadcast { root }, buffers))
    }

    /// Completes when all ranks have submitted it and run all calls before it.
    pub fn barrier(&self) -> Handle<()> {
        self.start(Request::new(Collective::Barrier, ()))
    }

    /// Queues a closure that borrows the communicator, for example to allocate windows or load plans, and waits for it. It runs in its
    /// turn, on the thread that runs calls then.
    ///
    /// The closure must not replace the communicator by another one. If it does, both are aborted on all ranks, and this is an error.
    pub fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Communicator) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.submit("work", With::new(work)).wait()
    }

    /// Whether this thread may wait for a call of this communicator. A callback or signal handler that runs within a call may not,
    /// because neither call would ever end. For bindings that wait on another thread on behalf of this one.
    pub fn check_not_in_call(&self) -> Result<(), Error> {
        self.inner().check_not_in_call()
    }

    /// Aborts the communicator on all ranks, from any thread, also while a call is running: all waits end within milliseconds with
    /// [`Error::Cancelled`], which names this rank and the reason. Other ranks see the first 47 bytes of the reason.
    pub fn abort(&self, reason: &str) {
        self.inner().abort(reason);
    }

    /// Why calls fail from now on, if they do: a call failed, or a rank died or aborted the communicator while this one was in no call.
    /// Does not wait for a call.
    pub fn failure(&self) -> Option<Error> {
        self.inner().failure()
    }

    /// Whether there are other clones, which [`Background::close`] refuses.
    pub fn has_other_users(&self) -> bool {
        Arc::strong_count(&self.client) > 1
    }

    /// Waits for all submitted calls, and returns the communicator. There must be no other clone.
    pub fn close(self) -> Result<Communicator, Error> {
        self.inner().check_not_in_call()?;
        let Ok(client) = Arc::try_unwrap(self.client) else {
            return Err(Error::Misuse("this background has other users: drop their clones first".to_owned()));
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

    /// A refused call.
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
