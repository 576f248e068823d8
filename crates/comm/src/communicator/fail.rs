//! What a call that does not end well is told to be: who or what is to blame, asked of all who may know before it is said.
//!
//! A rank sees the end of a connection, memory that cannot be read, silence, a word that somebody gave up. What it should say is
//! what that came from: a death, a departure, another call, a rank that is stopped. Others may be just about to tell, so it
//! gives them a moment.
//!
//! Deliberately absent: what is left to do for memory that was passed to the call (`failure.rs`).

use std::time::{Duration, Instant};

use weftlink_bootstrap::{Blame, BlameKind, Failure, ROOTS_LIMIT, Reason, is_on_purpose};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::counter::Counter;
use weftlink_shm::line::Poll;
use weftlink_shm::wait::{AbortCode, Stop};

use super::Communicator;
use crate::engine::Stopped;
use crate::error::Error;
use crate::failure::take_back;
use crate::shared::{Call, HEADERS};
use crate::symmetric::Reached;
use crate::wire::Fault;

/// How many calls ranks on different hosts show each other when one does not fit.
const COMPARED_MAX: u32 = HEADERS as u32 / 2;

/// How long it may take to hear that a rank has died whose memory is gone.
const BURIAL_LIMIT: Duration = Duration::from_secs(2);
/// How long for the words of a rank that gave up, where something can be said without them.
const WORD_LIMIT: Duration = Duration::from_millis(300);

impl Communicator {
    /// The error that shows a call in which another rank differs, if there is one.
    pub(super) fn mismatch(&self, call: &Call<'_>) -> Option<Error> {
        let (number, mine, other, theirs) = self.shared.difference(self.rank, call)?;
        let rank = self.rank as u32;
        let (mine, theirs) = (mine.to_string(), theirs.to_string());
        Some(Error::Mismatch { call: number, rank, mine, other, theirs })
    }

