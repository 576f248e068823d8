//! Waiting as Python expects it: without its lock, and looking for signals.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How long a signal may stay unseen.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Does something that blocks on a thread of its own and waits for it. If a signal's handler raises, `interrupted` is called and
/// that is the result; what was begun ends on its own then.
pub(crate) fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
    interrupted: impl FnOnce(),
) -> PyResult<R> {
    let (tell, mut told) = channel();
    let spawned = std::thread::Builder::new().name("weft waits".to_owned()).spawn(move || tell.send(work()));
    spawned.map_err(|error| PyRuntimeError::new_err(format!("there is no thread to wait on: {error}")))?;
    loop {
        let told = &mut told;
        match py.detach(move || told.recv_timeout(SLICE)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("it panicked; the reason is on standard error"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    interrupted();
                    return Err(raised);
                }
            }
        }
    }
}
