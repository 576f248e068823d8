//! Waiting without Python's lock, with an eye on signals.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use weftlink::{Background, while_waiting};

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
pub(crate) struct Raised(Arc<Mutex<Option<Interrupt>>>);

struct Interrupt {
    error: PyErr,
    /// Ends the communicator.
    ending: JoinHandle<()>,
}

impl Raised {
    /// The exception, once the communicator has been ended for it.
    pub(crate) fn take(&self) -> Option<PyErr> {
        let Interrupt { error, ending } = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let _ = ending.join();
        Some(error)
    }
}

/// Makes calls on this thread. An interrupt ends the communicators, because a call that has begun cannot be taken back on one rank.
pub(crate) fn with_signals<R: Send>(
    py: Python<'_>,
    backgrounds: &[Background],
    calls: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    let (made, interrupt) = py.detach(|| {
        let (interrupt, look) = signals(backgrounds.to_vec());
        let made = while_waiting(look, calls);
        (made, interrupt.take())
    });
    interrupt.map_or(Ok(made), Err)
}

/// What a thread that makes a call itself does while it waits: it looks for signals, and ends the communicator for all ranks if Python
/// makes an exception of one.
fn signals(backgrounds: Vec<Background>) -> (Raised, impl FnMut() + Send + 'static) {
    let raised = Raised::default();
    let told = raised.clone();
    let look = move || {
        if let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) {
            // By another thread, because this one may hold locks where it waits.
            let backgrounds = backgrounds.clone();
            let end = move || backgrounds.iter().for_each(|background| background.abort("interrupted"));
            let interrupt = Interrupt { error, ending: std::thread::spawn(end) };
            *told.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(interrupt);
        }
    };
    (raised, look)
}
