//! What is left with whoever started a call.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weftlink_bootstrap::Reason;

use super::queue::Inner;
use crate::error::Error;

/// A call that was started. Dropping it does not cancel the call, which is made all the same; its buffers are dropped then.
pub struct Handle<B> {
    slot: Arc<Slot<B>>,
    inner: Arc<Inner>,
    number: u64,
    name: &'static str,
}

/// A call that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<B> {
    /// The buffers, with the result in them.
    pub buffers: B,
}

/// A call that is over, well or not.
#[derive(Debug)]
pub struct Ended<B> {
    /// How it went.
    pub result: Result<(), Error>,
    /// The buffers. After an error what was to be written may be anything. Nothing if they are not there: the handle was waited
    /// for where that would have lasted for ever.
    pub buffers: Option<B>,
}

/// Where the end of a call is told.
pub(super) struct Slot<B> {
    state: Mutex<State<B>>,
    changed: Condvar,
}

enum State<B> {
    Pending,
    /// Somebody wants to be told.
    Watched(Box<dyn FnOnce(Ended<B>) + Send>),
    Done(Ended<B>),
    Taken,
}

impl<B> Handle<B> {
    pub(super) fn new(slot: Arc<Slot<B>>, inner: Arc<Inner>, number: u64, name: &'static str) -> Self {
        Self { slot, inner, number, name }
    }

    /// The place of the call among all that were submitted on this rank, from 1; 0 if it was not taken.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the call is over, well or not.
    pub fn is_done(&self) -> bool {
        self.inner.check_process().is_err() || self.slot.is_done()
    }

    /// Waits until the call is over, as long as that takes: calls have deadlines of their own.
    pub fn wait(self) -> Result<Done<B>, Error> {
        self.join().into_result()
    }

    /// Waits until the call is over, and gives the buffers back in any case.
    pub fn join(self) -> Ended<B> {
        match self.hopeless() {
            Some(error) => Ended { result: Err(error), buffers: None },
            None => self.slot.take(None).unwrap_or_else(Ended::taken),
        }
    }

    /// Waits until the call is over, but not longer than this. If it is not over by then, it goes on, and this is the handle.
    pub fn wait_timeout(self, time: Duration) -> Result<Result<Done<B>, Error>, Handle<B>> {
        if let Some(error) = self.hopeless() {
            return Ok(Err(error));
        }
        match self.slot.take(Some(time)) {
            Some(ended) => Ok(ended.into_result()),
            None => Err(self),
        }
    }

    /// Cancels the call, unless it is over: ends the communicator for all ranks, which are told that this rank cancelled this
    /// call. Tells whether it did. A call that is over by the time the others hear of it went well all the same.
    pub fn cancel(&self) -> bool {
        if self.is_done() {
            return false;
        }
        let (name, number) = (self.name, self.number);
        self.inner.end(Reason::Cancelled, &format!("cancelled {name} #{number}"));
        true
    }

    /// The same call once more, for those who do not wait for it.
    pub(super) fn twin(&self) -> Self {
        let (slot, inner) = (Arc::clone(&self.slot), Arc::clone(&self.inner));
        Self { slot, inner, number: self.number, name: self.name }
    }

    /// Why waiting would never end.
    fn hopeless(&self) -> Option<Error> {
        match self.inner.check_process() {
            Ok(()) if self.slot.is_done() => None,
            Ok(()) => self.inner.check_not_in_call().err(),
            Err(error) => Some(error),
        }
    }

    /// Makes the next call on this thread, if it is this one or one before it and nobody else makes one: whether it did.
    pub(super) fn help(&self) -> Result<bool, Error> {
        match self.hopeless() {
            Some(error) => Err(error),
            None => Ok(self.inner.help(self.number)),
        }
    }

    /// Ends the communicator for all ranks, with a reason.
    pub(super) fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}

impl<B: Send + 'static> Handle<B> {
    /// Calls back when the call is over: on the thread that made it, or on this one if it is over already. Whatever takes long there
    /// keeps the next call waiting; it may start calls, but not wait for one. If it panics, nothing else happens.
    pub fn on_done(self, callback: impl FnOnce(Ended<B>) + Send + 'static) {
        match self.inner.check_process() {
            Ok(()) => self.slot.watch(Box::new(callback)),
            Err(error) => callback(Ended { result: Err(error), buffers: None }),
        }
    }
}

impl<B> Ended<B> {
    /// The buffers, or the error.
    pub fn into_result(self) -> Result<Done<B>, Error> {
        self.result?;
        match self.buffers {
            Some(buffers) => Ok(Done { buffers }),
            None => Err(Error::gone("the buffers have been given back already")),
        }
    }

    fn taken() -> Self {
        Ended { result: Err(Error::gone("the call has been waited for")), buffers: None }
    }
}

impl<B> Slot<B> {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::Pending), changed: Condvar::new() }
    }

    /// Tells the end.
    pub(super) fn complete(&self, ended: Ended<B>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Pending => {
                *state = State::Done(ended);
                drop(state);
                self.changed.notify_all();
            }
            State::Watched(callback) => {
                drop(state);
                tell(callback, ended);
            }
            State::Done(_) | State::Taken => {}
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(*self.state(), State::Done(_) | State::Taken)
    }

    /// Waits for the end, for a time if one is given.
    pub(super) fn take(&self, time: Option<Duration>) -> Option<Ended<B>> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(ended) => return Some(ended),
                State::Taken => return Some(Ended::taken()),
                before => *state = before,
            }
            state = match time {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let left = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn watch(&self, callback: Box<dyn FnOnce(Ended<B>) + Send>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(ended) => {
                drop(state);
                tell(callback, ended);
            }
            State::Pending => *state = State::Watched(callback),
            State::Watched(_) | State::Taken => unreachable!("a handle is watched or waited for once"),
        }
    }

    /// Nothing of the caller's is called while it is held.
    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The panic has been reported by the hook; the worker has others' calls to make.
fn tell<B>(callback: Box<dyn FnOnce(Ended<B>) + Send>, ended: Ended<B>) {
    let _ = catch_unwind(AssertUnwindSafe(|| callback(ended)));
}

impl<B> fmt::Debug for Handle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_done() { "done" } else { "not done" };
        write!(f, "Handle({} #{}, {state})", self.name, self.number)
    }
}
