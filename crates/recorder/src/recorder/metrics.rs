//! Counters in a file, for Prometheus' node exporter and its like: `WEFT_METRICS=file:PATH`.
//!
//! One thread of a process writes for all its communicators, every five seconds, and so does whoever drops one. A file is
//! put in the place of the one before, so that a reader finds all of one or all of the other. It holds all communicators
//! of a rank, by name (`lineage.rs`); those of one name are added up, those that are gone included: counters never fall while the
//! process lives. The first line says whose file it is, so that two processes that write the same one can notice.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weftlink_shm::sync::Ordering;

use super::counters::Counters;
use super::folder;
use super::{FlightRecorder, Lineage};

/// Counters are for others to read, such as Prometheus' node exporter.
const FOR_ALL: u32 = 0o644;
/// How often counters are written to the file.
const EVERY: Duration = Duration::from_secs(5);
/// Communicators that are told apart in a file; what others count is added up as one.
const NAMES_MAX: usize = 64;
const OTHERS: &str = "others";

/// A file, and whose counters are in it.
struct Target {
    path: PathBuf,
    /// The communicator that it was made for, as others of its job know it.
    job: u64,
    live: Vec<FlightRecorder>,
    /// Of communicators that are gone, by rank and name.
    gone: Vec<Counters>,
    /// Ranks and communicators that have a name in it.
    names: Vec<Lineage>,
    /// Whether it has been told that the file cannot be written.
    is_told: bool,
    /// Whether it has been told that others write it too.
    is_shared: bool,
}

static TARGETS: Mutex<Vec<Target>> = Mutex::new(Vec::new());
static CHANGED: Condvar = Condvar::new();

/// A communicator whose counters are written, until this is dropped.
pub(super) struct Written {
    /// The process whose counters they are, which a process that was forked is not.
    process: u32,
    path: PathBuf,
    reader: FlightRecorder,
}

impl Written {
    /// Writes a communicator's counters to a path from now on, in which `%h`, `%r` (the rank in the job) and `%p` are put in.
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
                    // If it cannot be made, writing the file says why.
                    let _ = std::fs::create_dir_all(folder);
                }
                let (job, live) = (reader.ring.head.job.load(Ordering::Relaxed), vec![reader.clone()]);
                let (path, gone, names) = (path.clone(), Vec::new(), vec![Lineage::clone(&reader.lineage)]);
                targets.push(Target { path, job, live, gone, names, is_told: false, is_shared: false });
            }
        }
        start(targets);
        Self { process: std::process::id(), path, reader }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // A process that was forked has nothing to write, and the thread that writes may have held the lock then.
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
        let whose = format!("# Weft, communicator {:012x}, process ", self.job);
        let own = format!("{whose}{} of {}", std::process::id(), weftlink_knobs::host());
        self.notice_others(&whose, &own);
        if let Err(error) =
            folder::replace(&self.path, &format!("{own}\n{}", Counters::prometheus(&all)), FOR_ALL)
            && !self.is_told
        {
            self.is_told = true;
            tracing::warn!(target: "weft::fault",
                "cannot write WEFT_METRICS=file:{}: {error}",
                self.path.display()
            );
        }
    }
}

impl Target {
    /// Decides once under which name a communicator is counted, so that no series ever falls.
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

    /// Tells if the file is another process' of the same job.
    fn notice_others(&mut self, whose: &str, own: &str) {
        let mut first = String::new();
        let read =
            folder::open(&self.path).and_then(|file| BufReader::new(file.take(256)).read_line(&mut first));
        if read.is_ok() && first.starts_with(whose) && first.trim_end() != own && !self.is_shared {
            self.is_shared = true;
            let (path, other) =
                (self.path.display(), first.trim_end().rsplit(", ").next().unwrap_or_default());
            tracing::warn!(target: "weft::fault",
                "WEFT_METRICS=file:{path}: {other} writes the same file, and one replaces the other's counters; put %r or %p into the path"
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
        Err(error) => tracing::warn!(target: "weft::fault", "no thread for WEFT_METRICS: {error}"),
    }
}
