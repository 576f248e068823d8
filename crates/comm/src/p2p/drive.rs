//! Who gives a endpoint its turns: threads that wait for a message of their own, or else a thread of the endpoint's.
//!
//! A thread in a blocking call *drives*: it gives turns until its own message is over, and with each turn all others get on. When
//! none does and there are messages that nobody waits for, or that are over for this rank but not yet on their way to another host,
//! the endpoint's thread drives. It is started when it is first needed, rests on a condition variable while there is nothing for it to do,
//! and ends when the endpoint is dropped and nothing is left.
//!
//! Most of who begins a message that nobody waits for does so a moment before waiting for it. To wake the endpoint's thread for each
//! would cost more than the message, and on few cores stop the very rank that it comes from. So a thread that was woken for nothing
//! *naps*: it is not woken, but looks by itself now and then whether there is something to do and nobody has driven since.
//!
//! Whoever drives spins, yields and sleeps as every wait does ([`weftlink_shm::wait`]). It sleeps on the rank's bell, which is
//! rung by ranks that have sent it something or made room, and by its own threads.
//!
//! Nothing of the caller's is called under the lock.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use weftlink_bootstrap::generation;
use weftlink_shm::limits;
use weftlink_shm::line::Poll;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{Park, Waiter};

use super::ring::Bell;
use super::state::State;
use super::wire::PARTING_LIMIT;
use crate::affinity;
use crate::error::Error;

/// How often it is looked after messages that may have no hope.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// How long a nap is, and how many there are in a row while nobody drives.
const NAP: Duration = Duration::from_micros(250);
const NAPS_MAX: usize = 40;

/// What all clones of a endpoint share, and its thread.
pub(super) struct Inner {
    shared: Mutex<Shared>,
    /// Threads that want the lock, to whom a thread that only looks again makes way.
    wanted: AtomicUsize,
    /// Tells the endpoint's thread that there is something for it to do.
    changed: Condvar,
    process: u32,
    generation: u32,
    rank: u32,
    bell: Bell,
    /// What tells that something came from another host, if there are others.
    watched: Option<Arc<OwnedFd>>,
    /// How threads in blocking calls wait, and how the endpoint's thread does.
    waiter: Waiter<'static>,
    thread_waiter: Waiter<'static>,
    /// Unmapped last: all lines are in them.
    _memory: [Arc<SharedMemory>; 2],
}

struct Shared {
    state: State,
    /// Threads in blocking calls, and how often there has been one.
    drivers: usize,
    driven: u64,
    has_thread: bool,
    is_resting: bool,
    /// All clones are gone.
    closing: bool,
    looked_after: Instant,
}

