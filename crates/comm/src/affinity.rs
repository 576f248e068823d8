//! The cores of a worker: not the single core to which its caller is bound.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores for a worker of this thread if this thread is bound to a single core: all others. If the thread may run on several, the
/// scheduler places the worker better.
pub(crate) fn beside_this_thread() -> Option<CpuSet> {
    let here = sched_getaffinity(None).ok()?;
    (here.count() == 1).then(|| {
        let mut others = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|core| !here.is_set(*core)).for_each(|core| others.set(core));
        others
    })
}

/// Moves this thread. The kernel ignores cores that the process may not use; if none remains, the thread stays.
pub(crate) fn move_to(cores: Option<CpuSet>) {
    if let Some(cores) = cores {
        let _ = sched_setaffinity(None, &cores);
    }
}
