//! Waiting without Python's lock, with an eye on signals.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use weftlink::Background;

/// How long a wait goes on before it looks for signals.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Does something that may take long on a thread of its own, while this one looks for signals. If there is one, the exception that Python
/// makes of it is raised, and the other thread is left to itself.
pub(crate) fn patiently<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    let (tell, mut told) = channel();
    std::thread::Builder::new().name("weft waits".to_owned()).spawn(move || tell.send(work()))?;
    loop {
        let waiting = &mut told;
        match py.detach(move || waiting.recv_timeout(LOOK_EVERY)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("weft panicked; what it said is on standard error"));
            }
        }
    }
}

/// What a signal raised, if there was one.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What a thread that makes a call itself does while it waits: it looks for signals, and ends the communicator for all ranks if Python
/// makes an exception of one.
pub(crate) fn signals(background: Background) -> (Raised, impl FnMut() + Send + 'static) {
    let raised = Raised::default();
    let told = raised.clone();
    let look = move || {
        if let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) {
            *told.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            // By another thread, because this one may hold locks where it waits.
            let background = background.clone();
            std::thread::spawn(move || background.abort("interrupted"));
        }
    };
    (raised, look)
}
