//! Communicators.
//!
//! A communicator is *starting* while its ranks meet, then *open*, and *failed* or *closed* at the end. Functions that need it open wait while it
//! starts if it is blocking, and are refused otherwise.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use weftlink::bootstrap::generation;

use crate::abi::ResultCode;
use crate::config::Config;
use crate::failure::Failure;
use crate::lock::lock;
use crate::open::Open;
use crate::operations::Factors;
use crate::window::Window;

/// A communicator, as a pointer of the program means it.
pub(crate) struct Comm {
    pub(crate) config: Config,
    /// The process that made it. Its children have no threads of it.
    pub(crate) process: u32,
    /// The same, known without a system call.
    pub(crate) generation: u32,
    /// The GPU that was current where it was made.
    pub(crate) device: Option<usize>,
    state: Mutex<State>,
    changed: Condvar,
    /// Work that functions have started and not waited for.
    unfinished: AtomicUsize,
    /// The thread whose group starts it.
    queued_by: Mutex<Option<ThreadId>>,
    /// Why the last work that functions did not wait for was refused, if it was.
    refused: Mutex<Option<Failure>>,
    is_revoked: AtomicBool,
    pub(crate) factors: Factors,
    /// The handles of buffers that the program has registered.
    pub(crate) registrations: Handles<usize>,
    /// Its windows.
    pub(crate) windows: Handles<Arc<Window>>,
}

/// What the program has registered, by handles that are used once.
pub(crate) struct Handles<T> {
    made: Mutex<(usize, HashMap<usize, T>)>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { made: Mutex::default() }
    }
}

impl<T: Clone> Handles<T> {
    /// Adds what is made for a new handle.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> T) -> T {
        let (last, made) = &mut *lock(&self.made);
        *last += 1;
        let new = make(*last);
        made.insert(*last, new.clone());
        new
    }

    pub(crate) fn get(&self, handle: usize) -> Option<T> {
        lock(&self.made).1.get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<T> {
        lock(&self.made).1.remove(&handle)
    }
}

enum State {
    Starting,
    Open(Arc<Open>),
    Failed(Failure),
    /// Waits for the calls of this rank, to leave.
    Closing(Arc<Open>),
    /// Finalized, and not yet destroyed.
    Closed,
}

impl Comm {
    /// A communicator whose ranks have not met yet.
    pub(crate) fn starting(config: Config, device: Option<usize>) -> Arc<Comm> {
        Arc::new(Comm {
            config,
            process: std::process::id(),
            generation: generation(),
            device,
            state: Mutex::new(State::Starting),
            changed: Condvar::new(),
            unfinished: AtomicUsize::new(0),
            queued_by: Mutex::new(None),
            refused: Mutex::new(None),
            is_revoked: AtomicBool::new(false),
            factors: Factors::default(),
            registrations: Handles::default(),
            windows: Handles::default(),
        })
    }

    /// A group of this thread starts it at its end.
    pub(crate) fn queued(&self) {
        *lock(&self.queued_by) = Some(std::thread::current().id());
    }

