//! The queue of a worker, and the worker.
//!
//! One mutex guards the queue; the worker sleeps on its condition variable when there is nothing to do. Another guards the
//! [`Ender`], which points into memory of the communicator: it is there as long as the worker has the communicator, and taken
//! away before the worker gives it up. Both are held for a few instructions only, never while a call is made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use super::task::Job;
use crate::communicator::{Communicator, Ender};
use crate::error::Error;
use crate::failure::Reason;

/// How many calls may wait for the worker of a communicator.
pub const QUEUE_MAX: usize = 4096;

/// What is said when a worker ended by a panic that nobody could catch.
pub(super) const GONE: &str = "its worker is gone";

/// What a worker shares with those who submit to it.
pub(super) struct Inner {
    pub(super) rank: usize,
    pub(super) size: usize,
    process: u32,
    worker: OnceLock<ThreadId>,
    queue: Mutex<Queue>,
    changed: Condvar,
    ender: Mutex<Option<Ender>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<dyn Job>>,
    submitted: u64,
    /// Nothing more will come.
    closing: bool,
    /// The communicator has been ended from here, which the worker has not looked at.
    ended: bool,
    failed: Option<String>,
}

/// What the worker does next.
enum Next {
    Make(Box<dyn Job>),
    LetGo,
    Leave,
}

impl Inner {
    pub(super) fn new(comm: &Communicator) -> Self {
        Self {
            rank: comm.rank(),
            size: comm.size(),
            process: std::process::id(),
            worker: OnceLock::new(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            ender: Mutex::new(Some(comm.ender())),
        }
    }

    /// Queues a job and gives its number, from 1. A job that is not taken is told why before this returns.
    pub(super) fn submit(&self, job: Box<dyn Job>) -> u64 {
        if let Err(error) = self.check_process() {
            job.refuse(error);
            return 0;
        }
        let mut queue = self.queue();
        let refused = match &queue.failed {
            Some(why) => Some(Error::Failed(why.clone())),
            None if queue.closing => Some(Error::Failed("it has been closed".to_owned())),
            None if queue.jobs.len() >= QUEUE_MAX => Some(Error::QueueFull { limit: QUEUE_MAX }),
            None => None,
        };
        if let Some(error) = refused {
            drop(queue);
            job.refuse(error);
            return 0;
        }
        queue.submitted += 1;
        let number = queue.submitted;
        queue.jobs.push_back(job);
        drop(queue);
        self.changed.notify_one();
        number
    }

    /// Ends the communicator for all ranks, if it is still there.
    pub(super) fn end(&self, reason: Reason, what: &str) {
        if self.check_process().is_err() {
            return;
        }
        let mut ender = lock(&self.ender);
        let Some(ender) = &mut *ender else { return };
        ender.end(reason, what);
        self.queue().ended = true;
        self.changed.notify_one();
    }

    /// Lets the worker leave when it has made all calls.
    pub(super) fn close(&self) {
        if self.check_process().is_ok() {
            self.queue().closing = true;
            self.changed.notify_one();
        }
    }

    /// Whether this is the worker's own thread, which must not wait for itself.
    pub(super) fn is_worker(&self) -> bool {
        self.worker.get() == Some(&std::thread::current().id())
    }

    /// Whether there is a worker at all. Looked at before any lock is taken: who held it may not be in this process.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        let (here, there) = (std::process::id(), self.process);
        if here == there {
            return Ok(());
        }
        Err(Error::Misuse(format!(
            "the communicator belongs to process {there}, from which process {here} was forked: make one of its own here"
        )))
    }

    fn next(&self) -> Next {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Next::Make(job);
            }
            if std::mem::take(&mut queue.ended) {
                return Next::LetGo;
            }
            if queue.closing {
                return Next::Leave;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

/// Nothing of the caller's is called while a lock is held, so no panic leaves something half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes calls until there are no more, and gives the communicator back.
pub(super) fn work(mut comm: Communicator, inner: &Inner) -> Communicator {
    let _ = inner.worker.set(std::thread::current().id());
    // However this ends: the communicator may be gone soon, and nobody may be left waiting.
    let _leaving = Leaving(inner);
    loop {
        match inner.next() {
            Next::Make(job) => {
                // Those who learn that a call failed may submit the next, and must find that it is of no use.
                job.make(&mut comm, &mut |comm| inner.queue().failed = comm.failure().map(str::to_owned));
            }
            Next::LetGo => {
                comm.let_go();
                inner.queue().failed = comm.failure().map(str::to_owned);
            }
            Next::Leave => return comm,
        }
    }
}

struct Leaving<'a>(&'a Inner);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        *lock(&self.0.ender) = None;
        let mut queue = self.0.queue();
        if !queue.closing {
            queue.failed.get_or_insert_with(|| GONE.to_owned());
        }
        queue.closing = true;
        let left = std::mem::take(&mut queue.jobs);
        drop(queue);
        left.into_iter().for_each(|job| job.refuse(Error::Failed(GONE.to_owned())));
    }
}