impl Inner {
    pub(super) fn new(
        state: State,
        bell: Bell,
        waiters: [Waiter<'static>; 2],
        memory: [Arc<SharedMemory>; 2],
    ) -> Inner {
        // Messages have limits of their own.
        let [waiter, thread_waiter] =
            waiters.map(|waiter| waiter.within(Duration::MAX).counted_by(bell.asleep));
        let watched = state.wires.as_ref().map(|wires| wires.watched());
        let rank = state.fate.rank as u32;
        let shared = Shared {
            state,
            drivers: 0,
            driven: 0,
            has_thread: false,
            is_resting: false,
            closing: false,
            looked_after: Instant::now(),
        };
        Inner {
            shared: Mutex::new(shared),
            wanted: AtomicUsize::new(0),
            changed: Condvar::new(),
            process: std::process::id(),
            generation: generation(),
            rank,
            bell,
            watched,
            waiter,
            thread_waiter,
            _memory: memory,
        }
    }

    /// Whether this is the process that the endpoint belongs to. Looked at before any lock is taken: who held it may not be in a
    /// process that was forked.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        if generation() == self.generation {
            return Ok(());
        }
        let (here, there) = (std::process::id(), self.process);
        Err(Error::Misuse(format!(
            "the endpoint belongs to process {there}, from which process {here} was forked: make one of its own here"
        )))
    }

    /// Begins a send or a receive and drives until it is over.
    pub(super) fn drive(
        self: &Arc<Self>,
        begin: impl FnOnce(&mut State) -> Result<u64, Error>,
    ) -> Result<usize, Error> {
        let mut shared = self.enter();
        let id = begin(&mut shared.state)?;
        let mut result = shared.state.result(id);
        if result.is_none() {
            shared.drives();
        }
        self.leave(shared);
        loop {
            if let Some(result) = result {
                return result;
            }
            let look = || {
                result = self.turn(|shared| shared.result(id)).flatten();
                if result.is_some() { Poll::Ready } else { Poll::Pending }
            };
            // However it ends: what counts is the result.
            let _ = self.waiter.wait_doubting(self.on(), look, |_| self.look_after());
        }
    }

    /// Drives until something is so that a message's end brings about, or for a while. Tells whether it is.
    pub(super) fn drive_until(self: &Arc<Self>, is_over: impl Fn() -> bool, time: Duration) -> bool {
        if is_over() {
            return true;
        }
        self.enter().drives();
        let look = || {
            // A message that is over may be told by the turn, or by another thread's.
            self.turn(|_| ());
            if is_over() { Poll::Ready } else { Poll::Pending }
        };
        let _ = self.waiter.within(time).wait_doubting(self.on(), look, |_| self.look_after());
        let mut shared = self.enter();
        shared.drivers -= 1;
        self.leave(shared);
        is_over()
    }

    /// Begins a send or a receive for which nobody waits.
    pub(super) fn start(
        self: &Arc<Self>,
        begin: impl FnOnce(&mut State) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut shared = self.enter();
        if !shared.has_thread {
            self.start_thread()?;
            shared.has_thread = true;
        }
        let begun = begin(&mut shared.state);
        if !shared.state.readings.is_empty() {
            self.bell.ring(&self.waiter);
        }
        self.leave(shared);
        begun
    }

    /// All clones are gone; what is under way goes on. What was sent, as its callers believe, is handed to the kernel first.
    pub(super) fn close(self: &Arc<Self>) {
        if self.check_process().is_ok() {
            self.drive_until(|| !self.enter().state.is_carrying(), PARTING_LIMIT);
            self.enter().closing = true;
            self.changed.notify_one();
        }
    }

    /// Drives until everything that this rank sends is on its way to who receives it, or for a while. Tells whether it is.
    pub(super) fn settle(self: &Arc<Self>, time: Duration) -> bool {
        self.drive_until(|| !self.enter().state.is_sending(), time)
    }

    fn start_thread(self: &Arc<Self>) -> Result<(), Error> {
        let (inner, elsewhere) = (Arc::clone(self), affinity::beside_this_thread());
        let work = move || {
            affinity::move_to(elsewhere);
            inner.work();
        };
        let thread = std::thread::Builder::new().name("weft endpoint".to_owned()).spawn(work);
        let rank = self.rank;
        thread.map(drop).map_err(|error| Error::System {
            rank,
            what: "start a thread for messages",
            error: limits::thread_advice(&error),
        })
    }

    /// What the endpoint's thread does.
    fn work(self: &Arc<Self>) {
        let mut was_needed = true;
        while self.rest(was_needed) {
            let mut done = false;
            while !done {
                let look = || {
                    let turn = self.turn(|shared| {
                        was_needed = shared.drivers == 0;
                        !shared.is_for_thread()
                    });
                    done = turn.unwrap_or(false);
                    if done { Poll::Ready } else { Poll::Pending }
                };
                let _ = self.thread_waiter.wait_doubting(self.on(), look, |_| self.look_after());
            }
        }
    }

    /// Rests until there is something to do for the endpoint's thread, and naps first if it was not needed. False when there will never be
    /// anything.
    fn rest(&self, was_needed: bool) -> bool {
        let mut shared = self.enter();
        let mut naps = if was_needed { 0 } else { NAPS_MAX };
        let mut others_drive = !was_needed;
        loop {
            match shared.is_for_thread() {
                true if !others_drive => return true,
                false if shared.closing => return false,
                _ => {}
            }
            if naps > 0 {
                let driven = shared.driven;
                let napped = self.changed.wait_timeout(shared, NAP);
                shared = napped.unwrap_or_else(PoisonError::into_inner).0;
                others_drive = shared.driven != driven;
                naps = if others_drive { NAPS_MAX } else { naps - 1 };
            } else {
                shared.is_resting = true;
                shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
                shared.is_resting = false;
                naps = if shared.is_for_thread() { 0 } else { NAPS_MAX };
            }
        }
    }

    /// Has the endpoint's thread do what there is for it.
    fn wake_thread(self: &Arc<Self>, shared: &mut Shared) {
        if shared.is_resting {
            self.changed.notify_one();
        } else if !shared.has_thread {
            // If there can be none, what is left gets on with the next call.
            shared.has_thread = self.start_thread().is_ok();
        }
    }

    /// On what a thread sleeps.
    fn on(&self) -> Park<'_> {
        match &self.watched {
            Some(watched) => Park::SocketOrLine(watched.as_fd()),
            None => Park::Line(self.bell.line),
        }
    }

    /// Gives a turn, unless another thread is at it or wants to. Then looks at what has come of it.
    #[inline]
    fn turn<T>(self: &Arc<Self>, look: impl FnOnce(&mut Shared) -> T) -> Option<T> {
        if self.wanted.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let mut shared = match self.shared.try_lock() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        shared.state.turn();
        if let Some(mut reading) = shared.state.next_reading() {
            // Others get on meanwhile.
            let waiter = self.waiter;
            drop(shared);
            reading.read(|| waiter.aborted().is_none());
            shared = self.enter();
            shared.state.has_read(reading);
        }
        let seen = look(&mut shared);
        self.leave(shared);
        Some(seen)
    }

    /// Ends messages that have no hope.
    #[cold]
    fn look_after(self: &Arc<Self>) -> Option<weftlink_shm::wait::Stop> {
        let mut shared = self.enter();
        let now = Instant::now();
        if now.saturating_duration_since(shared.looked_after) >= LOOK_AFTER || shared.state.fate.is_over() {
            shared.looked_after = now;
            shared.state.look_after(now);
        }
        self.leave(shared);
        None
    }

    fn enter(&self) -> MutexGuard<'_, Shared> {
        if let Ok(shared) = self.shared.try_lock() {
            return shared;
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        shared
    }

    /// Opens the lock, wakes whom it concerns, and makes the calls that are due.
    fn leave(self: &Arc<Self>, mut shared: MutexGuard<'_, Shared>) {
        shared.state.tell();
        if shared.is_for_thread() {
            self.wake_thread(&mut shared);
        }
        if shared.state.has_results() {
            self.bell.ring(&self.waiter);
        }
        if shared.state.calls.is_empty() {
            return;
        }
        let calls = std::mem::take(&mut shared.state.calls);
        drop(shared);
        for (callback, result) in calls {
            // A caller's panic is the caller's, and nobody is there to hear of it.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(result)));
        }
    }
}

impl Shared {
    /// Whether there are messages for which nobody else gives turns.
    fn is_for_thread(&self) -> bool {
        self.drivers == 0 && (self.state.unattended > 0 || !self.closing && self.state.is_carrying())
    }

    /// A thread begins to drive.
    fn drives(&mut self) {
        self.drivers += 1;
        self.driven += 1;
    }

    /// The result for which a thread has been driving, which it does no longer then.
    fn result(&mut self, id: u64) -> Option<Result<usize, Error>> {
        let result = self.state.result(id)?;
        self.drivers -= 1;
        Some(result)
    }
}
