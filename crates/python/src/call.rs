//! A started call, as Python holds it.
//!
//! The thread that runs a call completes it here without the GIL: the communicator's worker, or a thread that waits for the call before the
//! worker has begun it. Other waiting threads sleep on a condition variable. A callback thread (`callbacks.rs`) runs callbacks: the
//! worker has other calls to run.

use std::slice::from_ref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use weftlink::{Error, Identities, RawHandle};

use crate::callbacks::queue_callbacks;
use crate::error::{exception, raised_in};
use crate::wait::{SIGNAL_POLL, help, timeout_of};

/// After an interrupt, how long to wait for the aborted call to end.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// A started call.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Started {
    shared: Arc<Shared>,
    /// It does not keep the communicator alive.
    handle: RawHandle,
}

/// The state of a call, shared by the worker and Python.
pub(crate) struct Shared {
    operation: &'static str,
    /// The ranks of the communicator, for errors.
    identities: Identities,
    process: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: Option<Result<(), Error>>,
    /// Objects that must live until the call is done.
    kept: Vec<Py<PyAny>>,
    callbacks: Vec<Py<PyAny>>,
}

impl Shared {
    pub(crate) fn new(operation: &'static str, identities: Identities, kept: Vec<Py<PyAny>>) -> Arc<Self> {
        let state = State { kept, ..State::default() };
        let process = std::process::id();
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { operation, identities, process, state, changed })
    }

    /// Stores the result; called on the thread that ran the call.
    pub(crate) fn complete(self: &Arc<Self>, result: Result<(), Error>) {
        let mut state = self.state();
        state.ended = Some(result);
        // Without the GIL, pyo3 defers the drop of Python objects.
        state.kept.clear();
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.changed.notify_all();
        if !callbacks.is_empty() {
            queue_callbacks(callbacks);
        }
    }

    /// The result, if there is one within the timeout.
    fn ended(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(ended) = &state.ended {
                return Some(ended.clone());
            }
            let left = timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn raised(&self, py: Python<'_>, error: &Error) -> PyErr {
        raised_in(py, error, Some(self.operation), Some(&self.identities))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Started {
    pub(crate) fn new(shared: Arc<Shared>, handle: RawHandle) -> Self {
        Self { shared, handle }
    }

    /// Waits until the call is done, or for the timeout: whether it is done. If a signal handler raises, the communicator is aborted, because
    /// one rank cannot undo a call; then the buffers are the caller's again.
    pub(crate) fn join(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        if timeout.is_none() && !self.is_done() {
            let ended = |_: &PyErr| drop(py.detach(|| self.shared.ended(ABORT_GRACE)));
            let helped = help(py, from_ref(&self.handle)).inspect_err(ended)?;
            helped.map_err(|error| self.shared.raised(py, &error))?;
        }
        let began = Instant::now();
        loop {
            let left = timeout
                .map_or(SIGNAL_POLL, |timeout| timeout.saturating_sub(began.elapsed()).min(SIGNAL_POLL));
            let ended = match self.shared.ended(Duration::ZERO) {
                Some(ended) => Some(ended),
                None => py.detach(|| self.shared.ended(left)),
            };
            if let Some(ended) = ended {
                return ended.map(|()| true).map_err(|error| self.shared.raised(py, &error));
            }
            if let Err(interrupt) = py.check_signals() {
                let operation = self.shared.operation;
                py.detach(|| {
                    self.handle.abort(&format!("interrupted in {operation}"));
                    self.shared.ended(ABORT_GRACE)
                });
                return Err(interrupt);
            }
            if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                return Ok(false);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.shared.state().ended.is_some()
    }

    fn check_process(&self) -> PyResult<()> {
        let (here, there) = (std::process::id(), self.shared.process);
        if here == there {
            return Ok(());
        }
        let what = format!(
            "process {here} was forked from process {there}, which made the call; only that one may use it"
        );
        Python::attach(|py| Err(self.shared.raised(py, &Error::Misuse(what))))
    }
}

#[pymethods]
impl Started {
    /// Waits until the call is done, or for `timeout` seconds: whether it is done. Raises the call's error.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.check_process()?;
        self.join(py, timeout.map(timeout_of))
    }

    /// Whether the call is done, with or without an error.
    fn done(&self) -> bool {
        self.check_process().is_err() || self.is_done()
    }

    /// The call's error as an exception; None if it has none, or is not done.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A copy: Python code must not run while the state is locked.
        let error = self.shared.state().ended.as_ref().and_then(|ended| ended.as_ref().err().cloned());
        error
            .map(|error| exception(py, &error, Some(self.shared.operation), Some(&self.shared.identities)))
            .transpose()
    }

    /// Calls a function without arguments when the call is done: on a callback thread, or on this one if it is done already.
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

    /// Cancels the call unless it is done, and returns whether it did. This aborts the communicator on all ranks.
    fn cancel(&self, py: Python<'_>) -> bool {
        let runs = !self.done();
        if runs {
            py.detach(|| self.handle.abort(&format!("cancelled {}", self.shared.operation)));
        }
        runs
    }
}
