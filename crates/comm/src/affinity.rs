//! Where a worker runs: not on the core to which its caller is bound, or nothing would be gained.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores for a worker of this thread, if it must not run where this thread does: those that are left when a thread is bound to
/// a single one. A thread that may run on several leaves it to the system, which sees what each of them is doing.
pub(crate) fn beside_this_thread() -> Option<CpuSet> {
    let here = sched_getaffinity(None).ok()?;
    (here.count() == 1).then(|| {
        let mut others = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|core| !here.is_set(*core)).for_each(|core| others.set(core));
        others
    })
}

/// Moves this thread. The system leaves out cores that the process may not use, and if none remains the thread stays.
pub(crate) fn move_to(cores: Option<CpuSet>) {
    if let Some(cores) = cores {
        let _ = sched_setaffinity(None, &cores);
    }
}