    /// Gives up for all ranks, and tells why.
    #[cold]
    pub(super) fn fail(&mut self, call: &Call<'_>, stopped: &Stopped, reached: Reached) -> Error {
        let rank = self.rank as u32;
        let reason = match stopped.stop {
            Stop::Mismatch { .. } => Reason::Mismatch,
            Stop::Left { .. } => Reason::Left,
            Stop::Unreadable { rank, .. } => self.bury(rank).unwrap_or(Reason::Unreadable),
            // What came and is wrong is no sign of a death.
            Stop::Broken if !self.has_only_ended() => Reason::Broken,
            Stop::Broken => {
                let (peer, _) = self.broken(stopped.waiting.rank());
                let died = peer.and_then(|rank| self.bury(rank));
                let left = || self.shared.left(call).map(|_| Reason::Left);
                died.or_else(left).unwrap_or(Reason::Broken)
            }
            Stop::Deadline { .. } | Stop::Aborted { .. } => Reason::Deadline,
        };
        let mine = AbortCode { rank, reason: reason.code() };
        let first = self.shared.waiter.abort(mine);
        if Reason::is(first, Reason::Mismatch) {
            self.compare(call);
        }
        // A rank that gave up is soon gone, and may be missed before it is heard. What it said counts, not that it left.
        let stop = match stopped.stop {
            Stop::Broken if first == mine && Reason::is(mine, Reason::Left) => {
                self.shared.left(call).map_or(Stop::Broken, |rank| Stop::Left { rank })
            }
            Stop::Left { .. } if first != mine && !mutant!("departure-outweighs-abort") => {
                Stop::Aborted { code: first, waited: Duration::ZERO }
            }
            Stop::Broken if first != mine && self.has_only_ended() => {
                Stop::Aborted { code: first, waited: Duration::ZERO }
            }
            stop => stop,
        };
        let step = match stopped.step {
            Some((lane, ordinal)) => format!("lane {lane}, step {ordinal}"),
            None => "no lane could go on".to_owned(),
        };
        let name = |rank: u32| self.bootstrap.name(rank as usize);
        let what = match stopped.waiting {
            Waiting::Entered { rank } => format!("{} to make the call", name(rank)),
            Waiting::Reached { rank, counter } => format!("{} to signal counter {counter}", name(rank)),
            Waiting::Message { from } => format!("a message from {}", name(from)),
            Waiting::Slot { to } => format!("{} to receive", name(to)),
            Waiting::Sent { to } => format!("messages to {} to be on their way", name(to)),
            Waiting::Anything => "other ranks".to_owned(),
        };
        let direct = stopped.waiting.rank();
        let late = match stop {
            Stop::Deadline { waited } | Stop::Aborted { waited, .. }
                if Reason::is(first, Reason::Deadline) =>
            {
                Some((waited, self.late(stopped.waiting, what.clone(), first)))
            }
            _ => None,
        };
        let name = |rank: u32| self.bootstrap.name(rank as usize);
        let error = match stop {
            // Whatever this rank noticed first followed from it.
            _ if is_on_purpose(&self.shared.waiter) => self.ended(call.number),
            Stop::Unreadable { .. } | Stop::Aborted { .. } | Stop::Broken
                if Reason::is(first, Reason::Lost)
                    && self.has_only_ended()
                    && let Some((by, to, what)) = self.bootstrap.lost(BURIAL_LIMIT) =>
            {
                let ends = [to, by].into_iter().filter(|end| *end != rank);
                let blamed = ends.map(|end| self.blame(end, BlameKind::Unreachable)).collect();
                let (peer, what) = (name(to), format!("it {what}"));
                Error::Broken { call: call.number, rank: by, peer, what, blamed }
            }
            Stop::Unreadable { .. } | Stop::Aborted { .. } | Stop::Broken
                if Reason::is(first, Reason::Died) =>
            {
                let waited = if let Stop::Aborted { waited, .. } = stop { waited } else { Duration::ZERO };
                // A rank that gave up because calls differ is soon gone, and its end may be heard before its reason.
                self.mismatch(call).unwrap_or_else(|| self.died(call, first.rank, waited))
            }
            Stop::Deadline { .. } | Stop::Aborted { .. }
                if let Some((waited, Some((what, blamed)))) = late =>
            {
                Error::Deadline { call: call.number, rank, what, step, waited, blamed }
            }
            Stop::Deadline { waited } => {
                let blamed = direct.into_iter().map(|rank| self.blame(rank, BlameKind::Late)).collect();
                Error::Deadline { call: call.number, rank, what, step, waited, blamed }
            }
            Stop::Left { rank: left } => {
                self.mismatch(call).unwrap_or(Error::Left { call: call.number, rank, left })
            }
            Stop::Broken => {
                let (peer, what) = self.broken(direct);
                let blamed = peer.into_iter().map(|peer| self.blame(peer, BlameKind::Unreachable)).collect();
                let peer = peer.map_or("another host".to_owned(), name);
                Error::Broken { call: call.number, rank, peer, what, blamed }
            }
            Stop::Unreadable { rank: peer, error } => {
                let error = std::io::Error::from_raw_os_error(error).to_string();
                Error::Unreadable { call: call.number, rank, peer, error }
            }
            Stop::Aborted { .. }
                if Reason::is(first, Reason::Left)
                    && let Some(left) = self.shared.left(call) =>
            {
                Error::Left { call: call.number, rank, left }
            }
            Stop::Mismatch { .. } | Stop::Aborted { .. } => self.mismatch(call).unwrap_or_else(|| {
                let reason = Reason::name(first.reason);
                // A rank that has left may not have passed on what others said; that it has left can be seen.
                let has_left = |departure: &Counter<'_>| departure.poll(1, 0, 1) == Poll::Ready;
                let left = self.shared.departures.iter().position(has_left);
                let left = left.filter(|_| Reason::is(first, Reason::Left));
                let patience = if left.is_some() { WORD_LIMIT } else { BURIAL_LIMIT };
                let (cause, blamed) = match (self.bootstrap.cause(patience), left) {
                    (Some(cause), _) => cause,
                    (None, Some(left)) => {
                        (format!("rank {left} has left"), vec![self.blame(left as u32, BlameKind::Left)])
                    }
                    (None, None) => (String::new(), vec![self.blame(first.rank, BlameKind::Failed)]),
                };
                Error::Aborted { call: call.number, rank, by: first.rank, reason, cause, blamed }
            }),
        };
        let failure = Failure::from(&error);
        // Ranks that are not in a call but allocate something hear of it there.
        self.bootstrap.give_up(&failure, first.rank, first.reason.get());
        take_back(&self.shared, &self.windows, reached, (self.rank, self.identity), &failure);
        self.note_failure(failure);
        error
    }

