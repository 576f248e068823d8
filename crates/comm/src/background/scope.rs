//! Calls on borrowed buffers: a scope that is not left before they are over, as `std::thread::scope` is for threads.

// A borrow is hidden from the compiler for the time of the scope.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::handle::Handle;
use super::task::Load;
use super::{Background, Ended};
use crate::communicator::{Communicator, Request};
use crate::error::Error;

/// Where calls on borrowed buffers are started. Made by [`Background::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    background: &'env Background,
    running: Arc<Running>,
    /// Invariant, as in the standard library: neither lifetime may be taken for a shorter one.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _environment: PhantomData<&'env mut &'env ()>,
}

/// A call of a scope. Dropping it does not cancel the call.
#[derive(Debug)]
pub struct ScopedHandle<'scope> {
    handle: Handle<()>,
    _scope: PhantomData<&'scope ()>,
}

/// How many calls of a scope are not over.
#[derive(Debug, Default)]
struct Running {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Background {
    /// Lets calls borrow their buffers: whatever is started within the scope is over when this returns, however the scope is
    /// left. That is bounded by the deadlines of the calls.
    ///
    /// ```
    /// use weftlink_comm::{Error, Reduction, Request, on_threads};
    /// use weftlink_plan::Collective;
    ///
    /// let sums = on_threads(2, |comm| {
    ///     let background = comm.into_background()?;
    ///     let mut values = vec![background.rank() as f32 + 1.0; 100];
    ///     let meanwhile = background.scope(|scope| {
    ///         let call = scope.start(Request::new(&Collective::AllReduce, &mut values).with(Reduction::Sum));
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
    /// What a call borrows must outlive the scope:
    ///
    /// ```compile_fail,E0597
    /// # use weftlink_comm::{Background, Reduction, Request};
    /// # use weftlink_plan::Collective;
    /// # fn test(background: &Background) {
    /// background.scope(|scope| {
    ///     let mut values = vec![1.0_f32; 100];
    ///     scope.start(Request::new(&Collective::AllReduce, &mut values).with(Reduction::Sum));
    /// });
    /// # }
    /// ```
    ///
    /// And it cannot be touched before it is over:
    ///
    /// ```compile_fail,E0503
    /// # use weftlink_comm::{Background, Reduction, Request};
    /// # use weftlink_plan::Collective;
    /// # fn test(background: &Background) {
    /// let mut values = [1.0_f32; 100];
    /// background.scope(|scope| {
    ///     scope.start(Request::new(&Collective::AllReduce, &mut values).with(Reduction::Sum));
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
        // A process that was forked in the scope has no worker that could touch anything, and none to wait for.
        if self.inner().check_process().is_ok() {
            running.wait_for_none();
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Submits a call. It never blocks: if the call cannot be submitted, the handle is done and has the error.
    pub fn start(&'scope self, request: Request<'scope>) -> ScopedHandle<'scope> {
        self.submit(request, None)
    }

    /// The same with a deadline of its own.
    pub fn start_within(&'scope self, request: Request<'scope>, deadline: Duration) -> ScopedHandle<'scope> {
        self.submit(request, Some(deadline))
    }

    fn submit(&'scope self, request: Request<'scope>, deadline: Option<Duration>) -> ScopedHandle<'scope> {
        let name = request.collective.name();
        // SAFETY: only the lifetime is another. What is borrowed for 'scope is there until `Background::scope` returns, which
        // waits until no `Borrowed` of the scope is left; and a worker touches it only in `Borrowed::run`.
        let request = unsafe { std::mem::transmute::<Request<'scope>, Request<'static>>(request) };
        let guard = Guard::new(&self.running);
        let load = Borrowed { request: Some(request), deadline, _guard: guard };
        // What runs in a call would wait for itself at the end of the scope.
        let handle = match self.background.inner().check_not_in_call() {
            Err(why) => self.background.refuse(name, load, why),
            Ok(()) => self.background.submit(name, load),
        };
        ScopedHandle { handle, _scope: PhantomData }
    }
}

impl ScopedHandle<'_> {
    /// The place of the call among all that were submitted on this rank, from 1; 0 if it was not taken.
    pub fn number(&self) -> u64 {
        self.handle.number()
    }

    /// Whether the call is over, well or not.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// Waits until the call is over. Its buffers are the caller's again when the scope is.
    pub fn wait(self) -> Result<(), Error> {
        let Ended { result, .. } = self.handle.join();
        result
    }

    /// Waits until the call is over, but not longer than this. If it is not over by then, it goes on, and this is the handle.
    pub fn wait_timeout(self, time: Duration) -> Result<Result<(), Error>, Self> {
        match self.handle.wait_timeout(time) {
            Ok(done) => Ok(done.map(|_| ())),
            Err(handle) => Err(Self { handle, _scope: PhantomData }),
        }
    }

    /// Cancels the call, as [`Handle::cancel`] does.
    pub fn cancel(&self) -> bool {
        self.handle.cancel()
    }
}

/// A call on borrowed buffers, whose lifetime has been hidden.
struct Borrowed {
    request: Option<Request<'static>>,
    deadline: Option<Duration>,
    /// Dropped last: then the scope may end.
    _guard: Guard,
}

// SAFETY: buffers are slices or windows of plain data that are borrowed, alone where they are written; those may be sent. So
// may the collective, the counts and the operation's function, which is `Sync`.
unsafe impl Send for Borrowed {}

impl Load for Borrowed {
    type Back = ();

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        match (self.request.take(), self.deadline) {
            (Some(request), None) => comm.run(request),
            (Some(request), Some(deadline)) => comm.run_within(request, deadline),
            (None, _) => Ok(()),
        }
    }

    fn back(self) -> Option<()> {
        Some(())
    }
}

/// Counts a call of a scope for as long as it is there.
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
