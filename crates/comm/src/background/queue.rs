//! The queue of a background, and its worker.
//!
//! One mutex guards the queue; an idle worker sleeps on its condition variable. The communicator is in the queue while no call
//! runs. The worker takes it for every call. A caller's thread takes it to run a call at once if nothing is queued
//! ([`Inner::borrow`]), or to run queued calls up to one it is about to wait for ([`Inner::help`]): waking the worker, and being
//! woken by it, takes longer than most calls.
//!
//! A second mutex guards the [`AbortHandle`], which aborts the communicator from any thread. It is present while the worker
//! runs. Both mutexes are held for a few instructions only, never while a call runs.
//!
//! A closure that borrows the communicator could replace it by another one. [`Inner::after_call`] compares identities when the closure
//! returns, and aborts both.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use weftlink_bootstrap::{Failure, Reason};
use weftlink_shm::wait::WaitPolicy;

use super::task::{Job, panic_message};
use crate::communicator::{AbortHandle, Communicator};
use crate::error::Error;

/// The number of calls that may be queued.
pub const QUEUE_MAX: usize = 4096;

/// The error of calls whose worker ended by a panic.
pub(super) const GONE: &str = "its worker is gone";

/// The state that a worker shares with its callers.
pub(super) struct Inner {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The communicator's identity.
    identity: u64,
    process: u32,
    queue: Mutex<Queue>,
    changed: Condvar,
    abort_handle: Mutex<Option<AbortHandle>>,
    /// How callers wait that run calls themselves, and how the worker does.
    wait_policies: [WaitPolicy; 2],
}

#[derive(Default)]
struct Queue {
    /// Taken by the thread that runs a call.
    comm: Option<Box<Communicator>>,
    /// That thread.
    runner: Option<ThreadId>,
    /// With their numbers, which are consecutive.
    jobs: VecDeque<(u64, Box<dyn Job>)>,
    submitted: u64,
    /// No more calls will be submitted.
    closing: bool,
    /// The communicator was aborted, and the worker has not recorded that yet.
    aborted: bool,
    failed: Option<Failure>,
}

/// What the worker does next.
enum Next {
    Run(Box<dyn Job>, Box<Communicator>),
    RecordAbort(Box<Communicator>),
    Exit(Box<Communicator>),
}

/// The communicator, for calls on a caller's own thread. Dropping this returns it to the queue.
pub(super) struct Borrowed<'a> {
    inner: &'a Inner,
    comm: Option<Box<Communicator>>,
}

impl Inner {
    pub(super) fn new(mut comm: Communicator) -> Self {
        let wait_policies = [comm.wait_policy(), comm.wait_policy_of_workers()];
        comm.set_wait_policy(wait_policies[1]);
        Self {
            rank: comm.rank(),
            size: comm.size(),
            identity: comm.identity(),
            process: std::process::id(),
            changed: Condvar::new(),
            abort_handle: Mutex::new(Some(comm.abort_handle())),
            wait_policies,
            queue: Mutex::new(Queue { comm: Some(Box::new(comm)), ..Queue::default() }),
        }
    }

    /// Queues a job and returns its number, from 1. A refused job completes with an error before this returns.
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

    /// The communicator, if nothing is queued and no call is running.
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

    /// Runs the next queued call on this thread, if its number is at most `until` and no call is running. Returns whether it did.
    pub(super) fn help(&self, until: u64) -> bool {
        let Some((job, comm)) = self.queue().take_call(until) else { return false };
        Borrowed::new(self, comm).run_job(job);
        true
    }

    /// Aborts the communicator on all ranks, while the worker runs.
    pub(super) fn abort_with(&self, reason: Reason, what: &str) {
        if self.check_process().is_err() {
            return;
        }
        let mut abort_handle = lock(&self.abort_handle);
        let Some(abort_handle) = &mut *abort_handle else { return };
        abort_handle.abort(reason, what);
        self.queue().aborted = true;
        self.changed.notify_one();
    }

    /// Why calls fail from now on, if they do.
    pub(super) fn failure(&self) -> Option<Error> {
        self.check_process().err().or_else(|| {
            let recorded = self.queue().refusal();
            recorded.or_else(|| lock(&self.abort_handle).as_ref()?.failure().as_ref().map(Error::again))
        })
    }

    pub(super) fn abort(&self, reason: &str) {
        self.abort_with(Reason::Ended, &format!("aborted: {reason}"));
    }

    /// Lets the worker exit when it has run all calls.
    pub(super) fn close(&self) {
        if self.check_process().is_ok() {
            self.queue().closing = true;
            self.changed.notify_one();
        }
    }

    /// Refuses calls and waits from within a call: the communicator runs one call at a time.
    pub(super) fn check_not_in_call(&self) -> Result<(), Error> {
        self.check_process()?;
        if self.queue().runner != Some(std::thread::current().id()) {
            return Ok(());
        }
        let what = "a callback or signal handler that runs in a communicator's call cannot wait for a call of the same communicator";
        Err(Error::Misuse(what.to_owned()))
    }

