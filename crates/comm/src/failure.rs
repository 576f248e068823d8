//! What a call leaves behind when it does not end well, by an error or a panic: the word to the other ranks, wherever
//! they wait, and memory that is the caller's alone again.
//!
//! A rank that has announced a call may find its peers anywhere in it: not there yet, or in the middle of a kernel that
//! reads or writes its windows. They cannot be waited for, since one of them may be what the call failed for; and the
//! borrow of the windows ends when the call returns. So the rank keeps a copy of its part of them, and other communicators that use
//! the same windows fail with it (`symmetric.rs`).
//!
//! Deliberately absent: buffers that plans do not let peers reach, which need none of this.

use std::sync::Arc;

use weftlink_bootstrap::{Bootstrap, Failure, Reason};
use weftlink_recorder::header::{Header, Location};
use weftlink_shm::wait::AbortCode;

use crate::engine::Engine;
use crate::error::Error;
use crate::shared::Shared;
use crate::symmetric::{Reached, Symmetric};

/// The abort code of a rank that could not prepare a call.
pub(crate) fn code_of_preparing(error: &Error, rank: u32) -> AbortCode {
    let reason = match error {
        Error::Bootstrap(error) => return Reason::of(error, rank),
        Error::System { .. } => Reason::System,
        Error::Refused(_) | Error::Unfit { .. } => Reason::Unfit,
        _ => Reason::Setup,
    };
    AbortCode { rank, reason: reason.code() }
}

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
