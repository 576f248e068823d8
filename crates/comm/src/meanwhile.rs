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

struct Meanwhile {
    work: Box<dyn FnMut()>,
    /// Not before; nothing until the first wait that takes long.
    next: Option<Instant>,
    /// What the work panicked with. It is not done again then.
    panic: Option<Box<dyn Any + Send>>,
}

thread_local! {
    static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
}

/// Makes calls on this thread, and does some work every 50 ms for as long as one of them waits. The work may
/// [abort](crate::Background::abort) the communicator whose call waits, but not make another call of it.
///
/// If the work panics, the calls go on, without it, and the panic continues when they are over. To end them sooner, abort the
/// communicator first.
///
/// ```
/// use weftlink_comm::{on_threads, while_waiting};
/// use std::{cell::Cell, rc::Rc, time::Duration};
///
/// let looked = on_threads(2, |mut comm| {
///     if comm.rank() == 1 {
///         std::thread::sleep(Duration::from_millis(200));
///     }
///     let looks = Rc::new(Cell::new(0));
///     let work = { let looks = Rc::clone(&looks); move || looks.set(looks.get() + 1) };
///     while_waiting(work, || comm.barrier())?;
///     Ok(looks.get() > 0)
/// })?;
/// assert!(looked[0]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
pub fn while_waiting<R>(work: impl FnMut() + 'static, calls: impl FnOnce() -> R) -> R {
    struct Before(Option<Meanwhile>);

    impl Drop for Before {
        fn drop(&mut self) {
            // What it holds is dropped afterwards: that may wait too.
            drop(MEANWHILE.replace(self.0.take()));
        }
    }

    let meanwhile = Meanwhile { work: Box::new(work), next: None, panic: None };
    let before = Before(MEANWHILE.replace(Some(meanwhile)));
    let made = calls();
    let panic = MEANWHILE.take().and_then(|meanwhile| meanwhile.panic);
    drop(before);
    match panic {
        Some(panic) => resume_unwind(panic),
        None => made,
    }
}

/// A time to sleep, or less if there is something to be done before it has passed.
pub(crate) fn at_most(time: Duration) -> Duration {
    if MEANWHILE.with_borrow(Option::is_some) { time.min(EVERY) } else { time }
}

/// Does what is to be done, if it is time. To be called by all waits that take long, without a lock: it may abort the
/// communicator.
#[cold]
pub(crate) fn meanwhile() {
    let due = MEANWHILE.with_borrow_mut(|meanwhile| {
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
        MEANWHILE.set(Some(due));
    }
}
