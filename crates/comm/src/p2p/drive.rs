//! The threads that drive an endpoint: those of blocking calls, or else one of the endpoint's own.
//!
//! A thread in a blocking call *drives*: it makes turns until its own operation completes, and every turn advances all others too.
//! When no thread drives, the endpoint's own thread does, as long as there are operations without a waiting thread, frames that the
//! kernel has not taken yet, or answers that wait for room. It is started when it is first needed, blocks on a condition variable while it has nothing to do, and
//! ends when the endpoint is dropped and nothing is pending.
//!
//! Most callers start an operation right before they wait for it. To wake the endpoint's thread each time would cost more
//! than the message, and on few cores preempt the very rank that sends it. So after it was woken for nothing, the thread *naps*: instead of
//! being woken it polls, for a while, whether there is something to do and no other thread has driven since.
//!
//! A driving thread spins, yields and sleeps as every wait does ([`weftlink_shm::wait`]). It sleeps on the rank's bell, which
//! ranks ring that have sent it something or made room, and so do threads of this rank.
//!
//! Callbacks are called without the lock.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use weftlink_bootstrap::{Reason, generation};
use weftlink_p2p::Direction;
use weftlink_shm::limits;
use weftlink_shm::line::Poll;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::sync::{AtomicUsize, Ordering};
use weftlink_shm::wait::{AbortCode, Park, Waiter};

use super::completion::{Callback, Request};
use super::ring::Bell;
use super::state::{Now, State};
use crate::affinity;
use crate::durations::{LAST_FLUSH, MESSAGE_CHECK, NAP};
use crate::error::Error;

/// Turns that a thread makes under the lock after it has posted: most messages are answered at once, and releasing the lock, locking it
/// and waking others take as long as a message.
const HELD_TURNS_MAX: u32 = 64;
/// Naps in a row while no other thread drives.
const NAPS_MAX: usize = 40;

/// What the clones of an endpoint and its thread share.
pub(super) struct Inner {
    shared: Mutex<Shared>,
    /// Threads that wait for the lock. A thread that only polls leaves it to them.
    wanted: AtomicUsize,
    /// Wakes the endpoint's thread.
    changed: Condvar,
    process: u32,
    generation: u32,
    rank: u32,
    bell: Bell,
    /// Readable when something arrived from another host, if there are others.
    watched: Option<Arc<OwnedFd>>,
    /// For threads in blocking calls, and for the endpoint's thread.
    waiter: Waiter<'static>,
    thread_waiter: Waiter<'static>,
    held_turns: u32,
    /// Unmapped last: all lines are in it.
    _memory: [Arc<SharedMemory>; 2],
}

/// How far a group is.
pub(super) enum Group {
    /// Operations are pending, and none has failed.
    Pending,
    /// All operations have completed.
    Done,
    /// All operations have completed, and the first to fail had this error.
    Failed(Error),
    /// The same, but operations are pending.
    Failing(Error),
}

thread_local! {
    /// The endpoint whose callbacks this thread calls, by address; 0 for none.
    static CALLS_BACK: Cell<usize> = const { Cell::new(0) };
}

struct Shared {
    state: State,
    /// Threads in blocking calls, and how many there have been.
    drivers: usize,
    driven: u64,
    has_thread: bool,
    is_parked: bool,
    /// All clones have been dropped.
    closing: bool,
    checked: Instant,
}

