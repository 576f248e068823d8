//! A call in progress, as Python holds it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use weftlink::{Endpoint, Error, RawHandle};

use super::error::Context;
use super::pieces::Staged;
use super::record;
use crate::callbacks::{call, queue, queue_callbacks};
use crate::wait::{SIGNAL_POLL, help, timeout_of};

/// Polls before a wait sleeps, if the call is nearly done: some tens of microseconds.
const SPINS: u32 = 2000;

/// A started call. Dropping it does not cancel it.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct Call {
    shared: Arc<Shared>,
    /// Of a message: a waiting thread drives it.
    endpoint: Option<Endpoint>,
    /// Of a collective: a waiting thread runs the parts that no worker has begun. They do not keep the group alive.
    parts: Vec<RawHandle>,
    /// The caller has run one of several equal parts, so the others end soon.
    nearly_done: bool,
}

/// The state of a call, shared with the thread that runs it.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    context: Context,
    entry: u64,
}

#[derive(Default)]
struct State {
    end: Option<End>,
    callbacks: Vec<Py<PyAny>>,
}

/// The result of a call; that of a receive is the source.
pub(super) type End = Result<Option<usize>, Failure>;

pub(super) enum Failure {
    Weft(Error),
    /// The function that finishes the call raised.
    Python(PyErr),
}

/// The other end of a [`Call`], for the thread that runs it. It keeps the tensors alive until the call is done.
pub(super) struct Pending {
    shared: Arc<Shared>,
    finish: Option<Py<PyAny>>,
    /// Objects that must live until the call is done.
    kept: Vec<Py<PyAny>>,
    /// Staging copies of lists of tensors.
    staged: Vec<Staged>,
}

impl Call {
    pub(super) fn new(
        context: Context,
        entry: u64,
        finish: Option<Py<PyAny>>,
        kept: Vec<Py<PyAny>>,
        staged: Vec<Staged>,
    ) -> (Self, Pending) {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, context, entry });
        (
            Self { shared: Arc::clone(&shared), endpoint: None, parts: Vec::new(), nearly_done: false },
            Pending { shared, finish, kept, staged },
        )
    }

    /// Marks the call as nearly done.
    pub(super) fn nearly_done(self) -> Self {
        Self { nearly_done: true, ..self }
    }

    /// Adds the parts of a collective.
    pub(super) fn in_parts(self, parts: Vec<RawHandle>) -> Self {
        Self { parts, ..self }
    }

    /// Adds the endpoint of a message.
    pub(super) fn on_endpoint(self, endpoint: Endpoint) -> Self {
        Self { endpoint: Some(endpoint), ..self }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result, and returns the callbacks to run.
    fn complete(&self, end: End) -> Vec<Py<PyAny>> {
        record::mark_ended(self.entry, end.is_ok());
        let mut state = self.state();
        state.end = Some(end);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.changed.notify_all();
        callbacks
    }
}

impl Pending {
    /// Completes the call, on any thread and without the GIL.
    pub(super) fn complete(self, result: Result<Option<usize>, Error>) {
        let end = result.map_err(Failure::Weft);
        if end.is_ok() {
            self.staged.iter().for_each(Staged::copy_back);
        }
        let has_finish = self.finish.is_some() && end.is_ok();
        if !has_finish && self.shared.state().callbacks.is_empty() {
            // A callback added in between either sees the result or is among these.
            let callbacks = self.shared.complete(end);
            if !callbacks.is_empty() {
                queue_callbacks(callbacks);
            }
            return;
        }
        queue(Box::new(move |py| self.finish(py, end)));
    }

    fn finish(self, py: Python<'_>, end: End) {
        let Self { shared, finish, kept, .. } = self;
        let end = end.and_then(|source| match finish {
            Some(finish) => finish.call0(py).map(|_| source).map_err(Failure::Python),
            None => Ok(source),
        });
        drop(kept);
        call(py, shared.complete(end));
    }
}

#[pymethods]
impl Call {
    /// Waits until the call is done, or for `timeout` seconds: whether it is done. Raises the call's error.
    #[pyo3(signature = (timeout=None))]
    pub(super) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let began = Instant::now();
        if timeout.is_none() && !self.done() {
            help(py, &self.parts)?.map_err(|error| self.shared.context.raised(py, &error))?;
        }
        // Parts run in parallel, so all end at about the same time.
        let nearly_done = self.nearly_done || self.parts.len() > 1;
        let limit = timeout.map(timeout_of);
        loop {
            let left = limit.map_or(SIGNAL_POLL, |limit| limit.saturating_sub(began.elapsed()));
            if py.detach(|| self.wait_for(left.min(SIGNAL_POLL), nearly_done)) {
                return self.outcome(py).map(|()| true);
            }
            py.check_signals()?;
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                return Ok(false);
            }
        }
    }

    /// The name of the operation in errors.
    #[getter]
    fn operation(&self) -> &'static str {
        self.shared.context.operation.unwrap_or("the call")
    }

    /// Whether the call is done, with or without an error.
    fn done(&self) -> bool {
        self.shared.state().end.is_some()
    }

    /// The call's error; None if it has none, or is not done.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(failure) = self.failure(py) else { return Ok(None) };
        Ok(Some(match failure {
            Failure::Weft(error) => self.shared.context.exception(py, &error)?,
            Failure::Python(error) => error.into_value(py).into_bound(py).into_any(),
        }))
    }

    /// The source of a received message.
    #[getter]
    fn source(&self) -> Option<usize> {
        self.shared.state().end.as_ref().and_then(|end| *end.as_ref().ok()?)
    }

    /// Calls a function without arguments when the call is done, at once if it is.
    fn add_done_callback(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let mut state = self.shared.state();
        if state.end.is_none() {
            state.callbacks.push(callback);
            return Ok(());
        }
        drop(state);
        callback.call0(py).map(drop)
    }
}

impl Call {
    fn wait_for(&self, timeout: Duration, nearly_done: bool) -> bool {
        if let Some(endpoint) = &self.endpoint {
            return endpoint.wait_until(|| self.done(), timeout);
        }
        if nearly_done && (0..SPINS).any(|_| self.spin()) {
            return true;
        }
        let state = self.shared.state();
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |state| state.end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.end.is_some()
    }

    fn spin(&self) -> bool {
        std::hint::spin_loop();
        self.done()
    }

    fn outcome(&self, py: Python<'_>) -> PyResult<()> {
        match self.failure(py) {
            None => Ok(()),
            Some(Failure::Weft(error)) => Err(self.shared.context.raised(py, &error)),
            Some(Failure::Python(error)) => Err(error),
        }
    }

    /// A copy of the failure: Python code must not run while the state is locked.
    fn failure(&self, py: Python<'_>) -> Option<Failure> {
        match self.shared.state().end.as_ref()?.as_ref().err()? {
            Failure::Weft(error) => Some(Failure::Weft(error.clone())),
            Failure::Python(error) => Some(Failure::Python(error.clone_ref(py))),
        }
    }
}
