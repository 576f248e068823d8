//! The flight recorder: the last calls of a rank, its current wait and its counters; readable at any time from any process, also when
//! the rank hangs, is stopped or was killed.
//!
//! - `ring.rs`: the memory, made of slots that can be read while they are written (`weftlink_shm::slot`).
//! - `record.rs`: a record, as data and JSON. `folder.rs`: files in `WEFT_RECORD_DIR`.
//!
//! A repeated call costs five stores and one read of the processor's counter when it begins and three stores when it ends; everything
//! else is written when a call is prepared, waits long or fails. Small calls do not read the clock when they end: the start of the next
//! call is close enough.
//!
//! Without files, the memory is a memfd that other processes find by its name ([`crate::attach`]).
//!
//! With `WEFT_RECORD_DIR`, the memory is a mapped file there, `weft-record-JOB-rankN.ring`. A communicator that ends without a failure
//! removes its file; one that has failed replaces it by `weft-record-JOB-rankN.json`; a killed process leaves the file as it is.
//!
//! Deliberately absent: signals, which the program handles. [`FlightRecorder::dump`] may be called from any thread.

mod counters;
mod folder;
mod later;
mod lineage;
mod metrics;
mod record;
mod ring;

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use counters::{CollectiveCounters, Counters};
pub use folder::{FolderRecords, read_folder};
pub use record::{CallRecord, CallState, KernelRecord, Process, RankState, Record, RecordError, WaitRecord};

use weftlink_bootstrap::Failure;
use weftlink_knobs::Knobs;
use weftlink_shm::clock::{self, Anchor, Clock, now_ns};
use weftlink_shm::line::PAYLOAD_WORDS;
use weftlink_shm::sync::Ordering;

use crate::header::{CallKind, Header};
use crate::waiting::Waiting;
pub(crate) use folder::{PREFIX, process_of, stat_of};
pub(crate) use lineage::Lineage;
pub(crate) use ring::{CAPACITY_MAX, MAGIC, NAME, bytes_of, kept_open};
use ring::{CallSlot, Ring};

/// The writing end, for the thread that makes the calls.
pub struct Recorder {
    calls: &'static [CallSlot],
    clock: Clock,
    /// The slot of the last call, and its tag while it runs.
    slot: &'static CallSlot,
    tag: Cell<u64>,
    /// The index of the current description, as in tags.
    described: u64,
    /// The counters for the current kind of call, and its bytes.
    counted: &'static ring::CounterWords,
    bytes: u64,
    descriptions: usize,
    waits: Cell<u32>,
    /// Polls beyond spinning after which a wait sleeps.
    yields: u32,
    ring: Arc<Ring>,
    lineage: Arc<Lineage>,
    files: Option<folder::Files>,
    /// Writes the counters to a file.
    _metrics: Option<metrics::MetricsFile>,
}

/// The rank that a recorder belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The rank in the communicator.
    pub rank: usize,
    /// Ranks of the communicator.
    pub size: usize,
    /// The number of the communicator, the same on all its ranks.
    pub job: u64,
}

/// Files for records and counters.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// The folder for records.
    pub folder: Option<PathBuf>,
    /// The file for counters.
    pub metrics: Option<PathBuf>,
}

impl Outputs {
    /// From `WEFT_RECORD_DIR` and `WEFT_METRICS`.
    pub fn from_environment(rank: usize) -> Self {
        let metrics =
            Knobs::from_variable("WEFT_METRICS").map(|knobs| knobs.metrics).unwrap_or_else(|error| {
                tracing::warn!(target: "weft::fault", rank, "{error}");
                None
            });
        Self { folder: weftlink_knobs::path("WEFT_RECORD_DIR"), metrics }
    }
}

/// A reader of a communicator's recorder, for any thread. It outlives the communicator.
#[derive(Clone)]
pub struct FlightRecorder {
    ring: Arc<Ring>,
    lineage: Arc<Lineage>,
}

impl FlightRecorder {
    /// The current record.
    pub fn record(&self) -> Record {
        Record::of(&self.ring, Some(now_ns()))
    }

    /// The current counters.
    pub fn counters(&self) -> Counters {
        Counters::of(&self.ring, &self.lineage)
    }