    /// Refuses a forked process, which has no worker. Checked before any lock is taken: its owner may not exist in this process.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        let (here, there) = (std::process::id(), self.process);
        if here == there {
            return Ok(());
        }
        Err(Error::Misuse(format!(
            "the communicator belongs to process {there}, from which process {here} was forked: make a new one in this process"
        )))
    }

    /// Returns the communicator to the queue, and waits for something to do.
    fn next(&self, comm: Option<Box<Communicator>>) -> Next {
        let mut queue = self.queue();
        if let Some(comm) = comm {
            queue.put(comm);
        }
        loop {
            if let Some((job, comm)) = queue.take_call(u64::MAX) {
                return Next::Run(job, comm);
            }
            if (queue.aborted || queue.closing)
                && let Some(comm) = queue.take()
            {
                let was_aborted = std::mem::take(&mut queue.aborted);
                return if was_aborted { Next::RecordAbort(comm) } else { Next::Exit(comm) };
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run_job(&self, job: Box<dyn Job>, comm: &mut Communicator) {
        job.run(comm, &mut |comm| self.after_call(comm));
    }

    /// Records whether the communicator has failed, before the call completes: its waiter may submit the next call at once, which must
    /// be refused then. It is an error if this is another communicator than before the call.
    fn after_call(&self, comm: &mut Communicator) -> Result<(), Error> {
        let is_kept = comm.identity() == self.identity;
        let kept = if is_kept { Ok(()) } else { Err(comm.replaced()) };
        if !is_kept && let Some(mut abort_handle) = lock(&self.abort_handle).take() {
            abort_handle.abort(Reason::Ended, "aborted: another one replaced it");
        }
        self.queue().failed = comm.failure().cloned();
        kept
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl Queue {
    /// The communicator, for this thread, unless another thread has it.
    fn take(&mut self) -> Option<Box<Communicator>> {
        let comm = self.comm.take()?;
        self.runner = Some(std::thread::current().id());
        Some(comm)
    }

    /// The next call, if its number is at most `until`, and the communicator to run it with.
    fn take_call(&mut self, until: u64) -> Option<(Box<dyn Job>, Box<Communicator>)> {
        self.comm.as_ref()?;
        let (_, job) = self.jobs.pop_front_if(|(number, _)| *number <= until)?;
        Some((job, self.take()?))
    }

    fn put(&mut self, comm: Box<Communicator>) {
        (self.comm, self.runner) = (Some(comm), None);
    }

    /// Why calls are refused, if they are.
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
        comm.set_wait_policy(inner.wait_policies[0]);
        Self { inner, comm: Some(comm) }
    }

    /// Runs a queued call.
    fn run_job(&mut self, job: Box<dyn Job>) {
        if let Some(comm) = &mut self.comm {
            self.inner.run_job(job, comm);
        }
    }

    /// Runs a call.
    pub(super) fn run(
        &mut self,
        call: impl FnOnce(&mut Communicator) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(comm) = &mut self.comm else { return Ok(()) };
        let ran = catch_unwind(AssertUnwindSafe(|| call(comm)));
        ran.unwrap_or_else(|panic| Err(comm.panicked(panic_message(&*panic))))
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let Some(mut comm) = self.comm.take() else { return };
        comm.set_wait_policy(self.inner.wait_policies[1]);
        let mut queue = self.inner.queue();
        if let Some(failure) = comm.failure() {
            queue.failed.get_or_insert_with(|| failure.clone());
        }
        queue.put(comm);
        let awaited = !queue.jobs.is_empty() || queue.aborted || queue.closing;
        drop(queue);
        if awaited {
            self.inner.changed.notify_one();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked process leaves the rank's connections alone.
        if self.check_process().is_err() {
            let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
            // Nor does it complete calls, which takes locks that threads of the other process may have held.
            std::mem::forget(std::mem::take(queue));
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

/// No code of the caller's runs while a lock is held, so a poisoned lock guards consistent data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs calls until the background is closed, and returns the communicator.
pub(super) fn work(inner: &Inner) -> Communicator {
    // Also after a panic, no caller may be left waiting.
    let _exit = Exit(inner);
    let mut back = None;
    loop {
        back = match inner.next(back.take()) {
            Next::Run(job, mut comm) => {
                let usual = inner.wait_policies[1];
                comm.set_wait_policy(if job.yields_core() {
                    WaitPolicy::crowded(usual.timeout)
                } else {
                    usual
                });
                inner.run_job(job, &mut comm);
                Some(comm)
            }
            Next::RecordAbort(mut comm) => {
                comm.fail_if_aborted();
                inner.queue().failed = comm.failure().cloned();
                Some(comm)
            }
            Next::Exit(mut comm) => {
                comm.set_wait_policy(inner.wait_policies[0]);
                return *comm;
            }
        }
    }
}

/// Refuses the calls that are left when the worker exits.
struct Exit<'a>(&'a Inner);

impl Drop for Exit<'_> {
    fn drop(&mut self) {
        *lock(&self.0.abort_handle) = None;
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
