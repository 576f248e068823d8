//! What a thread does now and then while it waits for other ranks. A caller in another language looks for signals there.
//!
//! It is done where this thread holds no lock of ours, so that it may abort the communicator that it waits in. It never unwinds through
//! a wait: memory that the caller lent to a message or a call is in use until that is over.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How often.
const EVERY: Duration = Duration::from_millis(50);

struct Hook {
    work: Box<dyn FnMut()>,
    /// Not before; nothing until the first wait that takes long.
    next: Option<Instant>,
    /// What the work panicked with. It is not done again then.
    panic: Option<Box<dyn Any + Send>>,
}

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Makes calls on this thread, and does some work every 50 ms for as long as one of them waits. The work may
/// abort the communicator whose call waits, but not make another call of it.
///
/// If the work panics, the calls go on, without it, and the panic continues when they are over. To end them sooner, abort the
/// communicator first.
pub fn while_waiting<R>(work: impl FnMut() + 'static, calls: impl FnOnce() -> R) -> R {
    struct Before(Option<Hook>);

    impl Drop for Before {
        fn drop(&mut self) {
            // What it holds is dropped afterwards: that may wait too.
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

/// A time to sleep, or less if there is something to be done before it has passed.
pub fn at_most(time: Duration) -> Duration {
    if HOOK.with_borrow(Option::is_some) { time.min(EVERY) } else { time }
}

/// Does what is to be done, if it is time. To be called by all waits that take long, without a lock: it may abort the
/// communicator.
#[cold]
pub fn poll() {
    let due = HOOK.with_borrow_mut(|meanwhile| {
        let due = meanwhile.as_mut().filter(|due| due.panic.is_none())?;
        let now = Instant::now();
        let next = *due.next.get_or_insert(now + EVERY);
        if now < next {
            return None;
        }
        due.next = Some(now + EVERY);
        meanwhile.take()
    });
    if let Some(mut due) = due {
        due.panic = catch_unwind(AssertUnwindSafe(&mut due.work)).err();
        HOOK.set(Some(due));
    }
}