impl Inner {
    pub(super) fn new(
        state: State,
        bell: Bell,
        waiters: [Waiter<'static>; 2],
        memory: [Arc<SharedMemory>; 2],
    ) -> Inner {
        // Operations have deadlines of their own.
        let [waiter, thread_waiter] =
            waiters.map(|waiter| waiter.within(Duration::MAX).counted_by(bell.asleep));
        let watched = state.wires.as_ref().map(|wires| wires.watched());
        // A turn with connections makes system calls.
        let held_turns = if watched.is_some() { 0 } else { waiter.policy().spins.clamp(1, HELD_TURNS_MAX) };
        let rank = state.status.rank as u32;
        let shared = Shared {
            state,
            drivers: 0,
            driven: 0,
            has_thread: false,
            is_parked: false,
            closing: false,
            checked: Instant::now(),
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
            held_turns,
            _memory: memory,
        }
    }

    /// Whether this is the process that the endpoint belongs to. Checked before the lock is taken: in a forked process the thread
    /// that held it may not exist.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        if generation() == self.generation {
            return Ok(());
        }
        let (here, there) = (std::process::id(), self.process);
        Err(Error::Misuse(format!(
            "the endpoint belongs to process {there}, from which process {here} was forked: open another one in this process"
        )))
    }

    /// Posts a send or a receive and drives until it completes.
    pub(super) fn drive(self: &Arc<Self>, request: Request) -> Result<usize, Error> {
        let mut shared = self.enter();
        if let Some(peer) = self.complete_now(&mut shared.state, &request) {
            shared.driven += 1;
            self.leave(shared);
            return Ok(peer);
        }
        let id = shared.state.post(request, &mut None)?;
        let mut result = self.turn_held(&mut shared, |state| state.result(id));
        if result.is_none() {
            shared.drives();
        }
        self.leave(shared);
        loop {
            if let Some(result) = result {
                return result;
            }
            let poll = || {
                result = self.turn(|shared| shared.result(id)).flatten();
                if result.is_some() { Poll::Ready } else { Poll::Pending }
            };
            // However the wait ends, the result decides.
            let _ = self.waiter.wait_with_check(self.on(), poll, |_| self.check());
        }
    }

    /// Drives until a condition holds that a completion brings about, or for `time`. Returns whether it holds.
    pub(super) fn drive_until(self: &Arc<Self>, is_over: impl Fn() -> bool, time: Duration) -> bool {
        if is_over() {
            return true;
        }
        self.enter().drives();
        let poll = || {
            // The completion may be reported by this turn, or by another thread's.
            self.turn(|_| ());
            if is_over() { Poll::Ready } else { Poll::Pending }
        };
        let _ = self.waiter.within(time).wait_with_check(self.on(), poll, |_| self.check());
        let mut shared = self.enter();
        shared.drivers -= 1;
        self.leave(shared);
        is_over()
    }

    /// Posts the sends and receives of a group. If operations are pending afterwards, [`Inner::drive_group`] or [`Inner::end_group`] must
    /// complete them before their memory is used for anything else.
    pub(super) fn start_group(self: &Arc<Self>, requests: impl IntoIterator<Item = Request>) -> Group {
        let mut shared = self.enter();
        let mut began = None;
        let mut requests = requests.into_iter().peekable();
        while let Some(request) = requests.next() {
            let now = match requests.peek() {
                None => self.complete_now(&mut shared.state, &request).is_some(),
                Some(_) => matches!(shared.state.complete_now(&request), Now::Done(_)),
            };
            if !now {
                shared.state.post_in_group(request, || *began.get_or_insert_with(Instant::now));
            }
        }
        shared.drives();
        if shared.state.group.pending > 0 {
            let is_over = |state: &mut State| (state.group.pending == 0).then_some(());
            let _ = self.turn_held(&mut shared, is_over);
        }
        let group = shared.group();
        self.leave(shared);
        group
    }

    /// Drives until all operations of the group have completed, or one has failed. `doubt` is called now and then with the time waited and
    /// a rank that is waited for.
    pub(super) fn drive_group(self: &Arc<Self>, mut doubt: impl FnMut(Duration, Option<Direction>)) -> Group {
        let is_over = |shared: &mut Shared| match shared.group() {
            Group::Pending => None,
            group => Some(group),
        };
        self.turn_until(is_over, |waited| {
            // Without the lock: `doubt` logs, which runs code of the caller.
            let awaited = self.enter().state.awaited();
            doubt(waited, awaited);
        })
    }

    /// Drives until all operations of the group have completed, which an abort of the communicator hastens.
    pub(super) fn end_group(self: &Arc<Self>) {
        let is_over = |shared: &mut Shared| match shared.group() {
            Group::Done | Group::Failed(_) => Some(()),
            Group::Pending | Group::Failing(_) => None,
        };
        self.turn_until(is_over, |_| ());
    }

    /// Aborts the communicator, if no rank has.
    #[cold]
    pub(super) fn abort(&self, reason: Reason) {
        self.waiter.abort(AbortCode { rank: self.rank, reason: reason.code() });
    }

    fn turn_until<T>(
        self: &Arc<Self>,
        result: impl Fn(&mut Shared) -> Option<T>,
        mut doubt: impl FnMut(Duration),
    ) -> T {
        let mut seen = None;
        loop {
            let poll = || {
                seen = self.turn(&result).flatten();
                if seen.is_some() { Poll::Ready } else { Poll::Pending }
            };
            let _ = self.waiter.wait_with_check(self.on(), poll, |waited| {
                doubt(waited);
                self.check()
            });
            if let Some(seen) = seen {
                return seen;
            }
        }
    }

    /// Completes a send or a receive without posting it, if that can be done in a moment. Returns the peer. Nothing else may be pending
    /// while it waits for a message: only the link of that message is polled.
    #[inline]
    fn complete_now(&self, state: &mut State, request: &Request) -> Option<usize> {
        for _ in 0..self.held_turns.max(1) {
            match state.complete_now(request) {
                Now::Done(peer) => return Some(peer),
                Now::Never => return None,
                Now::NotYet => {}
            }
            if !state.is_at_rest() || self.wanted.load(Ordering::Relaxed) > 0 {
                return None;
            }
            state.wake_peers();
        }
        None
    }

    /// Makes turns for a moment without releasing the lock, until there is a result, or another thread has something to do.
    #[inline]
    fn turn_held<T>(&self, shared: &mut Shared, result: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let state = &mut shared.state;
        for _ in 0..self.held_turns {
            if let Some(result) = result(state) {
                return Some(result);
            }
            state.wake_peers();
            if self.wanted.load(Ordering::Relaxed) > 0 || state.has_pulls() || !state.callbacks.is_empty() {
                break;
            }
            state.turn();
        }
        result(state)
    }

    /// Posts a send or a receive that nobody waits for.
    pub(super) fn start(
        self: &Arc<Self>,
        request: Request,
        callback: &mut Option<Callback>,
    ) -> Result<(), Error> {
        let mut shared = self.enter();
        if let Now::Done(peer) = shared.state.complete_now(&request) {
            shared.state.callbacks.extend(callback.take().map(|callback| (callback, Ok(peer))));
            shared.driven += 1;
            self.leave(shared);
            return Ok(());
        }
        if !shared.has_thread {
            self.start_thread()?;
            shared.has_thread = true;
        }
        let begun = shared.state.post(request, callback).map(drop);
        if shared.state.has_pulls() {
            self.bell.ring(&self.waiter);
        }
        self.leave(shared);
        begun
    }

    /// All clones have been dropped; pending operations go on. Frames that their senders believe sent are handed to the kernel first.
    pub(super) fn close(self: &Arc<Self>) {
        if self.check_process().is_ok() {
            let is_owing = |state: &State| state.is_carrying() || state.has_answers();
            self.drive_until(|| !is_owing(&self.enter().state), LAST_FLUSH);
            self.enter().closing = true;
            self.changed.notify_one();
        }
    }

    /// Drives until everything that this rank sends is with its receivers or in the kernel, or for `time`. Returns whether it is.
    pub(super) fn flush(self: &Arc<Self>, time: Duration) -> bool {
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

    /// The endpoint's thread.
    fn work(self: &Arc<Self>) {
        let mut was_needed = true;
        while self.park(was_needed) {
            let mut done = false;
            while !done {
                let poll = || {
                    let turn = self.turn(|shared| {
                        was_needed = shared.drivers == 0;
                        !shared.is_for_thread()
                    });
                    done = turn.unwrap_or(false);
                    if done { Poll::Ready } else { Poll::Pending }
                };
                let _ = self.thread_waiter.wait_with_check(self.on(), poll, |_| self.check());
            }
        }
    }

    /// Blocks until there is something to do for the endpoint's thread, after some naps if it was not needed. False when there will never
    /// be anything.
    fn park(&self, was_needed: bool) -> bool {
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
                shared.is_parked = true;
                shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
                shared.is_parked = false;
                naps = if shared.is_for_thread() { 0 } else { NAPS_MAX };
            }
        }
    }

    /// Wakes the endpoint's thread, or starts it.
    fn wake_thread(self: &Arc<Self>, shared: &mut Shared) {
        if shared.is_parked {
            self.changed.notify_one();
        } else if !shared.has_thread {
            // Without a thread, the next call advances what is pending.
            shared.has_thread = self.start_thread().is_ok();
        }
    }

    /// What a thread sleeps on.
    fn on(&self) -> Park<'_> {
        match &self.watched {
            Some(watched) => Park::SocketOrLine(watched.as_fd()),
            None => Park::Line(self.bell.line),
        }
    }

    /// Makes a turn, unless another thread holds or wants the lock. Then inspects the result.
    #[inline]
    fn turn<T>(self: &Arc<Self>, inspect: impl FnOnce(&mut Shared) -> T) -> Option<T> {
        if self.wanted.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let mut shared = match self.shared.try_lock() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        shared.state.turn();
        if let Some(mut pull) = shared.state.next_pull() {
            // Other threads drive meanwhile.
            let waiter = self.waiter;
            drop(shared);
            pull.run(|| waiter.aborted().is_none());
            shared = self.enter();
            shared.state.end_pull(pull);
        }
        let seen = inspect(&mut shared);
        self.leave(shared);
        Some(seen)
    }

    /// Ends operations that have timed out or whose peers are gone.
    #[cold]
    fn check(self: &Arc<Self>) -> Option<weftlink_shm::wait::Stop> {
        let mut shared = self.enter();
        let now = Instant::now();
        if now.saturating_duration_since(shared.checked) >= MESSAGE_CHECK || shared.state.status.is_over() {
            shared.checked = now;
            shared.state.check(now);
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

    /// Releases the lock, wakes peers and threads, and calls callbacks.
    fn leave(self: &Arc<Self>, mut shared: MutexGuard<'_, Shared>) {
        shared.state.wake_peers();
        if shared.is_for_thread() {
            self.wake_thread(&mut shared);
        }
        if shared.state.has_results() {
            self.bell.ring(&self.waiter);
        }
        // A callback may post the next operation, whose callback the loop below calls: nested, they would fill the stack.
        let caller = CALLS_BACK.get();
        if shared.state.callbacks.is_empty() || caller == Arc::as_ptr(self).addr() {
            return;
        }
        CALLS_BACK.set(Arc::as_ptr(self).addr());
        let mut callbacks = std::mem::take(&mut shared.state.callbacks);
        drop(shared);
        while !callbacks.is_empty() {
            for (callback, result) in callbacks {
                // A callback that panics must not take this thread along.
                let _ = catch_unwind(AssertUnwindSafe(|| callback(result)));
            }
            callbacks = std::mem::take(&mut self.enter().state.callbacks);
        }
        CALLS_BACK.set(caller);
    }
}

impl Shared {
    /// Whether there is work for which no other thread drives.
    fn is_for_thread(&self) -> bool {
        let owes = || self.state.is_carrying() || self.state.has_answers();
        self.drivers == 0 && (self.state.unattended > 0 || !self.closing && owes())
    }

    /// A thread starts to drive.
    fn drives(&mut self) {
        self.drivers += 1;
        self.driven += 1;
    }

    /// How far the group is. With its last operation, the thread stops.
    #[inline]
    fn group(&mut self) -> Group {
        let group = &mut self.state.group;
        match (group.pending, &group.error) {
            (0, _) => {
                self.drivers -= 1;
                group.error.take().map_or(Group::Done, Group::Failed)
            }
            (_, Some(error)) => Group::Failing(error.clone()),
            (_, None) => Group::Pending,
        }
    }

    /// The result for which a thread has been driving; with it, the thread stops.
    fn result(&mut self, id: u64) -> Option<Result<usize, Error>> {
        let result = self.state.result(id)?;
        self.drivers -= 1;
        Some(result)
    }
}
