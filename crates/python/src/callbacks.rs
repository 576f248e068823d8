//! Threads that run Python callbacks when calls are done. They serve all communicators, start on demand and end before Python does. Worker
//! threads never take the GIL: the next call would wait for whatever Python does.
//!
//! One thread is enough unless a callback blocks: a callback may wait for another call, whose own callbacks need a thread.
//!
//! A thread that still waits for the GIL while Python finalizes would take down the process.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;

/// Work that needs the GIL.
pub(crate) type Work = Box<dyn FnOnce(Python<'_>) + Send>;

/// If more callbacks than this wait for others at the same time, they wait forever.
const THREADS_MAX: usize = 64;

struct Pool {
    /// The process that owns the threads; a forked process does not.
    process: u32,
    queue: VecDeque<Work>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    /// Python is finalizing.
    is_stopped: bool,
}

impl Pool {
    const fn new(process: u32) -> Self {
        Self { process, queue: VecDeque::new(), threads: Vec::new(), idle: 0, is_stopped: false }
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new(0));
static CHANGED: Condvar = Condvar::new();

/// Queues functions without arguments.
pub(crate) fn queue_callbacks(callbacks: Vec<Py<PyAny>>) {
    queue(Box::new(|py| call(py, callbacks)));
}

/// Queues work for a thread that may wait for the GIL.
pub(crate) fn queue(work: Work) {
    let mut pool = pool();
    if pool.is_stopped {
        return;
    }
    pool.queue.push_back(work);
    if pool.idle >= pool.queue.len() || pool.threads.len() == THREADS_MAX {
        CHANGED.notify_one();
    } else if let Ok(thread) = std::thread::Builder::new().name("weft callbacks".to_owned()).spawn(run) {
        pool.threads.push(thread);
    }
}

fn run() {
    let mut pool = pool();
    loop {
        if let Some(work) = pool.queue.pop_front() {
            drop(pool);
            let _ = Python::try_attach(work);
            pool = self::pool();
        } else if pool.is_stopped {
            return;
        } else {
            pool.idle += 1;
            pool = CHANGED.wait(pool).unwrap_or_else(PoisonError::into_inner);
            pool.idle -= 1;
        }
    }
}

/// Calls functions one after the other. Python prints their exceptions, which nobody can catch.
pub(crate) fn call(py: Python<'_>, callbacks: Vec<Py<PyAny>>) {
    for callback in callbacks {
        if let Err(error) = callback.call0(py) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    }
}

/// Runs the queued callbacks and stops the threads; later callbacks are dropped. For the end of the program.
#[pyfunction]
pub(crate) fn stop_callbacks(py: Python<'_>) {
    py.detach(|| {
        let threads = {
            let mut pool = pool();
            pool.is_stopped = true;
            std::mem::take(&mut pool.threads)
        };
        CHANGED.notify_all();
        threads.into_iter().for_each(|thread| {
            let _ = thread.join();
        });
    });
}

/// The pool of this process. A forked process starts with an empty one: its parent's threads and calls do not exist there.
fn pool() -> MutexGuard<'static, Pool> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let here = std::process::id();
    if pool.process != here {
        let inherited = std::mem::replace(&mut *pool, Pool::new(here));
        // Threads and Python objects of the parent must not be dropped here.
        std::mem::forget(inherited);
    }
    pool
}
