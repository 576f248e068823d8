//! A call that was started: what Python holds of it.
//!
//! Whoever makes a call tells its end here, and takes nothing of Python's for that. That is the communicator's worker, or who waits for
//! the call before the worker has begun it; others who wait sleep on a condition variable. Functions that are to be called at the end
//! are called by a thread for that (`tell.rs`): the worker has other calls to make.

use std::slice::from_ref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use weftlink::{Error, RawHandle};

use crate::error::{exception, raised};
use crate::tell::tell;
use crate::wait::{LOOK_EVERY, help, time};

/// After an interrupt, how long an ended call may take to be over.
const ENDING: Duration = Duration::from_secs(1);

/// A call that was started.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Started {
    shared: Arc<Shared>,
    /// It does not keep the communicator.
    handle: RawHandle,
}

/// What the worker and Python share of a call.
pub(crate) struct Shared {
    operation: &'static str,
    process: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: Option<Result<(), Error>>,
    /// What must live until it is over.
    kept: Vec<Py<PyAny>>,
    callbacks: Vec<Py<PyAny>>,
}

impl Shared {
    pub(crate) fn new(operation: &'static str, kept: Vec<Py<PyAny>>) -> Arc<Self> {
        let state = State { kept, ..State::default() };
        let process = std::process::id();
        Arc::new(Self { operation, process, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Tells the end; on the thread that made the call.
    pub(crate) fn end(self: &Arc<Self>, result: Result<(), Error>) {
        let mut state = self.state();
        state.ended = Some(result);
        // Without Python's lock, what is dropped is put aside until somebody has it.
        state.kept.clear();
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.changed.notify_all();
        if !callbacks.is_empty() {
            tell(callbacks);
        }
    }

    /// How it ended, if it is over after at most this time.
    fn ended(&self, time: Duration) -> Option<Result<(), Error>> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(ended) = &state.ended {
                return Some(ended.clone());
            }
            let left = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Started {
    pub(crate) fn new(shared: Arc<Shared>, handle: RawHandle) -> Self {
        Self { shared, handle }
    }

    /// Waits until the call is over, at most so long: whether it is. A signal whose handler raises ends the communicator, because a
    /// call cannot be taken back on one rank; then its buffers are the caller's again.
    pub(crate) fn join(&self, py: Python<'_>, time: Option<Duration>) -> PyResult<bool> {
        if time.is_none() && !self.is_over() {
            let ended = |_: &PyErr| drop(py.detach(|| self.shared.ended(ENDING)));
            let helped = help(py, from_ref(&self.handle)).inspect_err(ended)?;
            helped.map_err(|error| raised(py, &error, Some(self.shared.operation)))?;
        }
        let began = Instant::now();
        loop {
            let left = time.map_or(LOOK_EVERY, |time| time.saturating_sub(began.elapsed()).min(LOOK_EVERY));
            let ended = match self.shared.ended(Duration::ZERO) {
                Some(ended) => Some(ended),
                None => py.detach(|| self.shared.ended(left)),
            };
            if let Some(ended) = ended {
                return ended.map(|()| true).map_err(|error| raised(py, &error, Some(self.shared.operation)));
            }
            if let Err(interrupt) = py.check_signals() {
                let operation = self.shared.operation;
                py.detach(|| {
                    self.handle.abort(&format!("interrupted in {operation}"));
                    self.shared.ended(ENDING)
                });
                return Err(interrupt);
            }
            if time.is_some_and(|time| began.elapsed() >= time) {
                return Ok(false);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.shared.state().ended.is_some()
    }

    fn check_process(&self) -> PyResult<()> {
        let (here, there) = (std::process::id(), self.shared.process);
        if here == there {
            return Ok(());
        }
        let what = format!("the call was made by process {there}, from which process {here} was forked");
        Python::attach(|py| Err(raised(py, &Error::Misuse(what), Some(self.shared.operation))))
    }
}

#[pymethods]
impl Started {
    /// Waits until the call is over, for at most so many seconds: whether it is. Raises what went wrong.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.check_process()?;
        self.join(py, timeout.map(time))
    }

    /// Whether the call is over, well or not.
    fn done(&self) -> bool {
        self.check_process().is_err() || self.is_over()
    }

    /// What went wrong, as an exception; None if nothing did, or the call is not over.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A copy: nothing of Python's may run while the state is locked.
        let error = self.shared.state().ended.as_ref().and_then(|ended| ended.as_ref().err().cloned());
        error.map(|error| exception(py, &error, Some(self.shared.operation))).transpose()
    }

    /// Calls a function without arguments when the call is over: on a thread for that, or on this one if it is over already.
    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        self.check_process()?;
        let mut state = self.shared.state();
        if state.ended.is_none() {
            state.callbacks.push(callback);
            return Ok(());
        }
        drop(state);
        callback.call0(py).map(drop)
    }

    /// Cancels the call unless it is over, and says whether it did: ends the communicator, for all ranks.
    fn cancel(&self, py: Python<'_>) -> bool {
        let runs = !self.done();
        if runs {
            py.detach(|| self.handle.abort(&format!("cancelled {}", self.shared.operation)));
        }
        runs
    }
}
