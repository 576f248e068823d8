//! A record: the contents of a recorder as data, which is written, merged and shown.

use serde::{Deserialize, Serialize};
use weftlink_bootstrap::{Blame, Failure};
use weftlink_plan::Collective;
use weftlink_shm::clock::{Anchor, Scale};
use weftlink_shm::line::distance;
use weftlink_shm::sync::{Edge, Ordering};

use super::ring::{self, CAPACITY_MAX, Ring};
use crate::header::{CallKind, Header};
use crate::waiting::Waiting;

/// The version of the JSON format.
const VERSION: u32 = 1;
/// A job with more ranks is an error.
const SIZE_MAX: u32 = 1 << 20;
/// Texts of files are cut to this many characters.
const TEXT_MAX: usize = 2000;

/// The last calls of a rank, and what it was doing when this was written. Times are nanoseconds of its host's monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version of the format.
    pub version: u32,
    /// The number of the communicator, the same on all its ranks, in hexadecimal.
    pub job: String,
    /// The rank.
    pub rank: u32,
    /// Ranks of the communicator.
    pub size: u32,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When the process started, in the kernel's ticks since boot; 0 is unknown.
    pub process_start: u64,
    /// The PID namespace of the process; 0 is unknown.
    pub pid_namespace: u64,
    /// The state of the rank.
    pub state: RankState,
    /// Its error.
    pub error: Option<String>,
    /// The ranks that the error blames; unknown in records of older versions.
    #[serde(default)]
    pub blamed: Vec<Blame>,
    /// The rank whose failure caused this one.
    #[serde(default)]
    pub aborted_by: Option<u32>,
    /// The settings in its environment.
    pub settings: Vec<String>,
    /// Add this to its times to get the time of day, which compares between hosts.
    pub realtime_offset_ns: i64,
    /// When this was written; unknown in the file of a killed process.
    pub taken_ns: Option<u64>,
    /// Its current wait, or the wait in which it failed.
    pub waiting: Option<WaitRecord>,
    /// Its last calls, the oldest first.
    pub calls: Vec<CallRecord>,
    /// What its kernels on a GPU reported, if the reader could see that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<KernelRecord>,
    /// The state of its process, if it was visible to the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// What the kernels of a rank on a GPU reported, beside their waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRecord {
    /// The last call in which a block waited for a millisecond or longer: its kernel has started. Later ones may have started, too.
    pub started: Option<u32>,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// It runs, or sleeps.
    Runs,
    /// A signal or a debugger stopped it; it can continue.
    Stopped,
    /// It has ended.
    Gone,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankState {
    /// Its communicator works.
    Running,
    /// Its communicator has failed.
    Failed,
    /// It has dropped its communicator.
    Left,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallRecord {
    /// Its number in its communicator.
    pub number: u32,
    /// A description.
    pub what: String,
    /// A hash of the arguments that all ranks must agree on: calls with different signatures differ.
    pub signature: u32,
    /// The collective, or `window`, or `load`.
    pub collective: String,
    /// Elements of a block.
    pub count: u64,
    /// The type of the elements, if known.
    pub data_type: Option<String>,
    /// The reduction.
    pub reduction: Option<String>,
    /// The plan, named after its algorithm.
    pub plan: String,
    /// Bytes of the larger of this rank's buffers.
    pub bytes: u64,
    /// Its state.
    pub state: CallState,
    /// When it began.
    pub start_ns: u64,
    /// When it ended, if recorded: small calls do not read the clock.
    pub end_ns: Option<u64>,
    /// How long it waited for other ranks, beyond spinning.
    pub waited_ns: u64,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallState {
    /// It was announced and has not ended.
    Running,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// It is on a stream of a GPU: it has not started, runs, or has ended.
    Enqueued,
    /// It is in a graph of a GPU, and runs when that is launched.
    Captured,
}

impl CallState {
    /// As it is written in records: `running`, `done`, `failed`, `enqueued`, `captured`.
    pub fn name(self) -> &'static str {
        match self {
            CallState::Running => "running",
            CallState::Done => "done",
            CallState::Failed => "failed",
            CallState::Enqueued => "enqueued",
            CallState::Captured => "captured",
        }
    }
}

/// A wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitRecord {
    /// The number of the call; for a group of messages, which is no call, the number of the call that follows; 0 for a kernel of the
    /// program.
    pub call: u32,
    /// Whether the wait is not part of a call, but of a group of messages or of a kernel of the program.
    #[serde(default)]
    pub in_group: bool,
    /// What the rank waits for: `to make the call`, `a message`, `to receive`, `a signal`, `others to allocate memory`, or
    /// `anything`.
    pub what: String,
    /// The awaited rank, if it is a single one.
    pub rank: Option<u32>,
    /// The lane of the plan.
    pub lane: Option<u32>,
    /// The step of the plan.
    pub step: Option<u32>,
    /// When the wait began.
    pub since_ns: u64,
    /// On a GPU: the blocks that wait for this rank, and all that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<[u32; 2]>,
}

