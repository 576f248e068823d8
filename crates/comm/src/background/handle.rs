//! Handles of submitted calls.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use weftlink_bootstrap::Reason;

use super::queue::Inner;
use crate::error::Error;

/// A submitted call. Dropping the handle does not cancel the call; its buffers are dropped when it is over.
///
/// Wait for it on this thread ([`Handle::wait`]), await it, or register a callback ([`Handle::on_done`]). Awaiting needs no
/// particular runtime: the thread that runs the call wakes the task.
pub struct Handle<B> {
    slot: Arc<Slot<B>>,
    inner: Arc<Inner>,
    number: u64,
    name: &'static str,
}

/// A call that is over, successful or not.
#[derive(Debug)]
pub struct Completion<B> {
    /// The result.
    pub result: Result<(), Error>,
    /// The buffers. After an error their contents are unspecified. `None` if waiting for the call would never have ended, as in a
    /// forked process: then the call keeps them.
    pub buffers: Option<B>,
}

/// A [`Handle`] that is being awaited. Dropping it does not cancel the call.
pub struct HandleFuture<B>(Handle<B>);

/// Where a call leaves its completion.
pub(super) struct Slot<B> {
    state: Mutex<State<B>>,
    changed: Condvar,
}

enum State<B> {
    /// Not over; with the task to wake when it is.
    Pending(Option<Waker>),
    /// Not over; with the callback to run when it is.
    Callback(Box<dyn FnOnce(Completion<B>) + Send>),
    Done(Completion<B>),
    /// Over, and the completion was handed out.
    Taken,
}

impl<B> Handle<B> {
    pub(super) fn new(slot: Arc<Slot<B>>, inner: Arc<Inner>, number: u64, name: &'static str) -> Self {
        Self { slot, inner, number, name }
    }

    /// The number of the call among those submitted on this rank, from 1; 0 if it was refused.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the call is over, successful or not.
    pub fn is_done(&self) -> bool {
        self.inner.check_process().is_err() || self.slot.is_done()
    }

    /// Waits until the call is over, and returns the buffers with the result in them. There is no timeout here, because calls have
    /// deadlines of their own.
    pub fn wait(self) -> Result<B, Error> {
        self.join().into_result()
    }

    /// Waits until the call is over, and returns the buffers also after an error.
    pub fn join(self) -> Completion<B> {
        match self.check_can_wait() {
            Err(error) => Completion { result: Err(error), buffers: None },
            Ok(()) => self.slot.take(None).unwrap_or_else(Completion::taken),
        }
    }

    /// Waits until the call is over, at most for `timeout`. If the call is not over by then, returns the handle; the call continues.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<B, Error>, Handle<B>> {
        if let Err(error) = self.check_can_wait() {
            return Ok(Err(error));
        }
        match self.slot.take(Some(timeout)) {
            Some(completion) => Ok(completion.into_result()),
            None => Err(self),
        }
    }

    /// Cancels the call, unless it is over, and returns whether it did. This aborts the communicator on all ranks, whose errors
    /// name this rank and this call. A call that completes before the abort reaches it succeeds.
    pub fn cancel(&self) -> bool {
        if self.is_done() {
            return false;
        }
        let (name, number) = (self.name, self.number);
        self.inner.abort_with(Reason::Cancelled, &format!("cancelled {name} #{number}"));
        true
    }

    /// A second handle of the same call. Only one of the two may wait for it.
    pub(super) fn twin(&self) -> Self {
        let (slot, inner) = (Arc::clone(&self.slot), Arc::clone(&self.inner));
        Self { slot, inner, number: self.number, name: self.name }
    }

    /// Refuses waits that would never end.
    fn check_can_wait(&self) -> Result<(), Error> {
        self.inner.check_process()?;
        if self.slot.is_done() { Ok(()) } else { self.inner.check_not_in_call() }
    }

    /// Runs the next queued call on this thread, if it is this one or one before it and no call is running. Returns whether it did.
    pub(super) fn help(&self) -> Result<bool, Error> {
        self.check_can_wait()?;
        Ok(self.inner.help(self.number))
    }

    /// Aborts the communicator on all ranks.
    pub(super) fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}

