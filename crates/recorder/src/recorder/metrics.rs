//! Counters in a file, for Prometheus' node exporter: `WEFT_METRICS=file:PATH`.
//!
//! One thread of a process writes for all its communicators, every five seconds and when a communicator is dropped. It replaces the file
//! atomically. The file holds all communicators of a rank, by name (`lineage.rs`); those with the same name are added up, including those
//! that are gone, so counters never decrease while the process lives. The first line names the owner of the file, so that two processes
//! that write the same file notice it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weftlink_shm::sync::Ordering;

use super::counters::Counters;
use super::folder;
use super::{FlightRecorder, Lineage};

/// Other users may read counters, such as Prometheus' node exporter.
const FOR_ALL: u32 = 0o644;
/// How often counters are written to the file.
const EVERY: Duration = Duration::from_secs(5);
/// Communicators with a name of their own in a file; all others are added up as one.
const NAMES_MAX: usize = 64;
const OTHERS: &str = "others";

/// A file, and the communicators whose counters it has.
struct Target {
    path: PathBuf,
    /// The number of the first communicator.
    job: u64,
    live: Vec<FlightRecorder>,
    /// Counters of dropped communicators, by rank and name.
    gone: Vec<Counters>,
    /// Communicators with a name of their own.
    names: Vec<Lineage>,
    /// Whether the failure to write the file has been logged.
    has_logged_error: bool,
    /// Whether another process that writes the file has been logged.
    has_logged_other: bool,
}

static TARGETS: Mutex<Vec<Target>> = Mutex::new(Vec::new());
static CHANGED: Condvar = Condvar::new();

/// Keeps a communicator's counters in a file until it is dropped.
pub(super) struct MetricsFile {
    /// The process of the communicator; a forked process writes nothing.
    process: u32,
    path: PathBuf,
    reader: FlightRecorder,
}

impl MetricsFile {
    /// Starts writing a communicator's counters to a path, with `%h`, `%r` (the rank in the job) and `%p` replaced.
    pub(super) fn new(path: &Path, mut reader: FlightRecorder) -> Self {
        let path = weftlink_knobs::expanded(path, Some(reader.lineage.world_rank));
        let mut targets = targets();
        match targets.iter_mut().find(|target| target.path == path) {
            Some(target) => {
                target.name(&mut reader);
                target.live.push(reader.clone());
            }
            None => {
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    // If this fails, writing the file reports the error.
                    let _ = std::fs::create_dir_all(folder);
                }
                let (job, live) = (reader.ring.head.job.load(Ordering::Relaxed), vec![reader.clone()]);
                let (path, gone, names) = (path.clone(), Vec::new(), vec![Lineage::clone(&reader.lineage)]);
                targets.push(Target {
                    path,
                    job,
                    live,
                    gone,
                    names,
                    has_logged_error: false,
                    has_logged_other: false,
                });
            }
        }
        start(targets);
        Self { process: std::process::id(), path, reader }
    }
}

impl Drop for MetricsFile {
    fn drop(&mut self) {
        // A forked process has nothing to write, and the lock may have been held when it was forked.
        if self.process != std::process::id() {
            return;
        }
        let mut targets = targets();
        if let Some(target) = targets.iter_mut().find(|target| target.path == self.path) {
            target.live.retain(|reader| !Arc::ptr_eq(&reader.ring, &self.reader.ring));
            merge(&mut target.gone, self.reader.counters());
            target.write();
        }
        CHANGED.notify_all();
    }
}

impl Target {
    fn write(&mut self) {
        let mut all = self.gone.clone();
        self.live.iter().for_each(|reader| merge(&mut all, reader.counters()));
        all.sort_by(|one, other| (one.rank, &one.communicator).cmp(&(other.rank, &other.communicator)));
        let prefix = format!("# Weft, communicator {:012x}, process ", self.job);
        let own = format!("{prefix}{} of {}", std::process::id(), weftlink_knobs::host());
        self.warn_of_other_writers(&prefix, &own);
        if let Err(error) =
            folder::replace(&self.path, &format!("{own}\n{}", Counters::prometheus(&all)), FOR_ALL)
            && !self.has_logged_error
        {
            self.has_logged_error = true;
            tracing::warn!(target: "weft::fault",
                "cannot write WEFT_METRICS=file:{}: {error}",
                self.path.display()
            );
        }
    }
}

impl Target {
    /// Chooses the name of a communicator once, so that no series ever decreases.
    fn name(&mut self, reader: &mut FlightRecorder) {
        if self.names.contains(&reader.lineage) {
            return;
        }
        let world_rank = reader.lineage.world_rank;
        if self.names.iter().filter(|known| known.world_rank == world_rank).count() < NAMES_MAX {
            self.names.push(Lineage::clone(&reader.lineage));
        } else {
            reader.lineage = Arc::new(Lineage { world_rank, name: OTHERS.to_owned() });
        }
    }

    /// Warns if another process of the same job writes the file.
    fn warn_of_other_writers(&mut self, prefix: &str, own: &str) {
        let mut first = String::new();
        let read =
            folder::open(&self.path).and_then(|file| BufReader::new(file.take(256)).read_line(&mut first));
        if read.is_ok() && first.starts_with(prefix) && first.trim_end() != own && !self.has_logged_other {
            self.has_logged_other = true;
            let (path, other) =
                (self.path.display(), first.trim_end().rsplit(", ").next().unwrap_or_default());
            tracing::warn!(target: "weft::fault",
                "WEFT_METRICS=file:{path}: {other} writes the same file and replaces these counters; put %r or %p into the path"
            );
        }
    }
}

/// Adds counters to those of the same rank and communicator.
fn merge(all: &mut Vec<Counters>, counters: Counters) {
    let is = |known: &Counters| (known.rank, &known.communicator) == (counters.rank, &counters.communicator);
    match all.iter_mut().find(|known| is(known)) {
        Some(known) => known.add(&counters),
        None => all.push(counters),
    }
}

fn targets() -> MutexGuard<'static, Vec<Target>> {
    TARGETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that writes, unless it runs. It ends when no communicator is left.
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
            // Under the lock, so that a new target finds either this thread or none.
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
        Err(error) => {
            tracing::warn!(target: "weft::fault", "cannot start the thread that writes WEFT_METRICS: {error}")
        }
    }
}