/// Bytes cannot be read as a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Neither JSON nor the memory of a recorder; possibly truncated.
    #[error("not a record: {0}")]
    Unreadable(String),
    /// Written by another version of Weft. Read it with that version.
    #[error(
        "the record has version {0}, and this program reads version {VERSION}; use the version of Weft that wrote it"
    )]
    Version(u32),
    /// Values that no rank writes.
    #[error("the record is damaged: {0}")]
    Damaged(String),
}

impl Record {
    /// Reads the file of a rank that failed or was killed.
    pub fn read(bytes: &[u8]) -> Result<Record, RecordError> {
        if bytes.starts_with(&ring::MAGIC.to_le_bytes()) {
            let ring = Ring::of_bytes(bytes);
            let ring = ring
                .ok_or_else(|| RecordError::Unreadable("the memory of a recorder, truncated".to_owned()))?;
            return Record::of(&ring, None).checked();
        }
        let unreadable = |error: serde_json::Error| RecordError::Unreadable(error.to_string());
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_slice::<Versioned>(bytes).map_err(unreadable)?.version {
            VERSION => serde_json::from_slice::<Record>(bytes).map_err(unreadable)?.checked(),
            other => Err(RecordError::Version(other)),
        }
    }

    /// Reads three copies of a recorder's memory, made one after the other while its rank may write.
    pub(crate) fn of_copies(copies: [&[u8]; 3], taken_ns: u64) -> Result<Record, RecordError> {
        let ring = Ring::of_copies(copies);
        let ring = ring.ok_or_else(|| RecordError::Unreadable("it changed while it was read".to_owned()))?;
        Record::of(&ring, Some(taken_ns)).checked()
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists of them cannot fail to be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Writes it into a folder, as `weft-record-JOB-rankN.json`, and returns the path.
    pub fn dump(&self, folder: &std::path::Path) -> std::io::Result<std::path::PathBuf> {
        super::folder::dump(self, folder)
    }

    /// Whether its calls run on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        let is_enqueued = |call: &CallRecord| matches!(call.state, CallState::Enqueued | CallState::Captured);
        self.kernels.is_some() || self.calls.iter().any(is_enqueued)
    }

    /// The number of the last call, if there was any.
    pub fn last_number(&self) -> Option<u32> {
        self.calls.last().map(|call| call.number)
    }

