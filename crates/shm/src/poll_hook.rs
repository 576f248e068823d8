//! A hook that a thread calls now and then while it waits for other ranks. Python's signal handlers run there.
//!
//! The hook runs while the thread holds no lock of this crate, so it may abort the communicator that it waits in. It never unwinds
//! through a wait: memory that the caller lent to a message or a call is in use until that completes.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::durations::POLL_HOOK;

struct Hook {
    work: Box<dyn FnMut()>,
    /// When to call it next; nothing until the first wait that takes long.
    next: Option<Instant>,
    /// The payload of the hook's panic, after which it is not called again.
    panic: Option<Box<dyn Any + Send>>,
}

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Runs `calls` on this thread, and calls `work` every 50 ms while one of them waits. The hook may abort the communicator whose call
/// waits, but not make another call on it.
///
/// If the hook panics, the calls continue without it, and the panic resumes when they return. To end them sooner, abort the
/// communicator first.
pub fn while_waiting<R>(work: impl FnMut() + 'static, calls: impl FnOnce() -> R) -> R {
    struct Before(Option<Hook>);

    impl Drop for Before {
        fn drop(&mut self) {
            // Dropped afterwards: dropping what it holds may wait too.
            drop(HOOK.replace(self.0.take()));
        }
    }

    let meanwhile = Hook { work: Box::new(work), next: None, panic: None };
    let before = Before(HOOK.replace(Some(meanwhile)));
    let made = calls();
    let panic = HOOK.take().and_then(|meanwhile| meanwhile.panic);
    drop(before);
    match panic {
        Some(panic) => resume_unwind(panic),
        None => made,
    }
}

/// The time to sleep, or less if the hook is due before.
pub fn at_most(time: Duration) -> Duration {
    if HOOK.with_borrow(Option::is_some) { time.min(POLL_HOOK) } else { time }
}

/// Calls the hook if it is due. All long waits call this, without a lock: the hook may abort the communicator.
#[cold]
pub fn poll() {
    let due = HOOK.with_borrow_mut(|meanwhile| {
        let due = meanwhile.as_mut().filter(|due| due.panic.is_none())?;
        let now = Instant::now();
        let next = *due.next.get_or_insert(now + POLL_HOOK);
        if now < next {
            return None;
        }
        due.next = Some(now + POLL_HOOK);
        meanwhile.take()
    });
    if let Some(mut due) = due {
        due.panic = catch_unwind(AssertUnwindSafe(&mut due.work)).err();
        HOOK.set(Some(due));
    }
}
