//! What a call leaves behind when it does not end well, by an error or a panic: the word to the other ranks, wherever
//! they wait, and memory that is the caller's alone again.
//!
//! A rank that has announced a call may find its peers anywhere in it: not there yet, or in the middle of a kernel that
//! reads or writes its windows. They cannot be waited for, since one of them may be what the call failed for; and the
//! borrow of the windows ends when the call returns. So the rank keeps a copy of its part of them, and other communicators that use
//! the same windows fail with it (`symmetric.rs`).
//!
//! Deliberately absent: buffers that plans do not let peers reach, which need none of this.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::blame::Failure;
use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::engine::Engine;
use crate::error::Error;
use crate::header::{Header, Location};
use crate::shared::Shared;
use crate::symmetric::Symmetric;
use crate::wait::{AbortCode, Waiter};

/// Why a rank gave up, as others read it.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    Mismatch = 1,
    Deadline = 2,
    Left = 3,
    Memory = 4,
    Panicked = 5,
    Unreadable = 6,
    Unfit = 7,
    LeftOpen = 8,
    Died = 9,
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
    pub(crate) fn of(error: &BootstrapError, rank: u32) -> AbortCode {
        use BootstrapError as E;
        let (rank, reason) = match error {
            E::Missing { .. } | E::NoAnswer { .. } | E::Late { .. } | E::NobodyListens { .. } => {
                (rank, Reason::Deadline)
            }
            E::Lost { rank, .. } => (*rank as u32, Reason::Lost),
            E::Minority { others, .. } => (others.first().map_or(rank, |other| *other as u32), Reason::Lost),
            E::Died { rank, .. } => (*rank as u32, Reason::Died),
            E::GaveUp { rank, .. } => (*rank as u32, Reason::GaveUp),
            E::Left { .. } => (rank, Reason::Left),
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

    /// The abort code of a rank that could not prepare a call.
    pub(crate) fn of_preparing(error: &Error, rank: u32) -> AbortCode {
        let reason = match error {
            Error::Bootstrap(error) => return Reason::of(error, rank),
            Error::System { .. } => Reason::System,
            Error::Refused(_) | Error::Unfit { .. } => Reason::Unfit,
            _ => Reason::Setup,
        };
        AbortCode { rank, reason: reason.code() }
    }

    pub(crate) fn code(self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self as u32 - 1)
    }

    /// Whether this is why somebody gave up.
    pub(crate) fn is(code: AbortCode, reason: Reason) -> bool {
        code.reason == reason.code()
    }

    pub(crate) fn name(code: NonZeroU32) -> &'static str {
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

/// Whether a communicator has been ended on purpose, rather than because something went wrong.
pub(crate) fn is_on_purpose(waiter: &Waiter<'_>) -> bool {
    let purposes = [
        if mutant!("cancel-is-a-failure") { Reason::Ended } else { Reason::Cancelled }.code(),
        Reason::Ended.code(),
    ];
    waiter.aborted().is_some_and(|code| purposes.contains(&code.reason))
}

/// The windows of a call's input and output, if its plan reaches into them.
pub(crate) type Reached = [Option<u16>; 2];

#[inline]
pub(crate) fn reached(engine: &Engine, header: &Header) -> Reached {
    if engine.reaches_users() { windows_of(header) } else { [None; 2] }
}

/// The windows in which a call's input and output lie.
#[inline]
pub(crate) fn windows_of(header: &Header) -> Reached {
    [header.input, header.output].map(|location| match location {
        Location::Window { number, .. } => Some(number),
        Location::Private { .. } => None,
    })
}

/// After a call that did not end well: peers may be anywhere in it, or come to it later, and use the windows that were
/// passed to it. Those are the caller's again as soon as the call returns, so this rank keeps a copy of its part, at the
/// same address, and leaves to the peers what they see. The communicator has been aborted.
#[cold]
pub(crate) fn take_back(
    shared: &Shared,
    windows: &[Arc<Symmetric>],
    reached: Reached,
    (rank, identity): (usize, u64),
    why: &Failure,
) {
    let [input, output] = if mutant!("windows-not-taken-back") { [None; 2] } else { reached };
    let code = code_of(shared, rank);
    for number in input
        .into_iter()
        .chain(output.filter(|_| output != input && !mutant!("output-window-not-taken-back")))
        .map(usize::from)
    {
        let stride = shared.windows[number].stride;
        windows[number].take_back((rank * stride, stride), identity, code, why);
    }
}

/// Why a communicator was aborted; if it was not, a rank lets go of a window that was open.
pub(crate) fn code_of(shared: &Shared, rank: usize) -> AbortCode {
    let ours = AbortCode { rank: rank as u32, reason: Reason::LeftOpen.code() };
    shared.waiter.aborted().unwrap_or(ours)
}

/// A call that is being run. It is only ever dropped by a panic, and then ends for all ranks what is left of it.
pub(crate) struct Unfinished<'a> {
    pub(crate) rank: usize,
    pub(crate) identity: u64,
    pub(crate) shared: &'a Shared,
    pub(crate) windows: &'a [Arc<Symmetric>],
    pub(crate) reached: Reached,
    pub(crate) bootstrap: &'a mut Bootstrap,
    pub(crate) failed: &'a mut Option<Failure>,
}

impl Drop for Unfinished<'_> {
    #[cold]
    fn drop(&mut self) {
        let (rank, reason) = (self.rank as u32, Reason::Panicked.code());
        self.shared.waiter.abort(AbortCode { rank, reason });
        let why = Failure::own(rank, format!("rank {rank} panicked in a call"));
        self.bootstrap.give_up(&why, rank, reason.get());
        take_back(self.shared, self.windows, self.reached, (self.rank, self.identity), &why);
        *self.failed = Some(why);
    }
}