impl<B: Send + 'static> Handle<B> {
    /// Runs a callback when the call is over: on the thread that ran the call, or on this one if the call is over already. The next call
    /// waits until the callback returns. A callback may submit calls, but not wait for one: [`Handle::wait`] is refused, and a future
    /// that it blocks on never completes. Its panics are caught.
    pub fn on_done(self, callback: impl FnOnce(Completion<B>) + Send + 'static) {
        match self.inner.check_process() {
            Ok(()) => self.slot.set_callback(Box::new(callback)),
            Err(error) => callback(Completion { result: Err(error), buffers: None }),
        }
    }
}

impl<B> IntoFuture for Handle<B> {
    type Output = Result<B, Error>;
    type IntoFuture = HandleFuture<B>;

    fn into_future(self) -> HandleFuture<B> {
        HandleFuture(self)
    }
}

impl<B> Future for HandleFuture<B> {
    type Output = Result<B, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Handle { slot, inner, .. } = &self.0;
        // A forked process has no worker that would wake the task.
        if let Err(error) = inner.check_process() {
            return Poll::Ready(Err(error));
        }
        slot.poll(context).map(Completion::into_result)
    }
}

impl<B> Completion<B> {
    /// The buffers, or the error.
    pub fn into_result(self) -> Result<B, Error> {
        self.result?;
        self.buffers.ok_or_else(|| Error::gone("the buffers of this call have been returned already"))
    }

    fn taken() -> Self {
        Completion { result: Err(Error::gone("this call has been waited for already")), buffers: None }
    }
}

impl<B> Slot<B> {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::Pending(None)), changed: Condvar::new() }
    }

    /// Stores the completion and notifies the waiter.
    pub(super) fn complete(&self, completion: Completion<B>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Pending(waker) => {
                *state = State::Done(completion);
                drop(state);
                self.changed.notify_all();
                if let Some(waker) = waker {
                    call_back(|| waker.wake());
                }
            }
            State::Callback(callback) => {
                drop(state);
                call_back(|| callback(completion));
            }
            State::Done(_) | State::Taken => {}
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(*self.state(), State::Done(_) | State::Taken)
    }

    /// Waits for the completion, at most for `timeout` if there is one.
    pub(super) fn take(&self, timeout: Option<Duration>) -> Option<Completion<B>> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(completion) => return Some(completion),
                State::Taken => return Some(Completion::taken()),
                before => *state = before,
            }
            state = match timeout {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let left = timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The completion, or the task's waker is registered.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Completion<B>> {
        // Cloned and dropped without the lock, because both are the runtime's code.
        let waker = context.waker().clone();
        let mut state = self.state();
        let before = std::mem::replace(&mut *state, State::Taken);
        let (result, _replaced) = match before {
            State::Done(completion) => (Poll::Ready(completion), None),
            State::Taken => (Poll::Ready(Completion::taken()), None),
            State::Pending(replaced) => {
                *state = State::Pending(Some(waker));
                (Poll::Pending, replaced)
            }
            State::Callback(_) => unreachable!("a handle with a callback was consumed"),
        };
        drop(state);
        result
    }

    fn set_callback(&self, callback: Box<dyn FnOnce(Completion<B>) + Send>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(completion) => {
                drop(state);
                call_back(|| callback(completion));
            }
            State::Pending(_) => *state = State::Callback(callback),
            State::Callback(_) | State::Taken => unreachable!("a handle is consumed once"),
        }
    }

    /// Locks the state. No code of the caller's runs while it is locked.
    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the caller's code. The panic hook reports a panic; the worker has other calls to make.
fn call_back(callback: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(callback));
}

impl<B> fmt::Debug for Handle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_done() { "done" } else { "not done" };
        write!(f, "Handle({} #{}, {state})", self.name, self.number)
    }
}

impl<B> fmt::Debug for HandleFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleFuture({:?})", self.0)
    }
}
