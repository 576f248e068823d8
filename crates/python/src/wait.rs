//! Waiting without Python's lock, with an eye on signals.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use weftlink::{Error, RawHandle, while_waiting};

/// How long a wait goes on before it looks for signals.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A time that Python gives in seconds: none if it is negative, and for ever if it is longer than any.
pub(crate) fn time(seconds: f64) -> Duration {
    let longest = if seconds > 0.0 { Duration::MAX } else { Duration::ZERO };
    Duration::try_from_secs_f64(seconds).unwrap_or(longest)
}

/// Does something that may take long on a thread of its own, while this one looks for signals. If there is one, the exception that Python
/// makes of it is raised, and the other thread is left to itself.
pub(crate) fn patiently<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    let (tell, mut told) = channel();
    let done = move || tell.send(catch_unwind(AssertUnwindSafe(work)).map_err(|panic| said(&*panic)));
    std::thread::Builder::new().name("weft waits".to_owned()).spawn(done)?;
    loop {
        let waiting = &mut told;
        match py.detach(move || waiting.recv_timeout(LOOK_EVERY)) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(panic)) => return Err(panicked(&panic)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(panicked("its thread has ended"));
            }
        }
    }
}

/// A panic as an exception. Where it happened is on standard error.
fn panicked(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!(
        "a bug in Weft, please report it: it panicked, {what} (more is on standard error)"
    ))
}

/// What a panic said, if it was text.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

/// What a signal raised, if there was one.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// The exception, for which the communicator has been ended.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Makes calls on this thread. A signal of which Python makes an exception calls `end`, which ends them for all ranks, because a call that
/// has begun cannot be taken back on one.
pub(crate) fn with_signals<R: Send>(
    py: Python<'_>,
    end: impl Fn() + Send + 'static,
    calls: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    let (made, interrupt) = py.detach(|| {
        let (interrupt, look) = signals(end);
        let made = while_waiting(look, calls);
        (made, interrupt.take())
    });
    interrupt.map_or(Ok(made), Err)
}

/// Makes calls that no worker has begun, and those before them, on this thread, which has nothing else to do before they are over.
pub(crate) fn help(py: Python<'_>, handles: &[RawHandle]) -> PyResult<Result<(), Error>> {
    let all = handles.to_vec();
    let end = move || all.iter().for_each(|handle| handle.abort("interrupted"));
    for handle in handles {
        loop {
            match with_signals(py, end.clone(), || help_for_a_while(handle))? {
                Ok(true) => py.check_signals()?,
                Ok(false) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    Ok(Ok(()))
}

/// The same with one, until somebody has to look for signals: calls that do not wait do not.
fn help_for_a_while(handle: &RawHandle) -> Result<bool, Error> {
    let began = Instant::now();
    while began.elapsed() < LOOK_EVERY {
        if !handle.help()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a thread that makes a call itself does while it waits: it looks for signals, and ends the communicator for all ranks if Python
/// makes an exception of one.
fn signals(end: impl Fn() + Send + 'static) -> (Raised, impl FnMut() + Send + 'static) {
    let raised = Raised::default();
    let told = raised.clone();
    let look = move || {
        if let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) {
            end();
            *told.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    };
    (raised, look)
}
