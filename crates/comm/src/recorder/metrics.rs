//! Counters in a file, for Prometheus' node exporter and its like: `WEFT_METRICS=file:PATH`.
//!
//! One thread of a process writes for all its communicators, every five seconds, and so does whoever drops one. A file is
//! put in the place of the one before, so that a reader finds all of one or all of the other. Communicators of one rank
//! whose path is the same are added up, those that are gone included: counters never fall while the process lives.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::counters::Counters;
use super::folder;
use super::ring::Ring;
use crate::log;

const EVERY: Duration = Duration::from_secs(5);

/// A file, and whose counters are in it.
struct Target {
    path: PathBuf,
    live: Vec<Arc<Ring>>,
    /// Of communicators that are gone, by rank.
    gone: Vec<Counters>,
    /// Whether it has been told that the file cannot be written.
    is_told: bool,
}

static TARGETS: Mutex<Vec<Target>> = Mutex::new(Vec::new());
static CHANGED: Condvar = Condvar::new();

/// A communicator whose counters are written, until this is dropped.
pub(super) struct Written {
    path: PathBuf,
    ring: Arc<Ring>,
}

impl Written {
    /// Writes a ring's counters to a path from now on, in which `%h`, `%r` and `%p` are put in.
    pub(super) fn new(path: &Path, rank: usize, ring: &Arc<Ring>) -> Self {
        let path = log::expanded(path, Some(rank));
        let mut targets = targets();
        match targets.iter_mut().find(|target| target.path == path) {
            Some(target) => target.live.push(Arc::clone(ring)),
            None => {
                let live = vec![Arc::clone(ring)];
                targets.push(Target { path: path.clone(), live, gone: Vec::new(), is_told: false });
            }
        }
        start(targets);
        Self { path, ring: Arc::clone(ring) }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let mut targets = targets();
        if let Some(target) = targets.iter_mut().find(|target| target.path == self.path) {
            target.live.retain(|ring| !Arc::ptr_eq(ring, &self.ring));
            merge(&mut target.gone, Counters::of(&self.ring));
            target.write();
        }
        CHANGED.notify_all();
    }
}

impl Target {
    fn write(&mut self) {
        let mut all = self.gone.clone();
        self.live.iter().for_each(|ring| merge(&mut all, Counters::of(ring)));
        all.sort_by_key(|counters| counters.rank);
        if let Err(error) = folder::replace(&self.path, &Counters::prometheus(&all))
            && !self.is_told
        {
            self.is_told = true;
            log::warn!(
                Fault,
                None::<usize>,
                "cannot write WEFT_METRICS=file:{}: {error}",
                self.path.display()
            );
        }
    }
}

fn merge(all: &mut Vec<Counters>, counters: Counters) {
    match all.iter_mut().find(|known| known.rank == counters.rank) {
        Some(known) => known.add(&counters),
        None => all.push(counters),
    }
}

fn targets() -> MutexGuard<'static, Vec<Target>> {
    TARGETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that writes, unless it runs. It ends when there is nothing left to write.
fn start(targets: MutexGuard<'static, Vec<Target>>) {
    static RUNS: Mutex<bool> = Mutex::new(false);
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if *runs {
        return;
    }
    let work = move || {
        let mut targets = self::targets();
        loop {
            targets.iter_mut().filter(|target| !target.live.is_empty()).for_each(Target::write);
            // Decided under the lock, so that whoever adds a target finds either this thread or none.
            if targets.iter().all(|target| target.live.is_empty()) {
                *RUNS.lock().unwrap_or_else(PoisonError::into_inner) = false;
                return;
            }
            let waited = CHANGED.wait_timeout(targets, EVERY);
            targets = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    };
    drop(targets);
    match std::thread::Builder::new().name("weft metrics".to_owned()).spawn(work) {
        Ok(_) => *runs = true,
        Err(error) => log::warn!(Fault, None::<usize>, "no thread for WEFT_METRICS: {error}"),
    }
}
