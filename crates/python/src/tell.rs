//! What is done with Python's lock when calls are over, such as calling back: by threads for all communicators, which are made when there is
//! something to do and end before Python does. Workers never take that lock: they would keep the next call waiting for whatever Python does.
//!
//! There is one thread unless what it does takes long: a callback may wait for another call, whose end somebody else has to tell.
//!
//! A thread that still wants Python's lock while Python ends would take the whole process with it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;

/// Something to do with Python's lock.
pub(crate) type Work = Box<dyn FnOnce(Python<'_>) + Send>;

/// More callbacks than this that wait for others at the same time would wait for ever.
const THREADS_MAX: usize = 64;

struct Tellers {
    /// Whose they are, which a forked process is not.
    process: u32,
    queue: VecDeque<Work>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    /// Python ends.
    is_over: bool,
}

static TELLERS: Mutex<Tellers> =
    Mutex::new(Tellers { process: 0, queue: VecDeque::new(), threads: Vec::new(), idle: 0, is_over: false });
static CHANGED: Condvar = Condvar::new();

/// Has functions called.
pub(crate) fn tell(callbacks: Vec<Py<PyAny>>) {
    later(Box::new(|py| call(py, callbacks)));
}

/// Does something later, on a thread that may wait for Python's lock.
pub(crate) fn later(work: Work) {
    let mut tellers = tellers();
    if tellers.is_over {
        return;
    }
    tellers.queue.push_back(work);
    if tellers.idle >= tellers.queue.len() || tellers.threads.len() == THREADS_MAX {
        CHANGED.notify_one();
    } else if let Ok(thread) = std::thread::Builder::new().name("weft tells".to_owned()).spawn(work_off) {
        tellers.threads.push(thread);
    }
}

fn work_off() {
    let mut tellers = tellers();
    loop {
        if let Some(work) = tellers.queue.pop_front() {
            drop(tellers);
            let _ = Python::try_attach(work);
            tellers = self::tellers();
        } else if tellers.is_over {
            return;
        } else {
            tellers.idle += 1;
            tellers = CHANGED.wait(tellers).unwrap_or_else(PoisonError::into_inner);
            tellers.idle -= 1;
        }
    }
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
        let threads = {
            let mut tellers = tellers();
            tellers.is_over = true;
            std::mem::take(&mut tellers.threads)
        };
        CHANGED.notify_all();
        threads.into_iter().for_each(|thread| {
            let _ = thread.join();
        });
    });
}

/// The threads of this process: one that was forked has none of its parent's, and nothing to tell of its calls.
fn tellers() -> MutexGuard<'static, Tellers> {
    let mut tellers = TELLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let here = std::process::id();
    if tellers.process != here {
        let inherited = std::mem::replace(
            &mut *tellers,
            Tellers { process: here, queue: VecDeque::new(), threads: Vec::new(), idle: 0, is_over: false },
        );
        // Neither threads nor Python's objects may be touched here: they are the parent's.
        std::mem::forget(inherited);
    }
    tellers
}
