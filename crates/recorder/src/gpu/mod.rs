//! What the kernels of a rank on a GPU wait for: memory that kernels write, and that any process may read at any time, also if the rank's
//! process is stopped or waits in the driver.
//!
//! ```text
//! head         one page of 64-bit words: magic, version, number of reports, rank, size, process, communicator
//! reports [n]  64 bytes each: the first failure, then the current wait of each block
//! ```
//!
//! A block that has waited for a millisecond reports it, and again every millisecond; it clears the report when the wait ends. The first
//! report also has the number of the last call in which a block reported anything.
//!
//! The calls of the rank are in its recorder, in the order in which the program enqueued them: when they run is not recorded there. So a reader
//! knows less of a GPU than of a CPU:
//!
//! - A block that waits in a call has started it, and all calls before it on this rank have ended, except calls in graphs, which run again.
//! - A rank that reports nothing runs without waiting, or has ended all its calls, or its next kernel has not started.
//!
//! Deliberately absent: mapping the memory for kernels, which the executor does with its driver.

mod report;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use weftlink_shm::memory::SharedMemory;

pub use report::{BlockReport, Poll, ReportKind};

use crate::recorder::{self, KernelRecord, Owner, RankState, Record, WaitRecord};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"weftgpuw");
const VERSION: u64 = 1;
/// The name of the memory among the mappings of a process.
pub(crate) const NAME: &str = "weft: gpu waits";
/// The offset of the reports.
const HEAD_BYTES: usize = 4096;
/// The bytes of a report.
pub const REPORT_BYTES: usize = 64;
/// The most reports of a rank.
pub(crate) const REPORTS_MAX: usize = 1 << 16;

/// The bytes of memory with this many reports.
pub(crate) fn bytes_of(reports: usize) -> usize {
    HEAD_BYTES + reports * REPORT_BYTES
}

/// The memory for the reports of a rank, zeroed.
#[derive(Debug)]
pub struct ReportMemory {
    memory: SharedMemory,
    /// Readers open it, which needs fewer privileges than reading the memory of a process.
    _descriptor: Option<OwnedFd>,
}

impl ReportMemory {
    /// Allocates memory for reports that readers find by its name.
    pub fn create(owner: Owner, reports: usize) -> io::Result<ReportMemory> {
        let reports = reports.clamp(1, REPORTS_MAX);
        let (memory, descriptor) = SharedMemory::create(NAME, bytes_of(reports))
            .map_err(|error| io::Error::other(error.to_string()))?;
        let (rank, size, pid) = (owner.rank as u64, owner.size as u64, u64::from(std::process::id()));
        let head = [MAGIC, VERSION, reports as u64, rank, size, pid, owner.job];
        let bytes = head.map(u64::to_le_bytes).concat();
        let file = File::from(descriptor);
        // The magic comes last: a reader may look at any time.
        file.write_all_at(&bytes[8..], 8)?;
        file.write_all_at(&bytes[..8], 0)?;
        Ok(ReportMemory { memory, _descriptor: recorder::kept_open(file.into()) })
    }

    /// Where the memory starts, at a page's boundary.
    pub fn start(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// All its bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The offset of the first report.
    pub fn reports_at(&self) -> usize {
        HEAD_BYTES
    }
}

/// What the kernels of a rank reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelReports {
    /// The rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// The number of the communicator.
    pub job: u64,
    /// The last call in which a block reported anything; nothing if none has.
    pub started: Option<u32>,
    /// Why the first block failed.
    pub failure: Option<BlockReport>,
    /// What blocks wait for.
    pub waits: Vec<BlockReport>,
}

impl KernelReports {
    /// Reads three copies of the memory, made one after the other while kernels may write. Reports that changed in between are left out. Nothing
    /// if the bytes are not such memory.
    pub fn of_copies(copies: [&[u8]; 3]) -> Option<KernelReports> {
        let [before, bytes, after] = copies;
        let word = |at: usize| {
            let word = bytes.get(8 * at..8 * at + 8)?;
            Some(u64::from_le_bytes(word.try_into().ok()?))
        };
        let reports = usize::try_from(word(2)?).ok().filter(|reports| (1..=REPORTS_MAX).contains(reports))?;
        let [rank, size, pid] = [3, 4, 5].map(|at| u32::try_from(word(at)?).ok());
        let (rank, size, pid) = (rank?, size?, pid?);
        let is_whole = copies.iter().all(|copy| copy.len() >= bytes_of(reports));
        let is_one = before.get(..HEAD_BYTES) == after.get(..HEAD_BYTES);
        if word(0)? != MAGIC || word(1)? != VERSION || !is_whole || !is_one || rank >= size {
            return None;
        }
        let report =
            |at: usize, bytes: &[u8]| BlockReport::of_bytes(bytes.get(bytes_of(at)..bytes_of(at + 1))?);
        let stable = |at: usize| {
            let [before, report, after] = [before, bytes, after].map(|copy| report(at, copy));
            // A kernel of the program may have named a rank that does not exist.
            let report = report.filter(|report| report.rank < size || report.kind == ReportKind::Outside)?;
            (before?.is_same(&report) && report.is_same(&after?)).then_some(report)
        };
        let started = bytes.get(bytes_of(0)..).and_then(BlockReport::started_in).filter(|call| *call != 0);
        let is_wait = |report: &BlockReport| report.kind == ReportKind::Waits;
        Some(KernelReports {
            rank,
            pid,
            job: word(6)?,
            started,
            failure: stable(0).filter(|report| !is_wait(report) && report.blames_below(size)),
            waits: (1..reports).filter_map(stable).filter(is_wait).collect(),
        })
    }

    /// Adds what the kernels of a rank wait for to its record.
    pub(crate) fn merge_into(&self, record: &mut Record) {
        record.kernels = Some(KernelRecord { started: self.started });
        if let Some(failure) = &self.failure
            && record.state == RankState::Running
        {
            record.state = RankState::Failed;
            record.error = Some(failure.failure());
            (record.blamed, record.aborted_by) = failure.blamed();
        }
        // Of several, the wait that began first is closest to the cause.
        let Some(longest) =
            self.waits.iter().reduce(|one, other| if other.waited_ms > one.waited_ms { other } else { one })
        else {
            return;
        };
        let alike = self.waits.iter().filter(|wait| wait.rank == longest.rank);
        let taken_ns = record.taken_ns.unwrap_or(0);
        record.waiting = Some(WaitRecord {
            call: longest.call,
            in_group: longest.call == 0,
            what: longest.poll.what().to_owned(),
            rank: Some(longest.rank),
            lane: Some(longest.lane),
            step: Some(longest.step),
            since_ns: taken_ns.saturating_sub(u64::from(longest.waited_ms) * 1_000_000),
            blocks: Some([alike.count(), self.waits.len()].map(|blocks| blocks as u32)),
        });
    }
}

#[cfg(test)]
mod tests;