    /// The contents of a recorder's memory.
    pub(super) fn of(ring: &Ring, taken_ns: Option<u64>) -> Record {
        let head = ring.head;
        let state = match head.state.load(Edge::Record.acquire()) {
            ring::RANK_FAILED => RankState::Failed,
            ring::RANK_LEFT => RankState::Left,
            _ => RankState::Running,
        };
        let word = |word: &weftlink_shm::sync::AtomicU64| word.load(Ordering::Relaxed);
        let anchor = |slot: Option<(u64, [u64; 2])>| {
            slot.map_or(Anchor { ticks: 0, ns: 0 }, |(_, [ticks, ns])| Anchor { ticks, ns })
        };
        let scale = Scale::between(anchor(head.first_anchor.read()), anchor(head.last_anchor.read()));
        let error = head.error.read();
        let failed = state == RankState::Failed;
        let blame = if failed { head.blame.read() } else { String::new() };
        let PackedBlame { blamed, aborted_by } = serde_json::from_str(&blame).unwrap_or_default();
        let mut calls: Vec<CallRecord> =
            ring.calls.iter().filter_map(|call| read_call(ring, call, &scale)).collect();
        // Numbers wrap, but those in a ring are close to each other.
        if let Some(newest) =
            calls.iter().map(|call| call.number).reduce(|a, b| if distance(a, b) > 0 { a } else { b })
        {
            calls.sort_by_key(|call| std::cmp::Reverse(newest.wrapping_sub(call.number)));
        }
        Record {
            version: VERSION,
            job: format!("{:012x}", word(&head.job)),
            rank: word(&head.rank).min(u64::from(u32::MAX)) as u32,
            size: word(&head.size).min(u64::from(u32::MAX)) as u32,
            host: head.host.read(),
            pid: word(&head.pid) as u32,
            process_start: word(&head.process_start),
            pid_namespace: word(&head.pid_namespace),
            state,
            error: failed.then_some(error),
            blamed,
            aborted_by,
            settings: head.settings.read().lines().map(str::to_owned).collect(),
            realtime_offset_ns: word(&head.realtime_offset_ns) as i64,
            taken_ns,
            waiting: head.waiting.read().map(read_waiting),
            calls,
            kernels: None,
            process: None,
        }
    }

    /// Checks the numbers, and removes control characters from texts.
    fn checked(mut self) -> Result<Record, RecordError> {
        let damaged = |what: String| Err(RecordError::Damaged(what));
        let Record { rank, size, .. } = self;
        if size > SIZE_MAX || rank >= size {
            return damaged(format!("rank {rank} of {size}"));
        }
        if self.calls.len() > CAPACITY_MAX {
            return damaged(format!("{} calls", self.calls.len()));
        }
        if let Some(rank) =
            self.waiting.as_ref().and_then(|waiting| waiting.rank).filter(|rank| *rank >= size)
        {
            return damaged(format!("it waits for rank {rank} of {size}"));
        }
        let named = self.blamed.iter().map(|blame| blame.rank).chain(self.aborted_by);
        if let Some(rank) = named.into_iter().find(|rank| *rank >= size) {
            return damaged(format!("it blames rank {rank} of {size}"));
        }
        if self.calls.windows(2).any(|pair| distance(pair[1].number, pair[0].number) <= 0) {
            return damaged("its calls are not in order".to_owned());
        }
        let texts =
            [&mut self.job, &mut self.host].into_iter().chain(&mut self.error).chain(&mut self.settings);
        let texts = texts.chain(self.blamed.iter_mut().flat_map(|blame| &mut blame.host));
        let texts = texts.chain(self.waiting.as_mut().map(|waiting| &mut waiting.what));
        let of_calls = self.calls.iter_mut().flat_map(|call| {
            let CallRecord { what, collective, plan, data_type, reduction, .. } = call;
            [what, collective, plan].into_iter().chain(data_type).chain(reduction)
        });
        texts.chain(of_calls).for_each(clean);
        Ok(self)
    }
}

