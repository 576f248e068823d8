//! Functions that are called when calls are over: by one thread for all communicators, which is made when the first is to be called
//! and ends before Python does. A thread that still wants Python's lock while Python ends would take the whole process with it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;

type Callbacks = Vec<Py<PyAny>>;

enum Teller {
    /// Nothing has been told yet.
    None,
    /// The process, which a forked one is not; the way to the thread, and the thread.
    Runs(u32, Sender<Callbacks>, JoinHandle<()>),
    /// Python ends.
    Over,
}

static TELLER: Mutex<Teller> = Mutex::new(Teller::None);

/// Has functions called.
pub(crate) fn tell(callbacks: Callbacks) {
    let mut teller = teller();
    let process = std::process::id();
    if matches!(*teller, Teller::None) || is_of_another(&teller, process) {
        let (sender, receiver) = channel::<Callbacks>();
        let call_all = move || receiver.into_iter().for_each(call);
        let Ok(thread) = std::thread::Builder::new().name("weft tells".to_owned()).spawn(call_all) else {
            return;
        };
        *teller = Teller::Runs(process, sender, thread);
    }
    if let Teller::Runs(_, sender, _) = &*teller {
        let _ = sender.send(callbacks);
    }
}

fn is_of_another(teller: &Teller, process: u32) -> bool {
    matches!(teller, Teller::Runs(there, ..) if *there != process)
}

fn call(callbacks: Callbacks) {
    let _ = Python::try_attach(|py| {
        for callback in callbacks {
            if let Err(error) = callback.call0(py) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        }
    });
}

/// Calls what is to be called, and nothing from then on. For the end of the program.
#[pyfunction]
pub(crate) fn stop_telling(py: Python<'_>) {
    py.detach(|| {
        let before = std::mem::replace(&mut *teller(), Teller::Over);
        if is_of_another(&before, std::process::id()) {
            return;
        }
        if let Teller::Runs(_, sender, thread) = before {
            drop(sender);
            let _ = thread.join();
        }
    });
}

fn teller() -> MutexGuard<'static, Teller> {
    TELLER.lock().unwrap_or_else(PoisonError::into_inner)
}
