//! Communicators.
//!
//! A communicator is *starting* while its ranks meet, then *open*, and *failed* or *closed* at the end. Functions that need it open wait while it
//! starts if it is blocking, and say `ncclInProgress` otherwise.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use weftlink::bootstrap::Bootstrap;
use weftlink::cuda::{Aborter, AddressedRank, Memory};
use weftlink::{Background, Communicator, Endpoint, Reduction};

use crate::abi::ResultCode;
use crate::config::Config;
use crate::failure::Failure;
use crate::lock::lock;
use crate::log;
use crate::operations::Factors;
use crate::settings::knobs;

/// A communicator, as a pointer of the program means it.
pub(crate) struct Comm {
    pub(crate) config: Config,
    /// The process that made it. Its children have no threads of it.
    pub(crate) process: u32,
    /// The GPU that was current where it was made.
    pub(crate) device: Option<usize>,
    state: Mutex<State>,
    changed: Condvar,
    /// Work that functions have started and not waited for.
    unfinished: AtomicUsize,
    /// The thread whose group starts it.
    queued_by: Mutex<Option<ThreadId>>,
    is_revoked: AtomicBool,
    pub(crate) factors: Factors,
    /// The buffers that the program has registered.
    pub(crate) registrations: Handles,
    /// Its windows.
    pub(crate) windows: Handles,
}

/// Addresses that the program has registered, by handles that are used once.
#[derive(Default)]
pub(crate) struct Handles {
    made: Mutex<(usize, HashMap<usize, usize>)>,
}

impl Handles {
    pub(crate) fn add(&self, address: usize) -> usize {
        let (last, made) = &mut *lock(&self.made);
        *last += 1;
        made.insert(*last, address);
        *last
    }

    pub(crate) fn get(&self, handle: usize) -> Option<usize> {
        lock(&self.made).1.get(&handle).copied()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<usize> {
        lock(&self.made).1.remove(&handle)
    }
}

enum State {
    Starting,
    Open(Arc<Open>),
    Failed(Failure),
    /// Waits for the calls of this rank, to leave.
    Closing(Arc<Open>),
    /// Finalized, and not yet destroyed.
    Closed,
}

/// A communicator whose ranks have met.
pub(crate) struct Open {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) spans_hosts: bool,
    /// How long calls wait for other ranks.
    pub(crate) timeout: Duration,
    /// Of calls on host memory. Taken out when it is closed or shrunk.
    background: Mutex<Option<Background>>,
    /// Of messages on host memory.
    pub(crate) endpoint: Endpoint,
    /// The rank on a GPU: from the start if all ranks have one, otherwise from the first call on memory of a GPU.
    pub(crate) gpu: Mutex<Option<AddressedRank>>,
    aborter: Mutex<Option<Aborter>>,
    /// The first error of a call that ended the communicator.
    failed: Mutex<Option<Failure>>,
}

impl Comm {
    /// A communicator whose ranks have not met yet.
    pub(crate) fn starting(config: Config, device: Option<usize>) -> Arc<Comm> {
        Arc::new(Comm {
            config,
            process: std::process::id(),
            device,
            state: Mutex::new(State::Starting),
            changed: Condvar::new(),
            unfinished: AtomicUsize::new(0),
            queued_by: Mutex::new(None),
            is_revoked: AtomicBool::new(false),
            factors: Factors::default(),
            registrations: Handles::default(),
            windows: Handles::default(),
        })
    }

    /// A group of this thread starts it at its end.
    pub(crate) fn queued(&self) {
        *lock(&self.queued_by) = Some(std::thread::current().id());
    }

