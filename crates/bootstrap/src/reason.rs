//! Why a rank aborted a communicator, as a number in the abort word.

use std::num::NonZeroU32;

use weftlink_shm::wait::{AbortCode, Waiter};

use crate::error::BootstrapError;
use crate::message::Event;

/// Why a rank gave up, as others read it.
#[derive(Clone, Copy)]
pub enum Reason {
    /// Ranks make different calls.
    Mismatch = 1,
    /// A timeout.
    Deadline = 2,
    /// A rank left the communicator before the call.
    Left = 3,
    /// No shared memory.
    Memory = 4,
    /// A panic in a call.
    Panicked = 5,
    /// A peer's memory could not be read.
    Unreadable = 6,
    /// The plan does not fit the call.
    Unfit = 7,
    /// A window was dropped while it was open.
    LeftOpen = 8,
    /// A process ended.
    Died = 9,
    /// A connection carried wrong bytes.
    Broken = 10,
    /// The connection between two ranks is of no more use; both may live.
    Lost = 13,
    /// Ranks disagree about how much one sends the other.
    Counts = 18,
    /// On purpose: a call was cancelled.
    Cancelled = 11,
    /// On purpose: the program said so.
    Ended = 12,
    /// It could not go on outside of a call, because another rank gave up.
    GaveUp = 14,
    /// A rank sent a message that does not belong there.
    Protocol = 15,
    /// What ranks set up together cannot be set up like this.
    Setup = 16,
    /// The system refused a thread or a descriptor.
    System = 17,
}

impl Reason {
    /// The abort code of a rank that could not go on outside of a call.
    pub fn of(error: &BootstrapError, rank: u32) -> AbortCode {
        use BootstrapError as E;
        let (rank, reason) = match error {
            E::Missing { .. } | E::NoAnswer { .. } | E::Late { .. } | E::NobodyListens { .. } => {
                (rank, Reason::Deadline)
            }
            E::Lost { rank, .. } => (*rank as u32, Reason::Lost),
            E::Minority { others, .. } => (others.first().map_or(rank, |other| *other as u32), Reason::Lost),
            E::Died { rank, .. } => (*rank as u32, Reason::Died),
            E::GaveUp { rank, .. } => (*rank as u32, Reason::GaveUp),
            E::Left { .. } | E::Excluded { .. } => (rank, Reason::Left),
            E::Mismatch { .. } => (rank, Reason::Mismatch),
            E::Memory { .. } => (rank, Reason::Memory),
            E::Protocol { .. } => (rank, Reason::Protocol),
            E::System { .. } => (rank, Reason::System),
            E::BadCall { .. } | E::Place { .. } | E::Refused { .. } | E::Poisoned { .. } => {
                (rank, Reason::Setup)
            }
        };
        AbortCode { rank, reason: reason.code() }
    }

    /// As it stands in the abort word.
    pub fn code(self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self as u32 - 1)
    }

    /// Whether this is why somebody gave up.
    pub fn is(code: AbortCode, reason: Reason) -> bool {
        code.reason == reason.code()
    }

    /// What a code means.
    pub fn name(code: NonZeroU32) -> &'static str {
        match code.get() {
            code if code == Reason::Mismatch as u32 => "calls differ",
            code if code == Reason::Counts as u32 => "counts differ",
            code if code == Reason::Left as u32 => "a rank has left",
            code if code == Reason::Memory as u32 => "it could not share memory",
            code if code == Reason::Panicked as u32 => "it panicked",
            code if code == Reason::Unreadable as u32 => "it could not read a peer's memory",
            code if code == Reason::LeftOpen as u32 => "it dropped a window that was open",
            code if code == Reason::Cancelled as u32 => "it cancelled a call",
            code if code == Reason::Ended as u32 => "its program aborted the communicator",
            code if code == Reason::Unfit as u32 => "its plan does not fit the call",
            code if code == Reason::Died as u32 => "a rank has died",
            code if code == Reason::Broken as u32 => "a connection is broken",
            code if code == Reason::Lost as u32 => "a connection was lost",
            code if code == Reason::GaveUp as u32 => "it could not go on",
            code if code == Reason::Protocol as u32 => "a rank broke the protocol",
            code if code == Reason::Setup as u32 => "it could not set up what the call needs",
            code if code == Reason::System as u32 => "the system refused it a thread or a descriptor",
            _ => "a deadline passed",
        }
    }
}

/// The event of a rank that gives its group up because of an error.
pub(super) fn failed_event(rank: u32, error: &BootstrapError) -> Event {
    let code = Reason::of(error, rank);
    Event::Failed { rank, reason: code.reason.get(), culprit: code.rank, error: error.clone() }
}

/// The error that an event carries.
pub(super) fn error_in(event: Event) -> BootstrapError {
    match event {
        Event::Failed { error, .. } => error,
        other => BootstrapError::Protocol { rank: 0, what: format!("it said {other:?}") },
    }
}

/// Whether a communicator has been ended on purpose, rather than because something went wrong.
pub fn is_on_purpose(waiter: &Waiter<'_>) -> bool {
    let purposes = [
        if mutant!("cancel-is-a-failure") { Reason::Ended } else { Reason::Cancelled }.code(),
        Reason::Ended.code(),
    ];
    waiter.aborted().is_some_and(|code| purposes.contains(&code.reason))
}
