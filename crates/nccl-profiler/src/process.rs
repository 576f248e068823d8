//! What the communicators of a process share: the pool of events, the list of communicators, and when the trace is written.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::communicator::Communicator;
use crate::pool::Pool;
use crate::settings::settings;
use crate::trace;

static COMMUNICATORS: Mutex<Vec<&'static Communicator>> = Mutex::new(Vec::new());
/// Communicators that have not ended.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Whether there were events since the trace was written.
static HAS_NEWS: AtomicBool = AtomicBool::new(false);
/// The process that loaded the plugin: a forked one writes nothing.
static PID: OnceLock<u32> = OnceLock::new();

/// The events of the process.
pub(crate) fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::new(settings().events))
}

/// A lock; data that a panic left behind is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists a communicator. Its memory, which is small once it has ended, stays: NCCL's threads may still have its address.
pub(crate) fn list(make: impl FnOnce(u32) -> Communicator) -> &'static Communicator {
    PID.get_or_init(std::process::id);
    let mut all = lock(&COMMUNICATORS);
    let communicator: &'static Communicator = Box::leak(Box::new(make(all.len() as u32)));
    all.push(communicator);
    LIVE.fetch_add(1, Ordering::Relaxed);
    communicator
}

/// All communicators, also those that have ended, by their numbers.
pub(crate) fn communicators() -> Vec<&'static Communicator> {
    lock(&COMMUNICATORS).clone()
}

/// The communicator with this number.
pub(crate) fn communicator(index: u32) -> Option<&'static Communicator> {
    lock(&COMMUNICATORS).get(index as usize).copied()
}

/// Whether a communicator has not ended.
pub(crate) fn is_live() -> bool {
    LIVE.load(Ordering::Relaxed) > 0
}

/// A communicator has ended: the last one writes the trace.
pub(crate) fn unlist() {
    if LIVE.fetch_sub(1, Ordering::AcqRel) == 1 {
        write_trace();
    }
}

/// There is an event that is not in the file.
#[inline]
pub(crate) fn has_news() {
    if !HAS_NEWS.load(Ordering::Relaxed) {
        HAS_NEWS.store(true, Ordering::Relaxed);
    }
}

/// Whether this is the process that loaded the plugin.
pub(crate) fn is_own() -> bool {
    PID.get() == Some(&std::process::id())
}

/// Writes the trace, if there is something new. Two threads do not write at once.
pub(crate) fn write_trace() {
    static WRITING: Mutex<()> = Mutex::new(());
    let Some(path) = settings().trace.as_ref().filter(|_| is_own()) else { return };
    // The one that writes may have been stopped for good, at exit.
    let Ok(_writing) = WRITING.try_lock() else { return };
    if !HAS_NEWS.swap(false, Ordering::Relaxed) {
        return;
    }
    let communicators = communicators();
    let rank = communicators.iter().map(|one| one.rank()).find(|rank| *rank >= 0);
    let path: PathBuf = weftlink_knobs::expanded(path, rank.and_then(|rank| usize::try_from(rank).ok()));
    let logger = communicators.first().map(|one| one.logger);
    match trace::write(&path, pool(), &communicators) {
        Ok(events) => {
            if let Some(logger) = logger {
                logger.info(&format!("weft profiler: {events} events in {}", path.display()));
            }
        }
        Err(error) => {
            let text = format!("weft profiler: cannot write WEFT_PROFILE={}: {error}", path.display());
            match logger {
                Some(logger) => logger.warn(&text),
                None => eprintln!("{text}"),
            }
        }
    }
}