    /// The ranks have met, or not.
    pub(crate) fn started(&self, ended: Result<Option<Open>, Failure>) -> Result<(), Failure> {
        let mut state = self.state();
        let result = match &*state {
            State::Starting => ended.as_ref().map(|_| ()).map_err(Clone::clone),
            // It was aborted or destroyed meanwhile.
            State::Failed(failure) => Err(failure.clone()),
            _ => Ok(()),
        };
        if let State::Starting = *state {
            *state = match ended {
                Ok(Some(open)) => State::Open(Arc::new(open)),
                Ok(None) => State::Closed,
                Err(failure) => State::Failed(failure),
            };
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    /// The open communicator. Waits until it has started if it is blocking, and refuses calls before that otherwise.
    pub(crate) fn open(&self) -> Result<Arc<Open>, Failure> {
        let is_of_this_group = || *lock(&self.queued_by) == Some(std::thread::current().id());
        let mut state = self.state();
        loop {
            match &*state {
                State::Open(open) => return Ok(Arc::clone(open)),
                State::Failed(failure) => return Err(failure.clone()),
                State::Closing(_) | State::Closed => {
                    return Err(Failure::usage("the communicator is finalized"));
                }
                State::Starting if !self.config.blocking => {
                    let text = "the communicator has not started: call ncclCommGetAsyncError until it is no longer ncclInProgress";
                    return Err(Failure::argument(text));
                }
                State::Starting if is_of_this_group() => {
                    return Err(Failure::usage("the communicator starts when this group ends: end it first"));
                }
                State::Starting => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Refuses a communicator that does not block and has not started. One that blocks may start in the same group.
    pub(crate) fn check_started(&self) -> Result<(), Failure> {
        if self.config.blocking { Ok(()) } else { self.open().map(drop) }
    }

    /// What `ncclCommGetAsyncError` says.
    pub(crate) fn status(&self) -> ResultCode {
        let open = match &*self.state() {
            State::Starting => return ResultCode::InProgress,
            State::Failed(failure) => return failure.code,
            State::Closing(_) | State::Closed => None,
            State::Open(open) => Some(Arc::clone(open)),
        };
        match open.filter(|_| !self.is_revoked.load(Ordering::Acquire)).and_then(|open| open.failure()) {
            Some(failure) => failure.code,
            None if self.unfinished.load(Ordering::Acquire) > 0 => ResultCode::InProgress,
            None => ResultCode::Success,
        }
    }

    /// The sentence of its error, if it has one.
    pub(crate) fn error_text(&self) -> Option<String> {
        let open = match &*self.state() {
            State::Failed(failure) => return Some(failure.text.clone()),
            State::Open(open) => Arc::clone(open),
            State::Starting | State::Closing(_) | State::Closed => return None,
        };
        open.failure().map(|failure| failure.text)
    }

    /// Counts work that runs behind the program's back.
    fn begin(&self) {
        self.unfinished.fetch_add(1, Ordering::AcqRel);
    }

    /// It is done.
    fn end(&self, ended: Result<(), Failure>) {
        let mut state = self.state();
        match (ended, &*state) {
            (Err(failure), State::Open(open)) => {
                open.record(&failure);
            }
            (Err(failure), State::Closing(_) | State::Closed) => *state = State::Failed(failure),
            _ => {}
        }
        // Under the lock: a thread that settles looks at it there.
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for work that runs behind the program's back.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        while self.unfinished.load(Ordering::Acquire) > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all calls, of the other ranks too, and refuses later ones with this error.
    pub(crate) fn abort(&self, failure: Failure) {
        let open = match std::mem::replace(&mut *self.state(), State::Failed(failure.clone())) {
            State::Open(open) | State::Closing(open) => Some(open),
            _ => None,
        };
        self.changed.notify_all();
        if let Some(open) = open {
            open.abort(&failure.text);
        }
        // The program may free its buffers next.
        self.settle();
    }

    /// Ends all calls, of the other ranks too, and refuses later ones. It can be shrunk.
    pub(crate) fn revoke(&self, failure: Failure) -> Result<(), Failure> {
        let open = self.open()?;
        self.is_revoked.store(true, Ordering::Release);
        open.record(&failure);
        open.abort(&failure.text);
        Ok(())
    }

    /// Waits for this rank's calls, and leaves. No function uses it any more.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let open = {
            let mut state = self.state();
            match &*state {
                State::Open(open) => {
                    let open = Arc::clone(open);
                    *state = State::Closing(Arc::clone(&open));
                    open
                }
                State::Starting => {
                    *state = State::Closed;
                    return Ok(());
                }
                _ => return Ok(()),
            }
        };
        let left = open.leave();
        let mut state = self.state();
        if let State::Closing(_) = *state {
            *state = State::Closed;
        }
        left
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Work of communicators that runs behind the program's back. It ends also if its thread cannot be started, or panics.
pub(crate) struct Unfinished(Vec<Arc<Comm>>);

impl Unfinished {
    pub(crate) fn new(comms: Vec<Arc<Comm>>) -> Unfinished {
        comms.iter().for_each(|comm| comm.begin());
        Unfinished(comms)
    }

    pub(crate) fn end(mut self, ended: &Result<(), Failure>) {
        std::mem::take(&mut self.0).iter().for_each(|comm| comm.end(ended.clone()));
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let lost = || Failure::system("the thread of a call could not be started, or panicked");
        self.0.iter().for_each(|comm| comm.end(Err(lost())));
    }
}

impl Open {
    /// Opens what a communicator needs. All ranks call it.
    pub(crate) fn new(mut comm: Communicator, device: Option<usize>) -> Result<Open, Failure> {
        let (rank, size) = (comm.rank(), comm.size());
        let endpoint = comm.endpoint()?;
        let mut have_gpu = [u32::from(device.is_some())];
        comm.all_reduce(&mut have_gpu, Reduction::Minimum)?;
        let spans_hosts = comm.spans_hosts();
        let joined = match device {
            Some(device) if have_gpu == [1] && !spans_hosts => Some((comm.duplicate_group()?, device)),
            _ => None,
        };
        let timeout = comm.options().deadline;
        let open = Open {
            rank,
            size,
            spans_hosts,
            timeout,
            background: Mutex::new(Some(comm.into_background()?)),
            endpoint,
            gpu: Mutex::new(None),
            aborter: Mutex::new(None),
            failed: Mutex::new(None),
        };
        if let Some((group, device)) = joined {
            *lock(&open.gpu) = Some(open.joined(group, device, timeout)?);
        }
        Ok(open)
    }

    /// Joins the ranks on GPUs. All ranks call it.
    pub(crate) fn joined(
        &self,
        group: Bootstrap,
        device: usize,
        timeout: Duration,
    ) -> Result<AddressedRank, Failure> {
        let settings = knobs().map_err(|error| Failure::argument(error.to_string()))?;
        let memory = if settings.peer_access { Memory::Device } else { Memory::Host };
        let mut rank = AddressedRank::with_memory(group, device, memory, timeout)?;
        // Later, only some ranks may have messages.
        rank.enable_messages()?;
        *lock(&self.aborter) = Some(rank.collectives().aborter());
        let shared =
            if rank.collectives().shares_context() { ", which other ranks of the process share" } else { "" };
        log::info(Some(device), &format!("rank {} of {} is on GPU {device}{shared}", self.rank, self.size));
        Ok(rank)
    }

    /// What runs calls on host memory.
    pub(crate) fn background(&self) -> Result<Background, Failure> {
        let closed = || Failure::usage("the communicator is closed");
        lock(&self.background).clone().ok_or_else(closed)
    }

    /// The communicator itself, for good, once no other thread is in a call of it.
    pub(crate) fn take(&self) -> Result<Communicator, Failure> {
        let gpu = lock(&self.gpu).take();
        drop(gpu);
        let closed = || Failure::usage("the communicator is closed");
        let background = lock(&self.background).take().ok_or_else(closed)?;
        // Threads whose calls are ending have it, too.
        let since = Instant::now();
        while background.has_other_users() && since.elapsed() < self.timeout {
            std::thread::sleep(AGAIN);
        }
        Ok(background.close()?)
    }

    /// Why calls fail from now on, if that is known without a call of the driver.
    pub(crate) fn known_failure(&self) -> Option<Failure> {
        let recorded = lock(&self.failed).clone();
        recorded.or_else(|| lock(&self.background).as_ref().and_then(Background::failure).map(Failure::from))
    }

    /// Why calls fail from now on, if they do. Waits for no call.
    pub(crate) fn failure(&self) -> Option<Failure> {
        // A thread that loads a plan has the rank.
        let on_gpu = || match self.gpu.try_lock() {
            Ok(gpu) => gpu.as_ref()?.collectives().check().err().map(Failure::from),
            Err(_) => {
                let text = lock(&self.aborter).as_ref()?.failure()?;
                Some(Failure { code: ResultCode::RemoteError, text })
            }
        };
        let failure = self.known_failure().or_else(on_gpu)?;
        self.record(&failure);
        Some(failure)
    }

    /// Remembers an error that ended the communicator. Wrong arguments do not.
    /// Returns whether it is one.
    pub(crate) fn record(&self, failure: &Failure) -> bool {
        use ResultCode::{InProgress, InvalidArgument};
        let is_final = ![InvalidArgument, InProgress].contains(&failure.code);
        if is_final {
            lock(&self.failed).get_or_insert_with(|| failure.clone());
        }
        is_final
    }

    /// Ends all calls, of the other ranks too.
    pub(crate) fn abort(&self, why: &str) {
        if let Some(background) = &*lock(&self.background) {
            background.abort(why);
        }
        if let Some(aborter) = &*lock(&self.aborter) {
            aborter.abort();
        }
    }

    /// Waits for this rank's calls, and leaves.
    pub(crate) fn leave(&self) -> Result<(), Failure> {
        let gpu = lock(&self.gpu).take();
        let left = gpu.as_ref().map_or(Ok(()), |gpu| {
            let left = gpu.collectives().leave();
            gpu.collectives().await_ends();
            left
        });
        drop(gpu);
        self.endpoint.flush(FLUSH);
        // The process may end next: the others must have heard by then that this rank has left, and not died. A thread that is still in a call keeps it.
        let background = lock(&self.background).take();
        drop(background.map(Background::close));
        Ok(left?)
    }
}

/// How long a rank that leaves waits for the messages that it has sent.
const FLUSH: Duration = Duration::from_secs(1);
/// How often a thread that takes a communicator looks whether others have it.
const AGAIN: Duration = Duration::from_millis(1);
