//! What an endpoint knows of its communicator (who died, who left, who aborted), and the errors that follow for pending messages.

use std::cell::Cell;
use std::time::Instant;

use weftlink_bootstrap::{Blame, BlameKind, BootstrapError, Event, Reason, is_on_purpose};
use weftlink_p2p::{Direction, elements};
use weftlink_plan::DataType;
use weftlink_shm::counter::Counter;
use weftlink_shm::line::Poll;
use weftlink_shm::wait::{AbortCode, Waiter};

use super::completion::{Op, described, tag_of};
use crate::abort_note::ended_by;
use crate::durations::{ABORT_CAUSE, CAUSE_POLL};
use crate::error::Error;
use crate::identities::Identities;
use crate::transport::Fault;

/// The state of the communicator and its ranks. The lines are in memory that the endpoint keeps mapped.
pub(super) struct PeerStatus {
    pub(super) rank: usize,
    pub(super) waiter: Waiter<'static>,
    pub(super) departures: Vec<Counter<'static>>,
    pub(super) identities: Identities,
    /// Notifies ranks on other hosts.
    pub(super) notify: Box<dyn Fn(Event) + Send>,
    /// Why a rank aborted and which ranks it blames, once this rank has heard it.
    pub(super) abort_cause: Box<dyn Fn() -> Option<(String, Vec<Blame>)> + Send>,
    /// When messages began to end because of the abort.
    pub(super) ended_at: Cell<Option<Instant>>,
}

impl PeerStatus {
    /// Whether a rank has left: it has dropped its communicator and makes no more calls.
    #[inline]
    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.departures[rank].poll(1, 0, 1) == Poll::Ready && !mutant!("endpoint-does-not-see-departures")
    }

    /// Whether nothing more can be sent or received: the communicator was aborted, or dropped by this rank.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.waiter.aborted().is_some_and(|_| !mutant!("endpoint-does-not-see-aborts"))
            || self.has_left(self.rank)
    }

    /// The error of an operation that ends with the communicator.
    #[cold]
    pub(super) fn end_of(&self, op: &Op) -> Error {
        let (rank, call) = (self.rank as u32, op.id as u32);
        let Some(code) = self.waiter.aborted() else {
            return Error::gone(&format!(
                "rank {rank} dropped the communicator while its {} was pending",
                described(op)
            ));
        };
        if is_on_purpose(&self.waiter) {
            return ended_by(&self.waiter, &self.departures, rank, call, |rank, kind| {
                self.identities.blame(rank, kind)
            });
        }
        if Reason::is(code, Reason::Died) {
            let died = if mutant!("endpoint-blames-itself-for-a-death") { rank } else { code.rank };
            let (what, died) = (described(op), self.identities.blame(died, BlameKind::Died));
            return Error::Died { call, what, rank, died, waited: op.began.elapsed() };
        }
        let reason = Reason::name(code.reason);
        let (cause, mut blamed) = self.cause();
        if blamed.is_empty() {
            let lost = Reason::is(code, Reason::Lost);
            let kind = if lost { BlameKind::Unreachable } else { BlameKind::Failed };
            blamed.push(self.identities.blame(code.rank, kind));
        }
        Error::Aborted { call, rank, by: code.rank, reason, cause, blamed }
    }

    /// Why the communicator was aborted, and which ranks are blamed. That comes over sockets, later than the abort.
    fn cause(&self) -> (String, Vec<Blame>) {
        let since = self.ended_at.get().unwrap_or_else(Instant::now);
        self.ended_at.set(Some(since));
        loop {
            match (self.abort_cause)() {
                Some(heard) => return heard,
                None if since.elapsed() >= ABORT_CAUSE => return (String::new(), Vec::new()),
                None => std::thread::sleep(CAUSE_POLL),
            }
        }
    }

    /// The error of an operation whose peer has left.
    pub(super) fn left(&self, op: &Op, left: usize) -> Error {
        Error::Left {
            call: op.id as u32,
            rank: self.rank as u32,
            left: self.identities.blame(left as u32, BlameKind::Left),
        }
    }

    /// The error of an operation that timed out.
    pub(super) fn late(&self, op: &Op, now: Instant) -> Error {
        let (tag, bytes) = (tag_of(op), op.bytes);
        let late = |rank: usize| self.identities.blame(rank as u32, BlameKind::Late);
        let (what, step, blamed) = match op.direction {
            Direction::SendTo(to) => {
                let to = late(to);
                (format!("{to} to receive {bytes} bytes{tag}"), "send", vec![to])
            }
            Direction::ReceiveFrom(Some(from)) => {
                let from = late(from);
                (format!("a message of {bytes} bytes{tag} from {from}"), "receive", vec![from])
            }
            Direction::ReceiveFrom(None) => {
                (format!("a message of {bytes} bytes{tag} from any rank"), "receive", Vec::new())
            }
        };
        let waited = now.saturating_duration_since(op.began);
        let (call, rank) = (op.id as u32, self.rank as u32);
        Error::Deadline { call, rank, what, step: step.to_owned(), waited, blamed }
    }

    /// The error of an operation whose counterpart has another length or type.
    pub(super) fn differs(
        &self,
        op: &Op,
        other: usize,
        (bytes, data_type): (u64, Option<DataType>),
    ) -> Error {
        let (me, tag, theirs) = (self.rank, tag_of(op), elements(bytes, data_type));
        let theirs = match op.direction {
            Direction::SendTo(_) => format!("receive of {theirs}{tag} from rank {me}"),
            Direction::ReceiveFrom(_) => format!("send of {theirs}{tag} to rank {me}"),
        };
        let (call, rank) = (op.id as u32, me as u32);
        let other = self.identities.blame(other as u32, BlameKind::Differs);
        Error::Mismatch { call, rank, mine: described(op), other, theirs }
    }

    /// The error of a receive whose sender's memory cannot be read.
    pub(super) fn unreadable(&self, op: &Op, peer: usize, errno: i32) -> Error {
        let error = std::io::Error::from_raw_os_error(errno).to_string();
        let peer = self.identities.blame(peer as u32, BlameKind::Unreachable);
        Error::Unreadable { call: op.id as u32, rank: self.rank as u32, peer, errno, error }
    }

    /// The error of an operation whose connection failed.
    pub(super) fn broken(&self, op: &Op, peer: usize, fault: &Fault) -> Error {
        let what = match fault {
            Fault::Ended => "it has ended".to_owned(),
            Fault::Corrupt(what) => what.clone(),
        };
        let (call, rank) = (op.id as u32, self.rank as u32);
        let blamed = self.identities.blame(peer as u32, BlameKind::Unreachable);
        Error::Broken { call, rank, peer: blamed.to_string(), what, blamed: vec![blamed] }
    }

    /// Aborts the communicator for all ranks: a send timed out whose receiver may be pulling it.
    #[cold]
    pub(super) fn abort(&self, why: &Error) {
        let (rank, reason) = (self.rank as u32, Reason::Deadline.code());
        let first = self.waiter.abort(AbortCode { rank, reason });
        if first == (AbortCode { rank, reason }) && !mutant!("late-send-not-announced") {
            let (cause, blamed) = (why.to_string(), why.blamed());
            let error = BootstrapError::GaveUp { rank: self.rank, cause, blamed };
            (self.notify)(Event::Failed { rank, reason: reason.get(), culprit: rank, error });
        }
    }
}
