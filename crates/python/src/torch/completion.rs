//! The thread that does what is left to do with Python's lock when a call is over. The worker never takes that lock: it would keep the next
//! call waiting for whatever Python is doing.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

/// Something to do with Python's lock.
pub(super) type Work = Box<dyn FnOnce(Python<'_>) + Send>;

/// The process whose thread it is, and the way to it. A process that was forked has no such thread and makes one of its own.
static THREAD: Mutex<Option<(u32, Sender<Work>)>> = Mutex::new(None);

/// Does something later, on a thread that may wait for Python's lock.
pub(super) fn complete(work: Work) {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let here = std::process::id();
    if thread.as_ref().is_none_or(|(process, _)| *process != here) {
        let (sender, receiver) = channel();
        let made = std::thread::Builder::new().name("weft completion".to_owned()).spawn(|| run(receiver));
        // Without a thread, whoever waits hears that the call's end was lost.
        *thread = made.ok().map(|_| (here, sender));
    }
    if let Some((_, sender)) = &*thread {
        let _ = sender.send(work);
    }
}

fn run(receiver: Receiver<Work>) {
    for work in receiver {
        // When Python ends, nobody is left to be told.
        if Python::try_attach(work).is_none() {
            return;
        }
    }
}
