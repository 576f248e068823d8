//! The queue of a worker, and the worker.
//!
//! One mutex guards the queue; the worker sleeps on its condition variable when there is nothing to do. The communicator lies
//! in the queue while no call is made. The worker takes it for every call; so does a caller who wants to make a call at once, on
//! its own thread, if nothing is queued before it ([`Inner::borrow`]), and one who waits for a call that nobody has begun
//! ([`Inner::help`]): waking the worker, and being woken by it, takes longer than most calls.
//!
//! Another mutex guards the [`Ender`], which ends the communicator from any thread: it is there as long as the communicator
//! is here, and taken away when the worker gives it up. Both are held for a few instructions only, never while a call is made.
//!
//! Closures are lent the communicator by a mutable reference, so they can put another one in its place. That is found out when
//! they return, by the communicator's identity, and ends both ([`Inner::noted`]).

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use weftlink_bootstrap::{Failure, Reason};
use weftlink_shm::wait::WaitPolicy;

use super::task::{Job, said};
use crate::communicator::{Communicator, Ender};
use crate::error::Error;

/// How many calls may wait for the worker of a communicator.
pub const QUEUE_MAX: usize = 4096;

/// What is said when a worker ended by a panic that nobody could catch.
pub(super) const GONE: &str = "its worker is gone";

/// What a worker shares with those who submit to it.
pub(super) struct Inner {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Of the communicator that it was made of.
    identity: u64,
    process: u32,
    queue: Mutex<Queue>,
    changed: Condvar,
    ender: Mutex<Option<Ender>>,
    /// How callers wait that make their calls themselves, and how the worker does.
    patience: [WaitPolicy; 2],
}

#[derive(Default)]
struct Queue {
    /// Whoever makes a call has it.
    comm: Option<Box<Communicator>>,
    /// Who that is.
    maker: Option<ThreadId>,
    /// With their numbers, which follow each other.
    jobs: VecDeque<(u64, Box<dyn Job>)>,
    submitted: u64,
    /// Nothing more will come.
    closing: bool,
    /// The communicator has been ended from here, which the worker has not looked at.
    ended: bool,
    failed: Option<Failure>,
}

/// What the worker does next, and with what.
enum Next {
    Make(Box<dyn Job>, Box<Communicator>),
    LetGo(Box<Communicator>),
    Leave(Box<Communicator>),
}

/// The communicator, for calls on a caller's own thread. It goes back when this is dropped.
pub(super) struct Borrowed<'a> {
    inner: &'a Inner,
    comm: Option<Box<Communicator>>,
}

impl Inner {
    pub(super) fn new(mut comm: Communicator) -> Self {
        let patience = [comm.patience(), comm.wait_policy_of_workers()];
        comm.set_wait_policy(patience[1]);
        Self {
            rank: comm.rank(),
            size: comm.size(),
            identity: comm.identity(),
            process: std::process::id(),
            changed: Condvar::new(),
            ender: Mutex::new(Some(comm.ender())),
            patience,
            queue: Mutex::new(Queue { comm: Some(Box::new(comm)), ..Queue::default() }),
        }
    }

    /// Queues a job and gives its number, from 1. A job that is not taken is told why before this returns.
    pub(super) fn submit(&self, job: Box<dyn Job>) -> u64 {
        if let Err(error) = self.check_process() {
            job.refuse(error);
            return 0;
        }
        let mut queue = self.queue();
        let full = || (queue.jobs.len() >= QUEUE_MAX).then_some(Error::QueueFull { limit: QUEUE_MAX });
        if let Some(error) = queue.refusal().or_else(full) {
            drop(queue);
            job.refuse(error);
            return 0;
        }
        queue.submitted += 1;
        let number = queue.submitted;
        queue.jobs.push_back((number, job));
        drop(queue);
        self.changed.notify_one();
        number
    }