    /// The ranks have met, or not.
    pub(crate) fn started(&self, ended: Result<Option<Open>, Failure>) -> Result<(), Failure> {
        let mut state = self.state();
        let result = match &*state {
            State::Starting => ended.as_ref().map(|_| ()).map_err(Clone::clone),
            // It was aborted or destroyed meanwhile.
            State::Failed(failure) => Err(failure.clone()),
            _ => Ok(()),
        };
        if let State::Starting = *state {
            *state = match ended {
                Ok(Some(open)) => State::Open(Arc::new(open)),
                Ok(None) => State::Closed,
                Err(failure) => State::Failed(failure),
            };
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    /// The open communicator. Waits until it has started if it is blocking, and refuses calls before that otherwise.
    pub(crate) fn open(&self) -> Result<Arc<Open>, Failure> {
        let is_of_this_group = || *lock(&self.queued_by) == Some(std::thread::current().id());
        let mut state = self.state();
        loop {
            match &*state {
                State::Open(open) => return Ok(Arc::clone(open)),
                State::Failed(failure) => return Err(failure.clone()),
                State::Closing(_) | State::Closed => {
                    return Err(Failure::usage("the communicator is finalized"));
                }
                State::Starting if !self.config.blocking => {
                    let text = "the communicator has not started: call ncclCommGetAsyncError until it is no longer ncclInProgress";
                    return Err(Failure::argument(text));
                }
                State::Starting if is_of_this_group() => {
                    return Err(Failure::usage("the communicator starts when this group ends: end it first"));
                }
                State::Starting => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Refuses a communicator that does not block and has not started. One that blocks may start in the same group.
    pub(crate) fn check_started(&self) -> Result<(), Failure> {
        if self.config.blocking { Ok(()) } else { self.open().map(drop) }
    }

    /// What `ncclCommGetAsyncError` says.
    pub(crate) fn status(&self) -> ResultCode {
        let open = match &*self.state() {
            State::Starting => return ResultCode::InProgress,
            State::Failed(failure) => return failure.code,
            State::Closing(_) | State::Closed => None,
            State::Open(open) => Some(Arc::clone(open)),
        };
        match open.filter(|_| !self.is_revoked.load(Ordering::Acquire)).and_then(|open| open.failure()) {
            Some(failure) => failure.code,
            None if self.unfinished.load(Ordering::Acquire) > 0 => ResultCode::InProgress,
            None => lock(&self.refused).as_ref().map_or(ResultCode::Success, |failure| failure.code),
        }
    }

    /// The sentence of its error, if it has one.
    pub(crate) fn error_text(&self) -> Option<String> {
        let open = match &*self.state() {
            State::Failed(failure) => return Some(failure.text.clone()),
            State::Open(open) => Arc::clone(open),
            State::Starting | State::Closing(_) | State::Closed => return None,
        };
        open.failure().or_else(|| lock(&self.refused).clone()).map(|failure| failure.text)
    }

    /// Keeps the result of calls that their functions do not wait for, until the next ones.
    pub(crate) fn ran(&self, ended: &Result<(), Failure>) {
        if !self.config.blocking {
            *lock(&self.refused) = ended.as_ref().err().cloned();
        }
    }

    /// Counts work that runs behind the program's back.
    fn begin(&self) {
        self.unfinished.fetch_add(1, Ordering::AcqRel);
    }

    /// It is done.
    fn end(&self, ended: Result<(), Failure>) {
        let mut state = self.state();
        match (ended, &*state) {
            (Err(failure), State::Open(open)) => {
                open.record(&failure);
            }
            (Err(failure), State::Closing(_) | State::Closed) => *state = State::Failed(failure),
            _ => {}
        }
        // Under the lock: a thread that settles looks at it there.
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for work that runs behind the program's back.
    pub(crate) fn settle(&self) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state();
        while self.unfinished.load(Ordering::Acquire) > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all calls, of the other ranks too, and refuses later ones with this error.
    pub(crate) fn abort(&self, failure: Failure) {
        let open = match std::mem::replace(&mut *self.state(), State::Failed(failure.clone())) {
            State::Open(open) | State::Closing(open) => Some(open),
            _ => None,
        };
        self.changed.notify_all();
        if let Some(open) = open {
            open.abort(&failure.text);
            open.stop_puts();
        }
        // The program may free its buffers next.
        self.settle();
    }

    /// Ends all calls, of the other ranks too, and refuses later ones. It can be shrunk.
    pub(crate) fn revoke(&self, failure: Failure) -> Result<(), Failure> {
        let open = self.open()?;
        self.is_revoked.store(true, Ordering::Release);
        open.record(&failure);
        open.abort(&failure.text);
        Ok(())
    }

    /// Waits for this rank's calls, and leaves. No function uses it any more.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let open = {
            let mut state = self.state();
            match &*state {
                State::Open(open) => {
                    let open = Arc::clone(open);
                    *state = State::Closing(Arc::clone(&open));
                    open
                }
                State::Starting => {
                    *state = State::Closed;
                    return Ok(());
                }
                _ => return Ok(()),
            }
        };
        let left = open.leave();
        let mut state = self.state();
        if let State::Closing(_) = *state {
            *state = State::Closed;
        }
        left
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Work of communicators that runs behind the program's back. It ends also if its thread cannot be started, or panics.
pub(crate) struct Unfinished(Vec<Arc<Comm>>);

impl Unfinished {
    pub(crate) fn new(comms: Vec<Arc<Comm>>) -> Unfinished {
        comms.iter().for_each(|comm| comm.begin());
        Unfinished(comms)
    }

    pub(crate) fn end(mut self, ended: &Result<(), Failure>) {
        std::mem::take(&mut self.0).iter().for_each(|comm| comm.end(ended.clone()));
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let lost = || Failure::system("the thread of a call could not be started, or panicked");
        self.0.iter().for_each(|comm| comm.end(Err(lost())));
    }
}