    /// Whom a call waited for that a deadline ended, as far as anybody can tell. Ranks wait for each other in chains, and only
    /// one that is stopped, or does something else than the call, does not say so now. They are asked before the group is given up: what
    /// is said then stands, also for those who hear it later.
    #[cold]
    fn late(&self, waiting: Waiting, what: String, first: AbortCode) -> Option<(String, Vec<Blame>)> {
        let direct = waiting.rank();
        let roots = self.bootstrap.roots(direct, first.rank, ROOTS_LIMIT);
        if roots.is_empty() || direct.is_some_and(|rank| roots.contains(&(rank as usize))) {
            return direct.map(|rank| (what, vec![self.blame(rank, BlameKind::Late)]));
        }
        let roots: Vec<u32> = roots.into_iter().map(|rank| rank as u32).collect();
        let blamed = roots.iter().map(|rank| self.blame(*rank, BlameKind::Late)).collect();
        Some((self.shared.crier.whom(direct, &roots), blamed))
    }

    fn blame(&self, rank: u32, kind: BlameKind) -> Blame {
        self.bootstrap.blame(rank, kind)
    }

    /// Which connection is of no more use, and why.
    fn broken(&self, awaited: Option<u32>) -> (Option<u32>, String) {
        let faults = (0..self.size as u32).filter_map(|rank| Some((rank, self.ports.fault(rank)?)));
        // What came and is wrong says more than that nothing comes any more, and others may have left in good order.
        match faults.max_by_key(|(rank, fault)| (**fault != Fault::Ended, Some(*rank) == awaited)) {
            Some((rank, Fault::Corrupt(what))) => (Some(rank), what.clone()),
            Some((rank, Fault::Ended)) => (Some(rank), "it has ended".to_owned()),
            None => (None, "it has ended".to_owned()),
        }
    }

    /// Whether connections have ended, and nothing worse.
    fn has_only_ended(&self) -> bool {
        (0..self.size as u32).filter_map(|rank| self.ports.fault(rank)).all(|fault| *fault == Fault::Ended)
    }

    /// Ranks that differ may be on different hosts. Shows what this one calls, and gives the others a moment to do the same.
    #[cold]
    pub(super) fn compare(&self, call: &Call<'_>) {
        let Some(tell) =
            self.shared.crier.tell.as_ref().filter(|_| !mutant!("mismatch-not-compared-across-hosts"))
        else {
            return;
        };
        // What is left over from an earlier call may be what was noticed.
        (0..COMPARED_MAX).for_each(|back| tell(call.number.wrapping_sub(back)));
        let began = Instant::now();
        while began.elapsed() < BURIAL_LIMIT && self.shared.difference(self.rank, call).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn died(&self, call: &Call<'_>, died: u32, waited: Duration) -> Error {
        let name = self.bootstrap.name(died as usize);
        let what = call.header.to_string();
        Error::Died { call: call.number, what, rank: self.rank as u32, died, name, waited }
    }

    /// A rank whose memory is gone is most likely dead. Whoever watches it says so in a moment.
    #[cold]
    fn bury(&self, rank: u32) -> Option<Reason> {
        let began = Instant::now();
        while began.elapsed() < BURIAL_LIMIT && !mutant!("deaths-not-awaited") {
            match self.shared.waiter.aborted() {
                Some(code) => {
                    let is_it = |reason: &Reason| code.rank == rank && Reason::is(code, *reason);
                    return [Reason::Died, Reason::Lost].into_iter().find(is_it);
                }
                // It has left in good order.
                None if self.shared.departures[rank as usize].poll(1, 0, 1) == Poll::Ready => return None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }
}