    /// The communicator, if nothing is queued and no call is being made.
    pub(super) fn borrow(&self) -> Result<Option<Borrowed<'_>>, Error> {
        self.check_not_in_call()?;
        let mut queue = self.queue();
        if let Some(error) = queue.refusal() {
            return Err(error);
        }
        if !queue.jobs.is_empty() {
            return Ok(None);
        }
        let Some(comm) = queue.take() else { return Ok(None) };
        queue.submitted += 1;
        drop(queue);
        Ok(Some(Borrowed::new(self, comm)))
    }

    /// Makes the next call on this thread, if it is none after that of a number and nobody else makes one: whether it did.
    pub(super) fn help(&self, until: u64) -> bool {
        let Some((job, comm)) = self.queue().take_call(until) else { return false };
        Borrowed::new(self, comm).make_job(job);
        true
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

    pub(super) fn abort(&self, reason: &str) {
        self.end(Reason::Ended, &format!("aborted: {reason}"));
    }

    /// Lets the worker leave when it has made all calls.
    pub(super) fn close(&self) {
        if self.check_process().is_ok() {
            self.queue().closing = true;
            self.changed.notify_one();
        }
    }

    /// What runs in a call cannot make another, nor wait for one: the communicator has a call at a time.
    pub(super) fn check_not_in_call(&self) -> Result<(), Error> {
        self.check_process()?;
        if self.queue().maker != Some(std::thread::current().id()) {
            return Ok(());
        }
        let what = "what runs in a communicator's call, a callback or a signal's handler, cannot wait for a call of the same communicator";
        Err(Error::Misuse(what.to_owned()))
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

    /// Waits for something to do. The communicator goes back first, so that callers find it.
    fn next(&self, comm: Option<Box<Communicator>>) -> Next {
        let mut queue = self.queue();
        if let Some(comm) = comm {
            queue.put(comm);
        }
        loop {
            if let Some((job, comm)) = queue.take_call(u64::MAX) {
                return Next::Make(job, comm);
            }
            if (queue.ended || queue.closing)
                && let Some(comm) = queue.take()
            {
                let was_ended = std::mem::take(&mut queue.ended);
                return if was_ended { Next::LetGo(comm) } else { Next::Leave(comm) };
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn make(&self, job: Box<dyn Job>, comm: &mut Communicator) {
        job.make(comm, &mut |comm| self.noted(comm));
    }

    /// Notes what has become of the communicator when a call is over, before anybody learns of that: whoever does may submit the next
    /// call, which must be refused if it cannot be made. It is an error if this is another communicator than before the call.
    fn noted(&self, comm: &mut Communicator) -> Result<(), Error> {
        let is_kept = comm.identity() == self.identity;
        let kept = if is_kept { Ok(()) } else { Err(comm.replaced()) };
        if !is_kept && let Some(mut ender) = lock(&self.ender).take() {
            ender.end(Reason::Ended, "aborted: another one replaced it");
        }
        self.queue().failed = comm.failure().cloned();
        kept
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl Queue {
    /// The communicator, for this thread, unless somebody has it.
    fn take(&mut self) -> Option<Box<Communicator>> {
        let comm = self.comm.take()?;
        self.maker = Some(std::thread::current().id());
        Some(comm)
    }

    /// The next call, if it is none after that of a number, and the communicator to make it with.
    fn take_call(&mut self, until: u64) -> Option<(Box<dyn Job>, Box<Communicator>)> {
        self.comm.as_ref()?;
        let (_, job) = self.jobs.pop_front_if(|(number, _)| *number <= until)?;
        Some((job, self.take()?))
    }

    fn put(&mut self, comm: Box<Communicator>) {
        (self.comm, self.maker) = (Some(comm), None);
    }

    /// Why no call is taken, if that is so.
    fn refusal(&self) -> Option<Error> {
        match &self.failed {
            Some(failure) => Some(Error::again(failure)),
            None if self.closing => Some(Error::gone("it has been closed")),
            None => None,
        }
    }
}

impl<'a> Borrowed<'a> {
    fn new(inner: &'a Inner, mut comm: Box<Communicator>) -> Self {
        comm.set_wait_policy(inner.patience[0]);
        Self { inner, comm: Some(comm) }
    }

    /// Makes a call that was queued.
    fn make_job(&mut self, job: Box<dyn Job>) {
        if let Some(comm) = &mut self.comm {
            self.inner.make(job, comm);
        }
    }

    /// Makes a call.
    pub(super) fn make(
        &mut self,
        call: impl FnOnce(&mut Communicator) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(comm) = &mut self.comm else { return Ok(()) };
        let ran = catch_unwind(AssertUnwindSafe(|| call(comm)));
        ran.unwrap_or_else(|panic| Err(comm.panicked(said(&*panic))))
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let Some(mut comm) = self.comm.take() else { return };
        comm.set_wait_policy(self.inner.patience[1]);
        let mut queue = self.inner.queue();
        if let Some(failure) = comm.failure() {
            queue.failed.get_or_insert_with(|| failure.clone());
        }
        queue.put(comm);
        let awaited = !queue.jobs.is_empty() || queue.ended || queue.closing;
        drop(queue);
        if awaited {
            self.inner.changed.notify_one();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A process that was forked leaves the rank's connections alone.
        if self.check_process().is_err() {
            let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
            // Nor does it tell anybody the end of a call, which takes locks that threads of the other process may have held.
            std::mem::forget(std::mem::take(queue));
        }
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
pub(super) fn work(inner: &Inner) -> Communicator {
    // However this ends: the communicator may be gone soon, and nobody may be left waiting.
    let _leaving = Leaving(inner);
    let mut back = None;
    loop {
        back = match inner.next(back.take()) {
            Next::Make(job, mut comm) => {
                let usual = inner.patience[1];
                comm.set_wait_policy(if job.makes_way() {
                    WaitPolicy::crowded(usual.timeout)
                } else {
                    usual
                });
                inner.make(job, &mut comm);
                Some(comm)
            }
            Next::LetGo(mut comm) => {
                comm.let_go();
                inner.queue().failed = comm.failure().cloned();
                Some(comm)
            }
            Next::Leave(mut comm) => {
                comm.set_wait_policy(inner.patience[0]);
                return *comm;
            }
        }
    }
}

struct Leaving<'a>(&'a Inner);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        *lock(&self.0.ender) = None;
        let mut queue = self.0.queue();
        if !queue.closing {
            queue.failed.get_or_insert_with(|| Failure::plain(GONE));
        }
        queue.closing = true;
        let left = std::mem::take(&mut queue.jobs);
        drop(queue);
        left.into_iter().for_each(|(_, job)| job.refuse(Error::gone(GONE)));
    }
}
