//! After a failed call, by an error or a panic: the other ranks are aborted wherever they wait, and the call's windows become the
//! caller's alone.
//!
//! Peers may be anywhere in the call: not in it yet, or in a kernel that reads or writes this rank's windows. The rank cannot wait for
//! them, because one of them may be why the call failed; and the borrow of the windows ends when the call returns. So the rank
//! keeps a private copy of its part, and other communicators that use the same windows fail too (`symmetric.rs`).
//!
//! Deliberately absent: buffers that the plan does not expose to peers, which need none of this.

use std::sync::Arc;

use weftlink_bootstrap::{Bootstrap, Failure, Reason};
use weftlink_recorder::header::{Header, Location};
use weftlink_shm::wait::AbortCode;

use crate::engine::Engine;
use crate::error::Error;
use crate::shared::Shared;
use crate::symmetric::{Reached, Symmetric};

/// The abort code of a rank that could not set up a call.
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

/// Makes this rank's part of the windows of a failed call private, at the same address: peers that are in the call, or enter it
/// later, use the memory that they see. The communicator has been aborted.
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

/// Why a communicator was aborted; if it was not, this rank dropped an open window.
pub(crate) fn code_of(shared: &Shared, rank: usize) -> AbortCode {
    let ours = AbortCode { rank: rank as u32, reason: Reason::LeftOpen.code() };
    shared.waiter.aborted().unwrap_or(ours)
}

/// A running call. It is dropped only by a panic, and then aborts the call on all ranks.
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
