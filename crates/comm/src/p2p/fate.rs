//! How the communicator of a endpoint fares, and what that makes of messages that are not over: who died, who left, who ended it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use weftlink_bootstrap::{Blame, BlameKind, BootstrapError, Event, ROOTS_LIMIT, Reason, is_on_purpose};
use weftlink_plan::DataType;
use weftlink_shm::counter::Counter;
use weftlink_shm::line::Poll;
use weftlink_shm::wait::{AbortCode, Waiter};

use super::asked::{Asked, Way, elements};
use crate::abort_note::ended_by;
use crate::error::Error;
use crate::transport::Fault;

/// What a endpoint knows of its communicator. The lines are in memory that the endpoint keeps mapped.
pub(super) struct Fate {
    pub(super) rank: usize,
    pub(super) waiter: Waiter<'static>,
    pub(super) departures: Vec<Counter<'static>>,
    /// How ranks are called.
    pub(super) names: Vec<String>,
    /// Tells ranks on other hosts.
    pub(super) tell: Box<dyn Fn(Event) + Send>,
    /// What the rank said that ended the communicator, and whom it blames, once that is heard.
    pub(super) hear: Box<dyn Fn() -> Option<(String, Vec<Blame>)> + Send>,
    /// Since when messages end because of that.
    pub(super) over: Cell<Option<Instant>>,
}

impl Fate {
    /// Whether a rank makes no more calls: its communicator is gone.
    #[inline]
    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.departures[rank].poll(1, 0, 1) == Poll::Ready && !mutant!("endpoint-does-not-see-departures")
    }

    /// Whether nothing more can be sent or received: the communicator was ended by somebody, or is no longer there.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.waiter.aborted().is_some_and(|_| !mutant!("endpoint-does-not-see-aborts"))
            || self.has_left(self.rank)
    }

    /// What that is to a message.
    #[cold]
    pub(super) fn end_of(&self, asked: &Asked) -> Error {
        let (rank, call) = (self.rank as u32, asked.id as u32);
        let Some(code) = self.waiter.aborted() else {
            return Error::gone(&format!("rank {rank} has dropped it, and with it the {asked}"));
        };
        if is_on_purpose(&self.waiter) {
            return ended_by(&self.waiter, &self.departures, rank, call);
        }
        if Reason::is(code, Reason::Died) {
            let (what, name) =
                (asked.to_string(), self.names.get(code.rank as usize).cloned().unwrap_or_default());
            return Error::Died {
                call,
                what,
                rank,
                died: if mutant!("endpoint-blames-itself-for-a-death") { rank } else { code.rank },
                name,
                waited: asked.began.elapsed(),
            };
        }
        let reason = Reason::name(code.reason);
        let (cause, mut blamed) = self.cause();
        if blamed.is_empty() {
            let lost = Reason::is(code, Reason::Lost);
            let kind = if lost { BlameKind::Unreachable } else { BlameKind::Failed };
            blamed.push(Blame::new(code.rank, kind));
        }
        Error::Aborted { call, rank, by: code.rank, reason, cause, blamed }
    }

    /// What the rank said that ended the communicator, and whom it blames. That comes over sockets, later than the abort.
    fn cause(&self) -> (String, Vec<Blame>) {
        let since = self.over.get().unwrap_or_else(Instant::now);
        self.over.set(Some(since));
        loop {
            match (self.hear)() {
                Some(heard) => return heard,
                None if since.elapsed() >= CAUSE_LIMIT => return (String::new(), Vec::new()),
                None => std::thread::sleep(CAUSE_POLL),
            }
        }
    }

    /// A message whose other end has left.
    pub(super) fn left(&self, asked: &Asked, left: usize) -> Error {
        Error::Left { call: asked.id as u32, rank: self.rank as u32, left: left as u32 }
    }

    /// A message that took too long.
    pub(super) fn late(&self, asked: &Asked, now: Instant) -> Error {
        let Asked { tag, bytes, .. } = asked;
        let (what, step) = match asked.way {
            Way::To(to) => (format!("{} to receive {bytes} bytes with tag {tag}", self.names[to]), "send"),
            Way::From(Some(from)) => {
                (format!("a message of {bytes} bytes with tag {tag} from {}", self.names[from]), "receive")
            }
            Way::From(None) => {
                (format!("a message of {bytes} bytes with tag {tag} from any rank"), "receive")
            }
        };
        let waited = now.saturating_duration_since(asked.began);
        let (call, rank) = (asked.id as u32, self.rank as u32);
        let peer = match asked.way {
            Way::To(peer) | Way::From(Some(peer)) => Some(peer),
            Way::From(None) => None,
        };
        let blamed = peer.into_iter().map(|peer| Blame::new(peer as u32, BlameKind::Late)).collect();
        Error::Deadline { call, rank, what, step: step.to_owned(), waited, blamed }
    }

    /// A message whose sender and receiver do not mean the same length or type.
    pub(super) fn differs(
        &self,
        asked: &Asked,
        other: usize,
        (bytes, data_type): (u64, Option<DataType>),
    ) -> Error {
        let (me, tag, theirs) = (self.rank, asked.tag, elements(bytes, data_type));
        let theirs = match asked.way {
            Way::To(_) => format!("receive of {theirs} with tag {tag} from rank {me}"),
            Way::From(_) => format!("send of {theirs} with tag {tag} to rank {me}"),
        };
        let (call, rank) = (asked.id as u32, me as u32);
        Error::Mismatch { call, rank, mine: asked.to_string(), other: other as u32, theirs }
    }

    /// A message that the kernel does not read.
    pub(super) fn unreadable(&self, asked: &Asked, peer: usize, error: i32) -> Error {
        let error = std::io::Error::from_raw_os_error(error).to_string();
        Error::Unreadable { call: asked.id as u32, rank: self.rank as u32, peer: peer as u32, error }
    }

    /// A message whose connection is of no more use.
    pub(super) fn broken(&self, asked: &Asked, peer: usize, fault: &Fault) -> Error {
        let what = match fault {
            Fault::Ended => "it has ended".to_owned(),
            Fault::Corrupt(what) => what.clone(),
        };
        let (call, rank) = (asked.id as u32, self.rank as u32);
        let blamed = vec![Blame::new(peer as u32, BlameKind::Unreachable)];
        Error::Broken { call, rank, peer: self.names[peer].clone(), what, blamed }
    }

    /// Ends the communicator for all ranks, because a message failed in a way that others may be in the middle of.
    #[cold]
    pub(super) fn give_up(&self, why: &Error) {
        let (rank, reason) = (self.rank as u32, Reason::Deadline.code());
        let first = self.waiter.abort(AbortCode { rank, reason });
        if first == (AbortCode { rank, reason }) && !mutant!("late-send-not-announced") {
            let (cause, blamed) = (why.to_string(), why.blamed());
            let error = BootstrapError::GaveUp { rank: self.rank, cause, blamed };
            (self.tell)(Event::Failed { rank, reason: reason.get(), culprit: rank, error });
        }
    }
}

/// How long it may take to hear why a rank ended the communicator, and how often to look. That rank first asks the others whom they wait
/// for.
const CAUSE_LIMIT: Duration = ROOTS_LIMIT.saturating_add(Duration::from_millis(250));
const CAUSE_POLL: Duration = Duration::from_millis(1);

/// How long it may take to hear that a rank has died whose memory is gone.
pub(super) const BURIAL_LIMIT: Duration = Duration::from_secs(2);
/// How long what a rank on another host has sent may come later than the word that it has left.
pub(super) const LAST_WORDS_LIMIT: Duration = Duration::from_millis(200);
