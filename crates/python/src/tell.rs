//! What is done with Python's lock when calls are over, such as calling back: by one thread for all communicators, which is made when there is
//! something to do and ends before Python does. Workers never take that lock: they would keep the next call waiting for whatever Python does.
//!
//! A thread that still wants Python's lock while Python ends would take the whole process with it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;

/// Something to do with Python's lock.
pub(crate) type Work = Box<dyn FnOnce(Python<'_>) + Send>;

enum Teller {
    /// Nothing has been told yet.
    None,
    /// The process, which a forked one is not; the way to the thread, and the thread.
    Runs(u32, Sender<Work>, JoinHandle<()>),
    /// Python ends.
    Over,
}

static TELLER: Mutex<Teller> = Mutex::new(Teller::None);

/// Has functions called.
pub(crate) fn tell(callbacks: Vec<Py<PyAny>>) {
    later(Box::new(|py| call(py, callbacks)));
}

/// Does something later, on a thread that may wait for Python's lock.
pub(crate) fn later(work: Work) {
    let mut teller = teller();
    let process = std::process::id();
    if matches!(*teller, Teller::None) || is_of_another(&teller, process) {
        let (sender, receiver) = channel::<Work>();
        let do_all = move || {
            receiver.into_iter().for_each(|work| {
                let _ = Python::try_attach(work);
            });
        };
        let Ok(thread) = std::thread::Builder::new().name("weft tells".to_owned()).spawn(do_all) else {
            return;
        };
        *teller = Teller::Runs(process, sender, thread);
    }
    if let Teller::Runs(_, sender, _) = &*teller {
        let _ = sender.send(work);
    }
}

fn is_of_another(teller: &Teller, process: u32) -> bool {
    matches!(teller, Teller::Runs(there, ..) if *there != process)
}

/// Calls functions one after the other. What they raise is nobody's to catch.
pub(crate) fn call(py: Python<'_>, callbacks: Vec<Py<PyAny>>) {
    for callback in callbacks {
        if let Err(error) = callback.call0(py) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    }
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
