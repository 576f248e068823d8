//! The memory of a window, and the communicators of this rank that use it.
//!
//! A failed call leaves its rank with a private copy of its part of the window (`failure.rs`). A communicator that has adopted the
//! window would continue with memory that its peers no longer see, and return stale bytes. So communicators that share a window fail
//! together, and the copy is made while none of this rank's calls uses the memory:
//!
//! 1. The call that failed has stopped using the memory. It aborts the other communicators, so that their calls end, and then
//!    sets [`FAILED`], after which no call begins.
//! 2. It waits until the count of calls is 0.
//! 3. The first failed call that gets there makes the copy and sets [`PRIVATE`].
//!
//! All of this is one word, `state`, changed by read-modify-write operations: a call is either counted before `FAILED` is set, and
//! awaited, or finds it set and does not begin. Because the abort comes first, such a call finds its communicator aborted. The count
//! decreases with release and is read with acquire, so the copy contains what a call wrote.
//!
//! Calls on a window of one communicator are not counted, because they run one after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weftlink_bootstrap::{BootstrapError, Event, Failure, Reason};
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::sync::{AtomicU32, Ordering};
use weftlink_shm::wait::{AbortCode, Waiter};

use crate::durations::{WINDOW_CALLS, WINDOW_POLL};

/// The windows of a call's input and output, if its plan reaches into them.
pub(crate) type Reached = [Option<u16>; 2];

/// Several communicators use the memory.
const SHARED: u32 = 1 << 31;
/// A call on it failed.
const FAILED: u32 = 1 << 30;
/// This rank's part is a copy that peers do not see.
const PRIVATE: u32 = 1 << 29;
/// Calls that use it.
const CALLS: u32 = PRIVATE - 1;

/// The memory of a window.
#[derive(Debug)]
pub(crate) struct Symmetric {
    memory: SharedMemory,
    state: AtomicU32,
    users: Mutex<Vec<User>>,
}

/// A communicator that uses the memory.
pub(crate) struct User {
    pub(crate) identity: u64,
    pub(crate) rank: u32,
    pub(crate) waiter: Waiter<'static>,
    /// Reports to ranks that are not in a call.
    pub(crate) report: Box<dyn Fn(Event) + Send>,
    /// The memory into which the waiter points.
    pub(crate) _control: Arc<SharedMemory>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "User({})", self.identity)
    }
}

impl Symmetric {
    /// New memory of one communicator.
    pub(crate) fn new(memory: SharedMemory, user: User) -> Arc<Self> {
        Arc::new(Self { memory, state: AtomicU32::new(0), users: Mutex::new(vec![user]) })
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Adds a communicator that uses the memory. False if a call on it has failed.
    pub(crate) fn adopt(&self, user: User) -> bool {
        let mut users = self.users();
        if self.state.fetch_or(SHARED, Ordering::AcqRel) & FAILED != 0 {
            return false;
        }
        users.push(user);
        true
    }

    /// Removes a communicator.
    pub(crate) fn leave(&self, identity: u64) {
        self.users().retain(|user| user.identity != identity);
    }

    /// Makes the rank's part, `bytes` bytes from `at` on, private after a call of the communicator `identity` failed with `code`. Aborts the
    /// other communicators that use the memory, and waits for their calls that use it, [`WINDOW_CALLS`] at most.
    pub(crate) fn take_back(
        &self,
        (at, bytes): (usize, usize),
        identity: u64,
        code: AbortCode,
        why: &Failure,
    ) {
        let users = self.users();
        for user in users.iter().filter(|user| user.identity != identity) {
            user.abort(code, why);
        }
        self.state.fetch_or(FAILED, Ordering::AcqRel);
        drop(users);
        let began = Instant::now();
        // An abort ends every wait of a call. Only a call that computes can take longer; it fails when it ends, and so do its peers, which
        // check the abort word then.
        while self.state.load(Ordering::Acquire) & CALLS != 0 && began.elapsed() < WINDOW_CALLS {
            std::thread::sleep(WINDOW_POLL);
        }
        // Only the first makes the copy.
        let _users = self.users();
        if self.state.load(Ordering::Acquire) & PRIVATE == 0 {
            let kept = self.memory.keep_private(at, bytes);
            if kept < bytes {
                let lost = bytes - kept;
                tracing::warn!(target: "weft::fault",
                    "out of memory: {lost} of {bytes} bytes of a window could not be kept after a failed call, and are zero now"
                );
            }
            self.state.fetch_or(PRIVATE, Ordering::AcqRel);
        }
    }

    fn users(&self) -> MutexGuard<'_, Vec<User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl User {
    fn abort(&self, code: AbortCode, failure: &Failure) {
        // The late ranks are those of the communicator that failed. The message names them; this abort code must not.
        let code = match Reason::is(code, Reason::Deadline) {
            true => AbortCode { rank: self.rank, reason: Reason::GaveUp.code() },
            false => code,
        };
        self.waiter.abort(code);
        let cause = format!("a call of another communicator with the same windows failed: {}", failure.why);
        let blamed = failure.blamed.clone();
        let error = BootstrapError::GaveUp { rank: self.rank as usize, cause, blamed };
        let AbortCode { rank: culprit, reason } = code;
        (self.report)(Event::Failed { rank: self.rank, reason: reason.get(), culprit, error });
    }
}

/// A call's use of windows that several communicators share.
#[derive(Debug, Default)]
pub(crate) struct Using([Option<Arc<Symmetric>>; 2]);

/// A window is no longer shared with other ranks, because a call of another communicator failed.
#[derive(Debug)]
pub(crate) struct TakenBack;

impl Using {
    /// Begins a call whose buffers lie in such windows, whether or not peers reach into them: a copy of this rank's part must contain
    /// what the call writes.
    #[inline]
    pub(crate) fn begin(windows: &[Arc<Symmetric>], reached: Reached) -> Result<Self, TakenBack> {
        let mut using = Self::default();
        for (place, number) in using.0.iter_mut().zip(reached) {
            // An empty side may name a window of another communicator, which this call does not use.
            if let Some(window) = number.and_then(|number| windows.get(usize::from(number)))
                && window.state.load(Ordering::Acquire) != 0
            {
                let before = window.state.fetch_add(1, Ordering::AcqRel);
                *place = Some(Arc::clone(window));
                if before & FAILED != 0 {
                    return Err(TakenBack);
                }
            }
        }
        Ok(using)
    }

    /// Runs a call whose buffers lie in windows. It is an error if this rank or a peer took one back before the call ended: that peer
    /// aborted the communicator first, and may have written the rest of its part into a private copy.
    #[inline(never)]
    pub(crate) fn windows<T, E>(
        windows: &[Arc<Symmetric>],
        reached: Reached,
        waiter: &Waiter<'_>,
        run: impl FnOnce() -> Result<T, E>,
    ) -> Result<Result<T, E>, TakenBack> {
        let using = Self::begin(windows, reached)?;
        let ran = run();
        let is_shared = using.0.iter().any(Option::is_some);
        if ran.is_ok() && is_shared && waiter.aborted().is_some() { Err(TakenBack) } else { Ok(ran) }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        for window in self.0.iter().flatten() {
            window.state.fetch_sub(1, Ordering::Release);
        }
    }
}
