//! The report of a block: what a kernel writes, as the device code lays it out.

use weftlink_bootstrap::{Blame, BlameKind};

use super::REPORT_BYTES;

/// Indices of the 32-bit words of a report.
const KIND: usize = 0;
const LANE: usize = 2;
const SLICE: usize = 3;
const STEP: usize = 4;
const RANK: usize = 5;
const POLL: usize = 6;
const OTHER: usize = 7;
const TILE: usize = 8;
const CALL: usize = 9;
const WAITED_MS: usize = 10;
/// Of the first report only.
const STARTED: usize = 11;

/// What a block of a group of messages waits for.
const MESSAGE_SENT: u32 = 5;
const MESSAGE_TAKEN: u32 = 6;

/// Words of a rank that is gone.
const LEFT: u32 = 1;
const DIED: u32 = 2;

/// A block of a kernel: what it waits for, or why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// What happened.
    pub kind: ReportKind,
    /// The number of the call; 0 if it is a kernel of the program, of a window or of messages.
    pub call: u32,
    /// The lane of the plan.
    pub lane: u32,
    /// The slice of the elements.
    pub slice: u32,
    /// The step of the plan.
    pub step: u32,
    /// The tile of the call.
    pub tile: u32,
    /// The awaited rank, or the rank that failed.
    pub rank: u32,
    /// What the block waits for.
    pub poll: Poll,
    /// How long, when it last reported; 0 in a failure.
    pub waited_ms: u32,
    /// The rank that aborted, or the presence word of the rank that is gone.
    other: u32,
}

/// What a block reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// It waits for a rank.
    Waits,
    /// It waited until the time limit.
    TimedOut,
    /// The rank is in another call.
    Differs,
    /// A rank has aborted.
    Aborted,
    /// The call of the rank failed.
    PeerFailed,
    /// The rank is gone.
    Gone,
    /// A kernel of the program accessed memory outside of a window.
    Outside,
    /// Of another version.
    Unknown(u32),
}

/// What a block waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// The entry of a rank, which its kernel sends first.
    Entered,
    /// A counter.
    Reached,
    /// A message.
    Arrived,
    /// Room for a message.
    Credit,
    /// Something else, of another version.
    Other,
}

impl Poll {
    /// As in the records of calls on CPUs.
    pub(super) fn what(self) -> &'static str {
        match self {
            Poll::Entered => "to make the call",
            Poll::Reached | Poll::Other => "a signal",
            Poll::Arrived => "a message",
            Poll::Credit => "to receive",
        }
    }
}

impl BlockReport {
    /// Reads a report; nothing if it is empty or damaged.
    pub fn of_bytes(bytes: &[u8]) -> Option<BlockReport> {
        let bytes = bytes.get(..REPORT_BYTES)?;
        let word = |at: usize| word_of(bytes, at).unwrap_or(0);
        let kind = match word(KIND) {
            0 => return None,
            1 => ReportKind::Waits,
            2 => ReportKind::TimedOut,
            3 => ReportKind::Differs,
            4 => ReportKind::Aborted,
            5 => ReportKind::PeerFailed,
            6 => ReportKind::Gone,
            7 => ReportKind::Outside,
            kind => ReportKind::Unknown(kind),
        };
        let poll = match word(POLL) {
            0 => Poll::Entered,
            1 => Poll::Reached,
            2 | MESSAGE_SENT => Poll::Arrived,
            3 | MESSAGE_TAKEN => Poll::Credit,
            _ => Poll::Other,
        };
        Some(BlockReport {
            kind,
            call: word(CALL),
            lane: word(LANE),
            slice: word(SLICE),
            step: word(STEP),
            tile: word(TILE),
            rank: word(RANK),
            poll,
            waited_ms: word(WAITED_MS),
            other: word(OTHER),
        })
    }

    /// The call in the first of several reports, of which these are the bytes.
    pub(super) fn started_in(reports: &[u8]) -> Option<u32> {
        word_of(reports, STARTED)
    }

    /// Whether two readings of a report are of the same wait.
    pub(super) fn is_same(&self, other: &BlockReport) -> bool {
        *self == BlockReport { waited_ms: self.waited_ms, ..*other }
    }

    /// Why the kernel of a rank failed, in short: the program reports it at length once it has noticed.
    pub fn failure(&self) -> String {
        let BlockReport { call, rank, other, lane, .. } = self;
        let why = match self.kind {
            ReportKind::Waits => format!("a block waits for rank {rank}"),
            ReportKind::TimedOut => format!("it timed out waiting for rank {rank}"),
            ReportKind::Differs if self.poll == Poll::Arrived => {
                format!("rank {rank} sent a message of another length than this rank receives")
            }
            ReportKind::Differs => format!("rank {rank} is in another call"),
            ReportKind::Aborted => format!("rank {other} aborted the calls"),
            ReportKind::PeerFailed => format!("the call of rank {rank} failed"),
            ReportKind::Gone => format!("rank {rank} left, died or cannot be reached"),
            // Not of a call.
            ReportKind::Outside => {
                let what = match other {
                    0 => format!("accessed rank {rank} outside of window {lane}"),
                    _ => format!("multicast in window {lane}, which is not made for it"),
                };
                return format!("a kernel of the program {what}, which the program has not noticed yet");
            }
            ReportKind::Unknown(kind) => format!("its reason has the number {kind}"),
        };
        // Windows and messages have no calls.
        let of_call = if *call == 0 { String::new() } else { format!(" of call #{call}") };
        format!("the kernel{of_call} failed, which the program has not noticed yet: {why}")
    }

    /// The ranks that a failure blames, and the rank whose failure it passes on.
    pub fn blamed(&self) -> (Vec<Blame>, Option<u32>) {
        let kind = match self.kind {
            ReportKind::TimedOut => BlameKind::Late,
            ReportKind::Differs => BlameKind::Differs,
            ReportKind::Aborted => {
                return (vec![Blame::new(self.other, BlameKind::Aborted)], Some(self.other));
            }
            ReportKind::PeerFailed => return (Vec::new(), Some(self.rank)),
            ReportKind::Gone => match self.other {
                LEFT => BlameKind::Left,
                DIED => BlameKind::Died,
                _ => BlameKind::Unreachable,
            },
            ReportKind::Waits | ReportKind::Outside | ReportKind::Unknown(_) => return (Vec::new(), None),
        };
        (vec![Blame::new(self.rank, kind)], None)
    }

    /// Whether the ranks that a failure blames exist.
    pub(super) fn blames_below(&self, size: u32) -> bool {
        let (blamed, aborted_by) = self.blamed();
        blamed.iter().map(|blame| blame.rank).chain(aborted_by).all(|rank| rank < size)
    }
}

fn word_of(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(4 * at..4 * at + 4)?.try_into().ok()?))
}
