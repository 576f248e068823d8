//! A call that is under way, as Python holds it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use weftlink::{Endpoint, Error, RawHandle};

use super::pieces::Staged;
use super::record;
use crate::error::{exception, raised};
use crate::tell::{call, later, tell};
use crate::wait::{LOOK_EVERY, help, time};

/// How often a wait looks before it sleeps, where the end is near: some tens of microseconds.
const SPINS: u32 = 2000;

/// A call that was started. Dropping it does not cancel it.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct Call {
    shared: Arc<Shared>,
    /// Of a message: who waits makes it get on.
    endpoint: Option<Endpoint>,
    /// Of a collective: who waits makes its parts that no worker has begun. They do not keep the group.
    parts: Vec<RawHandle>,
    /// Of a call in parts, of which the caller has made one: the others are about to be over.
    soon: bool,
}

/// What is known of a call.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    name: &'static str,
    entry: u64,
}

#[derive(Default)]
struct State {
    end: Option<End>,
    /// Whom to tell.
    watchers: Vec<Py<PyAny>>,
}

/// How a call ended: well, with the rank that a message came from, or not.
pub(super) type End = Result<Option<usize>, Failure>;

pub(super) enum Failure {
    Weft(Error),
    /// What was to be done with the result failed.
    Python(PyErr),
}

/// The other end of a [`Call`]: whoever makes it completes it. It keeps the tensors alive until then.
pub(super) struct Pending {
    shared: Arc<Shared>,
    finish: Option<Py<PyAny>>,
    /// What must be there until the call is over.
    kept: Vec<Py<PyAny>>,
    /// Copies of what lies apart.
    staged: Vec<Staged>,
}

impl Call {
    pub(super) fn new(
        name: &'static str,
        entry: u64,
        finish: Option<Py<PyAny>>,
        kept: Vec<Py<PyAny>>,
        staged: Vec<Staged>,
    ) -> (Self, Pending) {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, name, entry });
        (
            Self { shared: Arc::clone(&shared), endpoint: None, parts: Vec::new(), soon: false },
            Pending { shared, finish, kept, staged },
        )
    }

    /// The same for a call that is about to be over.
    pub(super) fn soon(self) -> Self {
        Self { soon: true, ..self }
    }

    /// The same for a collective.
    pub(super) fn in_parts(self, parts: Vec<RawHandle>) -> Self {
        Self { parts, ..self }
    }

    /// The same for a message.
    pub(super) fn by(self, endpoint: Endpoint) -> Self {
        Self { endpoint: Some(endpoint), ..self }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the end, and gives those who want to be told.
    fn end(&self, end: End) -> Vec<Py<PyAny>> {
        record::ends(self.entry, end.is_ok());
        let mut state = self.state();
        state.end = Some(end);
        let watchers = std::mem::take(&mut state.watchers);
        drop(state);
        self.changed.notify_all();
        watchers
    }
}

impl Pending {
    /// Tells the end of a call. It may be told on any thread, and takes no lock of Python's.
    pub(super) fn complete(self, result: Result<Option<usize>, Error>) {
        let end = result.map_err(Failure::Weft);
        if end.is_ok() {
            self.staged.iter().for_each(Staged::bring_back);
        }
        let nothing_left = self.finish.is_none() || end.is_err();
        let alone = nothing_left && self.shared.state().watchers.is_empty();
        if alone {
            // Who comes to watch in between finds the end, or is told below.
            let watchers = self.shared.end(end);
            if !watchers.is_empty() {
                tell(watchers);
            }
            return;
        }
        later(Box::new(move |py| self.finish(py, end)));
    }

    fn finish(self, py: Python<'_>, end: End) {
        let Self { shared, finish, kept, .. } = self;
        let end = end.and_then(|source| match finish {
            Some(finish) => finish.call0(py).map(|_| source).map_err(Failure::Python),
            None => Ok(source),
        });
        drop(kept);
        call(py, shared.end(end));
    }
}

#[pymethods]
impl Call {
    /// Waits until the call is over, or so many seconds; raises its error.
    #[pyo3(signature = (timeout=None))]
    pub(super) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let began = Instant::now();
        if timeout.is_none() && !self.done() {
            help(py, &self.parts)?.map_err(|error| raised(py, &error, Some(self.shared.name)))?;
        }
        // Parts go side by side where there are cores for them.
        let soon = self.soon || self.parts.len() > 1;
        let limit = timeout.map(time);
        loop {
            let left = limit.map_or(LOOK_EVERY, |limit| limit.saturating_sub(began.elapsed()));
            if py.detach(|| self.wait_for(left.min(LOOK_EVERY), soon)) {
                return self.outcome(py);
            }
            py.check_signals()?;
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                let (name, seconds) = (self.shared.name, began.elapsed().as_secs_f64());
                return Err(PyTimeoutError::new_err(format!("{name} is not over after {seconds:.3} s")));
            }
        }
    }

    /// Whether the call is over, well or not.
    fn done(&self) -> bool {
        self.shared.state().end.is_some()
    }

    /// The error of a call that failed; None while it is under way and when it went well.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(failure) = self.failure(py) else { return Ok(None) };
        Ok(Some(match failure {
            Failure::Weft(error) => exception(py, &error, Some(self.shared.name))?,
            Failure::Python(error) => error.into_value(py).into_bound(py).into_any(),
        }))
    }

    /// The rank that a message came from.
    #[getter]
    fn source(&self) -> Option<usize> {
        self.shared.state().end.as_ref().and_then(|end| *end.as_ref().ok()?)
    }

    /// Calls back, without arguments, when the call is over: at once if it is.
    fn watch(&self, py: Python<'_>, watcher: Py<PyAny>) -> PyResult<()> {
        let mut state = self.shared.state();
        if state.end.is_none() {
            state.watchers.push(watcher);
            return Ok(());
        }
        drop(state);
        watcher.call0(py).map(|_| ())
    }
}

impl Call {
    fn wait_for(&self, time: Duration, soon: bool) -> bool {
        if let Some(endpoint) = &self.endpoint {
            return endpoint.wait_until(|| self.done(), time);
        }
        if soon && (0..SPINS).any(|_| self.is_over()) {
            return true;
        }
        let state = self.shared.state();
        let waited = self.shared.changed.wait_timeout_while(state, time, |state| state.end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.end.is_some()
    }

    fn is_over(&self) -> bool {
        std::hint::spin_loop();
        self.done()
    }

    fn outcome(&self, py: Python<'_>) -> PyResult<()> {
        match self.failure(py) {
            None => Ok(()),
            Some(Failure::Weft(error)) => Err(raised(py, &error, Some(self.shared.name))),
            Some(Failure::Python(error)) => Err(error),
        }
    }

    /// A copy of the failure: nothing of Python's may run while the state is locked.
    fn failure(&self, py: Python<'_>) -> Option<Failure> {
        match self.shared.state().end.as_ref()?.as_ref().err()? {
            Failure::Weft(error) => Some(Failure::Weft(error.clone())),
            Failure::Python(error) => Some(Failure::Python(error.clone_ref(py))),
        }
    }
}
