//! Calls on borrowed buffers, in a scope that waits for them, like `std::thread::scope`.

// Hides the lifetime of a borrow for the duration of the scope.
#![allow(unsafe_code)]

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::handle::{Handle, HandleFuture};
use super::task::Load;
use super::{Background, Completion};
use crate::buffers::Buffers;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::request::Request;

/// Submits calls on borrowed buffers. Made by [`Background::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    background: &'env Background,
    running: Arc<Running>,
    /// Invariant in both lifetimes, as in the standard library.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _environment: PhantomData<&'env mut &'env ()>,
}

/// A call of a scope. Dropping the handle does not cancel the call.
#[derive(Debug)]
pub struct ScopedHandle<'scope> {
    handle: Handle<()>,
    _scope: PhantomData<&'scope ()>,
}

/// The number of calls of a scope that are not over.
#[derive(Debug, Default)]
struct Running {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Background {
    /// Lets calls borrow their buffers: when this returns, all calls of the scope are over, even if the closure panics. The calls'
    /// deadlines bound the wait.
    ///
    /// ```
    /// use weftlink_comm::{Error, Reduction, Request, on_threads};
    /// use weftlink_plan::Collective;
    ///
    /// let sums = on_threads(2, |comm| {
    ///     let background = comm.into_background()?;
    ///     let mut values = vec![background.rank() as f32 + 1.0; 100];
    ///     let meanwhile = background.scope(|scope| {
    ///         let call = scope.start(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum));
    ///         let meanwhile = (1..=10).sum::<u32>();
    ///         call.wait()?;
    ///         Ok::<_, Error>(meanwhile)
    ///     })?;
    ///     Ok((values[99], meanwhile))
    /// })?;
    /// assert_eq!(sums, [(3.0, 55); 2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// Buffers must outlive the scope:
    ///
    /// ```compile_fail,E0597
    /// # use weftlink_comm::{Background, Reduction, Request};
    /// # use weftlink_plan::Collective;
    /// # fn test(background: &Background) {
    /// background.scope(|scope| {
    ///     let mut values = vec![1.0_f32; 100];
    ///     scope.start(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum));
    /// });
    /// # }
    /// ```
    ///
    /// And they cannot be used before it is over:
    ///
    /// ```compile_fail,E0503
    /// # use weftlink_comm::{Background, Reduction, Request};
    /// # use weftlink_plan::Collective;
    /// # fn test(background: &Background) {
    /// let mut values = [1.0_f32; 100];
    /// background.scope(|scope| {
    ///     scope.start(Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum));
    ///     values[0] = 2.0;
    /// });
    /// # }
    /// ```
    pub fn scope<'env, R>(&'env self, work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        let running = Arc::new(Running::default());
        let scope = Scope {
            background: self,
            running: Arc::clone(&running),
            _scope: PhantomData,
            _environment: PhantomData,
        };
        let done = catch_unwind(AssertUnwindSafe(|| work(&scope)));
        // A process that was forked in the scope has no worker to wait for.
        if self.inner().check_process().is_ok() {
            running.wait_for_none();
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Submits a call, without blocking. If the call is refused, its handle has the error.
    pub fn start(&'scope self, request: Request<'scope, impl Into<Buffers<'scope>>>) -> ScopedHandle<'scope> {
        let request = request.erased();
        let name = request.collective.name();
        // SAFETY: only the lifetime changes. What is borrowed for 'scope lives until `Background::scope` returns, which waits until no
        // `Borrowed` of the scope is left; and a worker uses it only in `Borrowed`.
        let request = unsafe { std::mem::transmute::<Request<'scope>, Request<'static>>(request) };
        let guard = Guard::new(&self.running);
        let load = Borrowed { request, _guard: guard };
        // A scope within a call would wait for that call.
        let handle = match self.background.inner().check_not_in_call() {
            Err(why) => self.background.refuse(name, load, why),
            Ok(()) => self.background.submit(name, load),
        };
        ScopedHandle { handle, _scope: PhantomData }
    }
}

impl ScopedHandle<'_> {
    /// The number of the call among those submitted on this rank, from 1; 0 if it was refused.
    pub fn number(&self) -> u64 {
        self.handle.number()
    }

    /// Whether the call is over, successful or not.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// Waits until the call is over. Its buffers stay borrowed until the scope ends.
    pub fn wait(self) -> Result<(), Error> {
        let Completion { result, .. } = self.handle.join();
        result
    }

    /// Waits until the call is over, at most for `timeout`. If it is not over by then, returns the handle; the call continues.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<(), Error>, Self> {
        match self.handle.wait_timeout(timeout) {
            Ok(done) => Ok(done.map(|_| ())),
            Err(handle) => Err(Self { handle, _scope: PhantomData }),
        }
    }

    /// Cancels the call, as [`Handle::cancel`] does.
    pub fn cancel(&self) -> bool {
        self.handle.cancel()
    }
}

/// A [`ScopedHandle`] that is being awaited. Dropping it does not cancel the call.
#[derive(Debug)]
pub struct ScopedFuture<'scope> {
    future: HandleFuture<()>,
    _scope: PhantomData<&'scope ()>,
}

impl<'scope> IntoFuture for ScopedHandle<'scope> {
    type Output = Result<(), Error>;
    type IntoFuture = ScopedFuture<'scope>;

    fn into_future(self) -> ScopedFuture<'scope> {
        ScopedFuture { future: self.handle.into_future(), _scope: PhantomData }
    }
}

impl Future for ScopedFuture<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.future).poll(context)
    }
}

/// A call on borrowed buffers, with the lifetime hidden.
struct Borrowed {
    request: Request<'static>,
    /// Dropped last: then the scope may end.
    _guard: Guard,
}

// SAFETY: the buffers are borrowed slices or windows of plain data, borrowed mutably where they are written, which may be sent. So
// may the rest of the request.
unsafe impl Send for Borrowed {}

impl Load for Borrowed {
    type Back = ();

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let deadline = self.request.deadline;
        comm.call_within(self.request.args(), deadline)
    }

    fn back(self) -> Option<()> {
        Some(())
    }

    fn yields_core(&self) -> bool {
        self.request.yields_core
    }
}

/// Counts a call of a scope while it exists.
struct Guard(Arc<Running>);

impl Guard {
    fn new(running: &Arc<Running>) -> Self {
        *running.count() += 1;
        Guard(Arc::clone(running))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.changed.notify_all();
    }
}

impl Running {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_none(&self) {
        let mut count = self.count();
        while *count > 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
