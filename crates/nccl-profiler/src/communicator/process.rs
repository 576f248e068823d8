//! What the communicators of a process share: the pool of events, the list of communicators, and when the trace is written.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::communicator::Communicator;
use crate::communicator::trace;
use crate::pool::Pool;
use crate::settings::settings;

/// Communicators, in blocks that are made when they are needed: looked up without a lock.
static COMMUNICATORS: [OnceLock<Box<Block>>; BLOCKS] = [const { OnceLock::new() }; BLOCKS];
type Block = [OnceLock<Communicator>; BLOCK];
const BLOCK: usize = 256;
const BLOCKS: usize = 4096;
/// The number of communicators that were listed, under a lock that new ones take.
static LISTED: Mutex<u32> = Mutex::new(0);
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

/// Lists a communicator. Its memory, which is small once it has ended, stays: NCCL's threads may still have its number. Nothing if there were
/// too many.
pub(crate) fn list(make: impl FnOnce(u32) -> Communicator) -> Option<&'static Communicator> {
    PID.get_or_init(std::process::id);
    let mut listed = lock(&LISTED);
    let (block, place) = (*listed as usize / BLOCK, *listed as usize % BLOCK);
    let block = COMMUNICATORS.get(block)?.get_or_init(|| Box::new([const { OnceLock::new() }; BLOCK]));
    let communicator = block[place].get_or_init(|| make(*listed));
    *listed += 1;
    LIVE.fetch_add(1, Ordering::Relaxed);
    Some(communicator)
}

/// All communicators, also those that have ended, by their numbers.
pub(crate) fn communicators() -> Vec<&'static Communicator> {
    let listed = *lock(&LISTED);
    (0..listed).filter_map(communicator).collect()
}

/// The communicator with this number.
#[inline]
pub(crate) fn communicator(index: u32) -> Option<&'static Communicator> {
    COMMUNICATORS.get(index as usize / BLOCK)?.get()?[index as usize % BLOCK].get()
}

/// The number that NCCL holds of a communicator: the process, so that others know it is not theirs, and the index.
pub(crate) fn context(index: u32) -> u64 {
    (u64::from(PID.get().copied().unwrap_or(0)) << 32) | (u64::from(index) + 1)
}

/// The communicator that NCCL holds by this number, if it is of this process.
#[inline]
pub(crate) fn of_context(context: u64) -> Option<&'static Communicator> {
    let is_own = PID.get().is_some_and(|pid| u64::from(*pid) == context >> 32);
    if is_own { communicator((context as u32).checked_sub(1)?) } else { None }
}

/// Whether a communicator has not ended.
pub(crate) fn is_live() -> bool {
    LIVE.load(Ordering::Relaxed) > 0
}

/// A communicator has ended: the last one writes the trace.
pub(crate) fn unlist() {
    if LIVE.fetch_sub(1, Ordering::AcqRel) == 1 {
        write_trace(Now::Running);
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

/// Whether NCCL's logger can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Now {
    Running,
    /// The process ends: parts of NCCL may have ended before.
    Exiting,
}

/// Writes the trace, if there is something new. Two threads do not write at once.
pub(crate) fn write_trace(now: Now) {
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
    let logger = communicators.first().map(|one| one.logger).filter(|_| now == Now::Running);
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