    /// Writes the current record into a folder, as `weft-record-JOB-rankN.json`, and returns the path.
    pub fn dump(&self, folder: &Path) -> io::Result<PathBuf> {
        folder::dump(&self.record(), folder)
    }
}

impl std::fmt::Debug for FlightRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = self.ring.head;
        let [rank, size] = [&head.rank, &head.size].map(|word| word.load(Ordering::Relaxed));
        write!(f, "FlightRecorder(rank {rank} of {size})")
    }
}

impl Recorder {
    /// A recorder for `capacity` calls, in a file if `outputs` has a folder.
    pub fn new(owner: Owner, capacity: u32, yields: u32, outputs: &Outputs) -> Self {
        let capacity = (capacity as usize).clamp(ring::CAPACITY_MIN, ring::CAPACITY_MAX).next_power_of_two();
        let lineage = Arc::new(Lineage::of(owner));
        let mut files = None;
        let ring = outputs.folder.as_deref().and_then(|folder| {
            match folder::create(folder, owner, ring::bytes_of(capacity)) {
                Ok((memory, created)) => {
                    files = Some(created);
                    Some(Ring::in_file(memory, capacity))
                }
                Err(error) => {
                    let folder = folder.display();
                    tracing::warn!(target: "weft::fault", rank = owner.rank, "cannot write to WEFT_RECORD_DIR={folder}: {error}");
                    None
                }
            }
        });
        let ring = ring.or_else(|| {
            let log =
                |error: &_| tracing::info!(target: "weft::fault", rank = owner.rank, "`weft why --attach` cannot find this rank: {error}");
            Ring::in_memfd(capacity).inspect_err(log).ok()
        });
        let ring = Arc::new(ring.unwrap_or_else(|| Ring::on_heap(capacity)));
        let mut recorder = Self {
            calls: ring.calls,
            clock: Clock::detect(),
            slot: &ring.calls[0],
            tag: Cell::new(0),
            described: 0,
            counted: &ring.head.counters[0],
            bytes: 0,
            descriptions: 0,
            waits: Cell::new(0),
            yields,
            ring,
            lineage,
            files,
            _metrics: None,
        };
        recorder.write_head(owner, capacity);
        warn_of_unknown_settings(owner.rank);
        let written = |path: &PathBuf| metrics::MetricsFile::new(path, recorder.reader());
        recorder._metrics = outputs.metrics.as_ref().map(written);
        recorder
    }

