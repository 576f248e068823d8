//! Waiting without the GIL, while polling for signals.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use weftlink::{Error, RawHandle, while_waiting};

/// How often a wait polls for signals.
pub(crate) const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// A timeout in Python's seconds: zero if it is negative, and unlimited if it exceeds a `Duration`.
pub(crate) fn timeout_of(seconds: f64) -> Duration {
    let longest = if seconds > 0.0 { Duration::MAX } else { Duration::ZERO };
    Duration::try_from_secs_f64(seconds).unwrap_or(longest)
}

/// Runs blocking work on a thread of its own while this one polls for signals. If a signal handler raises, so does this function, and the
/// other thread continues alone.
pub(crate) fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    let (sender, mut receiver) = channel();
    let run = move || sender.send(catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic)));
    std::thread::Builder::new().name("weft blocking".to_owned()).spawn(run)?;
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(SIGNAL_POLL)) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(panic)) => return Err(panicked(&panic)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(panicked("its thread ended without a result"));
            }
        }
    }
}

/// A panic as an exception. Rust has printed the location to standard error.
fn panicked(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!(
        "Weft panicked: {what}. This is a bug, please report it with the location printed to standard error"
    ))
}

/// The message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

/// The exception that a signal handler raised during a call, if any.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<PyErr>>>);

impl Interrupt {
    /// The exception, because of which the communicator was aborted.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs calls on this thread. If a signal handler raises, `abort` ends them on all ranks, because one rank cannot undo a call.
pub(crate) fn with_signals<R: Send>(
    py: Python<'_>,
    abort: impl Fn() + Send + 'static,
    calls: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    let (result, interrupt) = py.detach(|| {
        let (interrupt, poll) = signals(abort);
        let result = while_waiting(poll, calls);
        (result, interrupt.take())
    });
    interrupt.map_or(Ok(result), Err)
}

/// Runs queued calls up to these on this thread, which waits for them anyway, unless a worker has begun them.
pub(crate) fn help(py: Python<'_>, handles: &[RawHandle]) -> PyResult<Result<(), Error>> {
    let all = handles.to_vec();
    let abort = move || all.iter().for_each(|handle| handle.abort("interrupted"));
    for handle in handles {
        loop {
            match with_signals(py, abort.clone(), || help_briefly(handle))? {
                Ok(true) => py.check_signals()?,
                Ok(false) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    Ok(Ok(()))
}

/// The same for one call, until it is time to poll for signals: calls that do not wait never poll.
fn help_briefly(handle: &RawHandle) -> Result<bool, Error> {
    let began = Instant::now();
    while began.elapsed() < SIGNAL_POLL {
        if !handle.help()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The poll hook of a thread that runs a call: it runs signal handlers, and aborts the communicator if one raises.
fn signals(abort: impl Fn() + Send + 'static) -> (Interrupt, impl FnMut() + Send + 'static) {
    let interrupt = Interrupt::default();
    let raised = interrupt.clone();
    let poll = move || {
        if let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) {
            abort();
            *raised.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    };
    (interrupt, poll)
}
