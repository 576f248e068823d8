//! The facade for atomics, orderings and pauses. Under `--cfg loom` all of it comes from loom, so that loom explores the
//! interleavings of the code that ships.
//!
//! Every place where one rank's writes become visible to another is an [`Edge`]. Its writer stores with
//! [`Edge::release`], its reader loads with [`Edge::acquire`], and nothing else orders anything. The tests weaken one
//! side of one edge at a time and expect to be caught.
//!
//! Deliberately absent: sequentially consistent accesses. No protocol here needs two ranks to agree on the order of writes to
//! different lines. Fences are for one purpose only, memory that a rank may take back while another reads it:
//! [`before_writing`] and [`after_reading`].

// A futex is 32 bits and a flag is 64: the address of a flag's low half has to be made from the whole's.
#![allow(unsafe_code)]

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};
#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};

/// A rank that has announced that peers may no longer read its memory calls this before it writes to it.
#[cold]
pub fn before_writing() {
    fence(Ordering::Release);
}

/// A rank that has read a peer's memory calls this before it checks whether the peer still lent it.
pub fn after_reading() {
    fence(Ordering::Acquire);
}

pub use pause::{sleep, sleep_on, sleep_while, wake_all};

/// One kind of hand-over from a writer to its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A FIFO's sender to its receiver: the message is written.
    Arrival,
    /// A FIFO's receiver to its sender: the message is read, its slot is free.
    Credit,
    /// A counter's writer to its readers: what was counted is done, what was announced is written.
    Count,
    /// The aborting rank to all others: what led to the abort is written.
    Abort,
    /// A recorder to its readers: what is read under a tag was written under it.
    Record,
}

#[cfg(not(loom))]
impl Edge {
    /// The ordering of the writer's store.
    #[inline(always)]
    pub const fn release(self) -> Ordering {
        Ordering::Release
    }

    /// The ordering of a reader's load.
    #[inline(always)]
    pub const fn acquire(self) -> Ordering {
        Ordering::Acquire
    }
}

#[cfg(loom)]
impl Edge {
    /// The ordering of the writer's store.
    pub fn release(self) -> Ordering {
        if weakened::is(self, weakened::Side::Writer) { Ordering::Relaxed } else { Ordering::Release }
    }

    /// The ordering of a reader's load.
    pub fn acquire(self) -> Ordering {
        if weakened::is(self, weakened::Side::Reader) { Ordering::Relaxed } else { Ordering::Acquire }
    }
}

/// Which side of which edge a test has taken the ordering from. Loom runs all threads of a model on the test's own
/// thread, so a thread-local reaches them all and no other test.
#[cfg(loom)]
pub mod weakened {
    use super::Edge;
    use std::cell::Cell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Side {
        Writer,
        Reader,
    }

    thread_local!(static WEAKENED: Cell<Option<(Edge, Side)>> = const { Cell::new(None) });

    #[cfg(test)]
    pub fn set(edge: Edge, side: Side) {
        WEAKENED.set(Some((edge, side)));
    }

    pub(super) fn is(edge: Edge, side: Side) -> bool {
        WEAKENED.get() == Some((edge, side))
    }
}

#[cfg(not(any(loom, miri)))]
mod pause {
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags, Nsecs, Secs, Timespec};

    /// Sleeps for `time`.
    pub fn sleep(time: Duration) {
        std::thread::sleep(time);
    }

    /// Sleeps until something happens that an epoll watches; at most for `time`.
    pub fn sleep_on(watched: std::os::fd::BorrowedFd<'_>, time: Duration) {
        use rustix::event::epoll;
        let timeout = Timespec { tv_sec: time.as_secs() as Secs, tv_nsec: time.subsec_nanos() as Nsecs };
        // The caller polls to find out what happened; this only empties the list. After a failure it sleeps for the time instead.
        let mut happened = [std::mem::MaybeUninit::uninit(); 16];
        if epoll::wait(watched, &mut happened, Some(&timeout)).is_err() {
            sleep(time);
        }
    }

    /// Sleeps until another thread or process wakes `word`, unless its low half is no longer `seen`; at most for `time`.
    pub fn sleep_while(word: &AtomicU64, seen: u32, time: Duration) {
        let timeout = Timespec { tv_sec: time.as_secs() as Secs, tv_nsec: time.subsec_nanos() as Nsecs };
        // Not the private flag: the sleeper and its waker may be two processes.
        match futex::wait(low_half(word), Flags::empty(), seen, Some(&timeout)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            // A kernel without futexes would otherwise turn every wait into a busy one.
            Err(_) => sleep(time),
        }
    }

    /// Wakes all sleepers on `word`.
    pub fn wake_all(word: &AtomicU64) {
        // It fails only where no rank could sleep on the word either.
        let _ = futex::wake(low_half(word), Flags::empty(), i32::MAX as u32);
    }

    fn low_half(word: &AtomicU64) -> &AtomicU32 {
        let halves = word.as_ptr().cast::<u32>();
        let low = if cfg!(target_endian = "little") { 0 } else { 1 };
        // SAFETY: both halves lie inside `word`, aligned for a u32, and live as long as the borrow. No atomic access of
        // ours goes through the result, so none races with one of another size: only its address goes to the kernel,
        // which reads the half outside of Rust's memory.
        unsafe { AtomicU32::from_ptr(halves.add(low)) }
    }
}

// Miri takes the kernel's load of half a word for one of the program.
#[cfg(any(loom, miri))]
mod pause {
    use super::{AtomicU64, yield_now};
    use std::time::Duration;

    pub fn sleep(_time: Duration) {
        yield_now();
    }

    // A sleep that ends at once: loom has no clock, and all that matters is that other threads may run.
    pub fn sleep_while(_word: &AtomicU64, _seen: u32, _time: Duration) {
        yield_now();
    }

    pub fn sleep_on(_watched: std::os::fd::BorrowedFd<'_>, time: Duration) {
        sleep(time);
    }

    pub fn wake_all(_word: &AtomicU64) {}
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    /// Longer than a test may run: a sleep that lasts it is a failure.
    const FOREVER: Duration = Duration::from_secs(1000);

    #[test]
    fn sleeps_only_while_the_low_half_is_unchanged() {
        let word = AtomicU64::new(7 << 32 | 5);
        sleep_while(&word, 7, FOREVER);
        sleep_while(&word, 5, Duration::from_micros(1));
    }

    #[test]
    fn a_wake_ends_a_sleep() {
        let (word, awake) = (AtomicU64::new(7 << 32 | 5), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep_while(&word, 5, FOREVER);
                awake.store(true, Ordering::Relaxed);
            });
            while !awake.load(Ordering::Relaxed) {
                wake_all(&word);
                yield_now();
            }
        });
    }
}