    fn write_head(&self, owner: Owner, capacity: usize) {
        let head = self.ring.head;
        let (process_start, pid_namespace) = folder::process();
        for (word, value) in [
            (&head.version, ring::VERSION),
            (&head.capacity, capacity as u64),
            (&head.rank, owner.rank as u64),
            (&head.size, owner.size as u64),
            (&head.pid, u64::from(std::process::id())),
            (&head.job, owner.job),
            (&head.process_start, process_start),
            (&head.pid_namespace, pid_namespace),
            (&head.realtime_offset_ns, clock::realtime_offset_ns() as u64),
            (&head.magic, ring::MAGIC),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        head.host.write(weftlink_knobs::host());
        if let Ok(knobs) = Knobs::from_environment() {
            head.settings.write(&knobs.given().collect::<Vec<_>>().join("\n"));
        }
        let Anchor { ticks, ns } = self.both_clocks();
        head.first_anchor.write(1, [ticks, ns]);
        self.anchor();
    }

    /// A reading end.
    pub fn reader(&self) -> FlightRecorder {
        FlightRecorder { ring: Arc::clone(&self.ring), lineage: Arc::clone(&self.lineage) }
    }

    /// Records the name of a loaded plan, by its index.
    pub fn name_plan(&self, index: usize, name: &str) {
        if let Some(place) = self.ring.head.plans.get(index) {
            place.write(name);
        }
    }

    /// Describes the calls from number `first` on. `plans` are the indices of the plans for ordinary and for symmetric memory, or
    /// nothing if the call only allocates memory for others.
    #[cold]
    pub fn describe(&mut self, first: u32, header: &Header, bytes: u64, plans: Option<(usize, usize)>) {
        self.descriptions = (self.descriptions + 1) % self.ring.descriptions.len();
        let [plan, count, kind, _, _, detail, root]: [u64; PAYLOAD_WORDS] = header.pack();
        let places =
            plans.map_or(ring::NO_PLANS, |plans| plans.0 as u64 & 0xffff_ffff | (plans.1 as u64) << 32);
        let values = [plan, count, kind, bytes, places, detail, root];
        let tag = u64::from(first) << ring::NUMBER_SHIFT | 1;
        self.ring.descriptions[self.descriptions].write(tag, values);
        self.described = (self.descriptions as u64) << ring::DESCRIPTION_SHIFT;
        self.bytes = bytes;
        let kind = match header.what {
            CallKind::Window => ring::KINDS - 2,
            CallKind::Collective(kind) if plans.is_some() => usize::from(kind).min(ring::KINDS - 3),
            CallKind::Collective(_) | CallKind::Load | CallKind::Split | CallKind::Endpoint => {
                ring::KINDS - 1
            }
        };
        self.counted = &self.ring.head.counters[kind];
    }

    /// Records the start of a call.
    #[inline]
    pub fn begin(&mut self, number: u32) {
        let tag = u64::from(number) << ring::NUMBER_SHIFT | self.described | ring::RUNNING;
        self.tag.set(tag);
        self.slot = &self.calls[number as usize & (self.calls.len() - 1)];
        self.slot.write_first(tag, self.clock.ticks());
    }

    /// Records that the call uses the plan for symmetric memory.
    pub fn is_symmetric(&mut self) {
        self.flag(ring::SYMMETRIC);
    }

    /// Records the success of a short call, without reading the clock.
    #[inline]
    pub fn end(&self) {
        ring::add(&self.counted.calls, 1);
        ring::add(&self.counted.bytes, self.bytes);
        self.slot.retag(self.tag.get() + (ring::DONE - ring::RUNNING));
    }

    /// Records that the call is on a stream of a GPU, or, if it was captured, in a graph: when it runs is not recorded.
    #[inline]
    pub fn enqueued(&self, is_captured: bool) {
        ring::add(&self.counted.calls, 1);
        ring::add(&self.counted.bytes, self.bytes);
        let state = if is_captured { ring::CAPTURED } else { ring::ENQUEUED };
        self.slot.retag(self.tag.get() + (state - ring::RUNNING));
    }

    /// Records the failure of a call after which the communicator still works.
    #[cold]
    pub fn end_failed(&self) {
        ring::add(&self.counted.errors, 1);
        self.slot.set(1, self.clock.ticks());
        self.slot.retag((self.tag.get() + (ring::FAILED - ring::RUNNING)) | ring::TIMED);
    }

    /// Records the success of a call, and its time.
    #[inline]
    pub fn end_timed(&self) {
        self.slot.set(1, self.clock.ticks());
        self.tag.set(self.tag.get() | ring::TIMED);
        self.end();
    }

    /// Sets a flag of the current call.
    fn flag(&self, flag: u64) {
        self.tag.set(self.tag.get() | flag);
        self.slot.retag(self.tag.get());
    }

    /// Records a wait that is longer than spinning; returns the time, for [`Recorder::wait_ends`].
    #[cold]
    pub fn wait_begins(&self, call: u32, step: Option<(u32, u32)>, waiting: Waiting) -> u64 {
        self.note_wait(call, step, record::pack_waiting(waiting))
    }

    /// Records such a wait of a group of messages, before the call with this number; it ends with [`Recorder::wait_of_group_ends`].
    #[cold]
    pub fn wait_of_group_begins(&self, next_call: u32, waiting: Waiting) {
        self.note_wait(next_call, None, record::pack_waiting(waiting) | record::OF_GROUP);
    }

    /// Records a wait until all ranks have allocated memory; returns the time, as [`Recorder::wait_begins`] does.
    #[cold]
    pub fn wait_for_memory_begins(&self, call: u32) -> u64 {
        self.note_wait(call, None, record::MEMORY)
    }

    fn note_wait(&self, call: u32, step: Option<(u32, u32)>, what: u64) -> u64 {
        let ns = self.anchor();
        self.waits.set(self.waits.get().wrapping_add(1).max(1));
        let (lane, step) = step.unwrap_or((u32::MAX, u32::MAX));
        let tag = u64::from(call) << ring::NUMBER_SHIFT | u64::from(self.waits.get());
        let values = [what, u64::from(lane) << 32 | u64::from(step), ns];
        self.ring.head.waiting.write(tag, values);
        ns
    }

    /// Records the end of a wait after `polls` polls. A wait that did not succeed stays in the record: the rank failed there.
    #[cold]
    pub fn wait_ends(&self, began_ns: u64, polls: u32, succeeded: bool) {
        let waited_ns = self.anchor().saturating_sub(began_ns);
        let counted = self.counted;
        ring::add(&counted.waits, 1);
        ring::add(&counted.waited_ns, waited_ns);
        if polls > self.yields {
            ring::add(&counted.slept, 1);
        }
        if let Some((tag, [_, _, before])) = self.slot.read()
            && tag == self.tag.get()
        {
            let before = if tag & ring::WAITED == 0 { 0 } else { before };
            self.slot.set(2, before.saturating_add(waited_ns));
            self.flag(ring::WAITED);
        }
        if succeeded {
            self.ring.head.waiting.retag(0);
        }
    }

    /// Records the end of a successful wait of a group of messages, which is part of no call.
    #[cold]
    pub fn wait_of_group_ends(&self) {
        self.ring.head.waiting.retag(0);
    }

    /// Reads both clocks, and returns the time.
    pub fn anchor(&self) -> u64 {
        let Anchor { ticks, ns } = self.both_clocks();
        // Tags must differ and must not be 0; ticks do.
        self.ring.head.last_anchor.write(ticks | 1, [ticks, ns]);
        ns
    }

    fn both_clocks(&self) -> Anchor {
        Anchor { ticks: self.clock.ticks(), ns: now_ns() }
    }

    /// Whether a failure has been recorded.
    pub fn has_failed(&self) -> bool {
        self.ring.head.state.load(Ordering::Relaxed) == ring::RANK_FAILED
    }

    /// Records the failure of the communicator. Returns the path of the record, if it is in a file.
    #[cold]
    pub fn fail(&mut self, failure: &Failure) -> Option<PathBuf> {
        if self.has_failed() {
            return None;
        }
        let head = self.ring.head;
        ring::add(&self.counted.errors, 1);
        if let Some((tag, _)) = self.slot.read()
            && tag & ring::STATE_BITS == ring::RUNNING
        {
            self.slot.set(1, self.clock.ticks());
            self.slot.retag((tag - ring::RUNNING + ring::FAILED) | ring::TIMED);
        }
        self.lineage.report_to_launcher(failure);
        head.error.write(&failure.why);
        head.blame.write(&record::pack_blame(failure));
        head.state.store(ring::RANK_FAILED, weftlink_shm::sync::Edge::Record.release());
        self.anchor();
        let files = self.files.as_mut()?;
        match folder::dump(&Record::of(&self.ring, Some(now_ns())), &files.folder) {
            Ok(path) => {
                files.is_dumped = true;
                Some(path)
            }
            Err(error) => {
                let folder = files.folder.display();
                let rank = head.rank.load(Ordering::Relaxed) as usize;
                tracing::warn!(target: "weft::fault", rank, "cannot write the record into {folder}: {error}");
                None
            }
        }
    }
}

/// Warns of environment variables that are misspelt settings, once, on rank 0. `weft run` warns itself.
fn warn_of_unknown_settings(rank: usize) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if rank == 0 {
        ONCE.call_once(|| {
            for (name, near) in weftlink_knobs::unknown_in_environment() {
                if let Some(near) = near {
                    tracing::warn!(target: "weft::fault", rank, "unknown setting {name}; did you mean {near}?");
                }
            }
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let (head, failed) = (self.ring.head, self.has_failed());
        // A forked process has the same memory and file, but is not this rank.
        if head.pid.load(Ordering::Relaxed) != u64::from(std::process::id()) {
            return;
        }
        if !failed {
            head.state.store(ring::RANK_LEFT, weftlink_shm::sync::Edge::Record.release());
        }
        // After a failure the file stays unless the record was written as JSON.
        if let Some(files) = self.files.take().filter(|files| !failed || files.is_dumped) {
            let _ = std::fs::remove_file(files.ring);
        }
    }
}
