//! What a thread does now and then while it waits for other ranks. A caller in another language looks for signals there.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How often.
const EVERY: Duration = Duration::from_millis(50);

struct Meanwhile {
    work: Box<dyn FnMut()>,
    /// Not before; nothing until the first wait that takes long.
    next: Option<Instant>,
}

thread_local! {
    static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
}

/// Makes calls on this thread, and does some work every 50 ms for as long as one of them waits. The work must not make calls of
/// the same communicator; to [abort](crate::Background::abort) it, it leaves that to another thread, since this one may be in the
/// middle of meeting the others.
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
            MEANWHILE.set(self.0.take());
        }
    }

    let meanwhile = Meanwhile { work: Box::new(work), next: None };
    let _before = Before(MEANWHILE.replace(Some(meanwhile)));
    calls()
}

/// Does what is to be done, if it is time. To be called by all waits that take long.
#[cold]
pub(crate) fn meanwhile() {
    let due = MEANWHILE.with_borrow_mut(|meanwhile| {
        let due = meanwhile.as_mut()?;
        let now = Instant::now();
        let next = *due.next.get_or_insert(now + EVERY);
        if now < next {
            return None;
        }
        due.next = Some(now + EVERY);
        meanwhile.take()
    });
    if let Some(mut due) = due {
        (due.work)();
        MEANWHILE.set(Some(due));
    }
}