/// Removes control characters, and cuts long text.
fn clean(text: &mut String) {
    if text.len() > TEXT_MAX || text.contains(char::is_control) {
        *text = text.chars().take(TEXT_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    }
}

fn read_call(ring: &Ring, slot: &ring::CallSlot, scale: &Scale) -> Option<CallRecord> {
    let (tag, [start, end, waited_ns]) = slot.read()?;
    let number = (tag >> ring::NUMBER_SHIFT) as u32;
    let state = match tag & ring::STATE_BITS {
        ring::RUNNING => CallState::Running,
        ring::DONE => CallState::Done,
        ring::FAILED => CallState::Failed,
        ring::ENQUEUED => CallState::Enqueued,
        ring::CAPTURED => CallState::Captured,
        _ => return None,
    };
    let at = (tag >> ring::DESCRIPTION_SHIFT) as usize & (ring.descriptions.len() - 1);
    // A description of a later call has replaced that of this one.
    let description = ring.descriptions[at]
        .read()
        .filter(|(first, _)| distance(number, (first >> ring::NUMBER_SHIFT) as u32) >= 0);
    let is_timed = tag & ring::TIMED != 0 && state != CallState::Running;
    let end_ns = is_timed.then(|| scale.ns(end));
    let waited_ns = if tag & ring::WAITED == 0 { 0 } else { waited_ns };
    let mut call = CallRecord {
        number,
        what: "unknown call (overwritten)".to_owned(),
        signature: 0,
        collective: "unknown".to_owned(),
        count: 0,
        data_type: None,
        reduction: None,
        plan: String::new(),
        bytes: 0,
        state,
        start_ns: scale.ns(start),
        end_ns,
        waited_ns,
    };
    if let Some((_, [plan, count, kind, bytes, plans, detail, root])) = description {
        let header = Header::unpack([plan, count, kind, 0, 0, detail, root]);
        call.what = header.to_string();
        call.signature = header.signature();
        call.collective = match header.what {
            CallKind::Collective(_) if plans == ring::NO_PLANS => {
                call.what = format!("load for {header}");
                "load"
            }
            CallKind::Collective(code) => {
                Collective::NAMES.get(usize::from(code)).copied().unwrap_or("unknown")
            }
            CallKind::Window => "window",
            CallKind::Load => "load",
            CallKind::Split => "split",
            CallKind::Endpoint => "endpoint",
        }
        .to_owned();
        call.count = count;
        call.data_type = header.data_type.map(|data_type| data_type.name().to_owned());
        call.reduction = header.reduction.map(|reduction| reduction.to_string());
        let index = if tag & ring::SYMMETRIC == 0 { plans & 0xffff_ffff } else { plans >> 32 };
        call.plan = ring.head.plans.get(index as usize).map_or_else(String::new, |name| name.read());
        call.bytes = bytes;
    }
    Some(call)
}

/// The blamed ranks of an error, as stored in a ring.
#[derive(Default, Serialize, Deserialize)]
struct PackedBlame {
    blamed: Vec<Blame>,
    aborted_by: Option<u32>,
}

/// The same as text, with as many ranks as fit.
pub(super) fn pack_blame(failure: &Failure) -> String {
    let mut packed = PackedBlame { blamed: failure.blamed.clone(), aborted_by: failure.aborted_by };
    loop {
        let text = serde_json::to_string(&packed).unwrap_or_default();
        if text.len() <= 8 * ring::BLAME_WORDS || packed.blamed.pop().is_none() {
            return text;
        }
    }
}

const MAKE_THE_CALL: u64 = 1;
const SIGNAL: u64 = 2;
const MESSAGE: u64 = 3;
const RECEIVE: u64 = 4;
const ANYTHING: u64 = 5;
const ALLOCATE: u64 = 6;
/// The wait until all ranks have allocated memory.
pub(super) const MEMORY: u64 = ALLOCATE << 32 | u32::MAX as u64;

/// Added to the waits of groups of messages.
pub(super) const OF_GROUP: u64 = 1 << 63;

/// A wait in one word: its kind, and the rank.
pub(super) fn pack_waiting(waiting: Waiting) -> u64 {
    let (kind, rank) = match waiting {
        Waiting::Entered { rank } => (MAKE_THE_CALL, rank),
        Waiting::Reached { rank, .. } => (SIGNAL, rank),
        Waiting::Message { from } => (MESSAGE, from),
        Waiting::Slot { to } | Waiting::Sent { to } => (RECEIVE, to),
        Waiting::Anything => (ANYTHING, u32::MAX),
    };
    kind << 32 | u64::from(rank)
}

fn read_waiting((tag, [what, step, since_ns]): (u64, [u64; 3])) -> WaitRecord {
    let some = |number: u32| (number != u32::MAX).then_some(number);
    let text = match (what & !OF_GROUP) >> 32 {
        MAKE_THE_CALL => "to make the call",
        SIGNAL => "a signal",
        MESSAGE => "a message",
        RECEIVE => "to receive",
        ALLOCATE => "others to allocate memory",
        _ => "anything",
    };
    WaitRecord {
        call: (tag >> ring::NUMBER_SHIFT) as u32,
        in_group: what & OF_GROUP != 0,
        what: text.to_owned(),
        rank: some(what as u32),
        lane: some((step >> 32) as u32),
        step: some(step as u32),
        since_ns,
        blocks: None,
    }
}
