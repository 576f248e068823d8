//! The error of a call that stopped early: a pure function of the evidence.
//!
//! A rank sees a symptom: a closed connection, memory that cannot be read, silence, an abort word. The error names the cause:
//! a process that died, a rank that left, calls that do not match, a stopped rank. [`Evidence`] has both as plain data;
//! [`diagnose`] decides. `fail.rs` collects the evidence, which may take a while, and `abort.rs` acts on the error.
//!
//! Deliberately absent: clocks, sockets, shared memory.

use std::time::Duration;

use weftlink_bootstrap::{Blame, BlameKind, Reason};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::wait::{AbortCode, Stop};

use crate::error::Error;
use crate::shared::awaited_ranks;
use crate::transport::Fault;

/// What a rank knows about a call that stopped.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// This rank, the number of the call and what it is.
    pub(super) rank: u32,
    pub(super) call: u32,
    pub(super) what: String,
    /// Why the wait ended, in which lane and step, and what it waited for.
    pub(super) stop: Stop,
    pub(super) step: Option<(u32, u32)>,
    pub(super) waiting: Waiting,
    /// The abort code of this rank, and that of the first rank that aborted: the same if this rank was the first.
    pub(super) mine: AbortCode,
    pub(super) first: AbortCode,
    /// The rank that ended the communicator on purpose, and what it did.
    pub(super) ended: Option<(u32, String)>,
    /// A call in which another rank differs.
    pub(super) mismatch: Option<Difference>,
    /// A rank that left before it made the call, and one that left at any time.
    pub(super) left: Option<u32>,
    pub(super) departed: Option<u32>,
    /// Faults of connections, by rank.
    pub(super) faults: Vec<(u32, Fault)>,
    /// The connection that was lost: who noticed, the rank at its other end, and what happened to it.
    pub(super) lost: Option<(u32, u32, String)>,
    /// The ranks at the ends of the chain of waits that this call is part of.
    pub(super) roots: Vec<u32>,
    /// The error of the rank that aborted first, and the ranks it blames.
    pub(super) cause: Option<(String, Vec<Blame>)>,
    /// How each rank is named in messages, and its host and process.
    pub(super) names: Vec<String>,
    pub(super) identities: Vec<Blame>,
}

/// A call in which two ranks differ.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    pub(super) call: u32,
    pub(super) mine: String,
    pub(super) other: u32,
    pub(super) theirs: String,
}

/// The error of a call that stopped.
pub(super) fn diagnose(evidence: &Evidence) -> Error {
    settled(evidence).unwrap_or_else(|| aborted(evidence))
}

/// The precedence of causes, highest first. Each rule returns its error if its cause explains why the call stopped. If none does, another
/// rank aborted, and its own reason is all that is known.
fn settled(evidence: &Evidence) -> Option<Error> {
    None.or_else(|| cancelled(evidence))
        .or_else(|| connection_lost(evidence))
        .or_else(|| died(evidence))
        .or_else(|| timed_out(evidence))
        .or_else(|| left(evidence))
        .or_else(|| connection_broken(evidence))
        .or_else(|| unreadable(evidence))
        .or_else(|| left_says_another(evidence))
        .or_else(|| differs(evidence))
}

/// The reason that this rank gives in the abort word, if it is the first to abort. `confirmed` says that the rank on which the call
/// depended has died or was lost; `left`, that a rank has left before the call.
pub(super) fn own_reason(
    stop: Stop,
    faults: &[(u32, Fault)],
    confirmed: Option<Reason>,
    left: Option<u32>,
) -> Reason {
    match stop {
        Stop::Mismatch { .. } => Reason::Mismatch,
        Stop::Left { .. } => Reason::Left,
        Stop::Unreadable { .. } => confirmed.unwrap_or(Reason::Unreadable),
        // Wrong bytes are no sign of a death.
        Stop::Broken if !only_ended(faults) => Reason::Broken,
        Stop::Broken => confirmed.or(left.map(|_| Reason::Left)).unwrap_or(Reason::Broken),
        // If another rank aborted, its reason is in the abort word already.
        Stop::Deadline { .. } | Stop::Aborted { .. } => Reason::Deadline,
    }
}

/// Whether all faults of connections are that they ended.
pub(super) fn only_ended(faults: &[(u32, Fault)]) -> bool {
    faults.iter().all(|(_, fault)| *fault == Fault::Ended)
}

/// The connection that explains a call best, and what is wrong with it. Wrong bytes say more than an end, because other ranks may have left
/// in good order; among equals, the connection to the rank that the call waits for.
pub(super) fn broken(faults: &[(u32, Fault)], awaited: Option<u32>) -> (Option<u32>, String) {
    match faults.iter().max_by_key(|(rank, fault)| (*fault != Fault::Ended, Some(*rank) == awaited)) {
        Some((rank, Fault::Corrupt(what))) => (Some(*rank), what.clone()),
        Some((rank, Fault::Ended)) => (Some(*rank), "connection closed by peer".to_owned()),
        None => (None, "connection closed by peer".to_owned()),
    }
}

/// What `fail.rs` has to ask other ranks. Answers may take long, so it asks only if an answer can change the error.
impl Evidence {
    /// Whether ranks on other hosts have to send their calls.
    pub(super) fn asks_for_calls(&self) -> bool {
        self.is_first(Reason::Mismatch)
    }

    /// Which connection was lost.
    pub(super) fn asks_for_lost(&self) -> bool {
        self.is_first(Reason::Lost) && self.is_consequence() && only_ended(&self.faults)
    }

    /// Which ranks are at the end of the chain of waits.
    pub(super) fn asks_for_roots(&self) -> bool {
        self.ended.is_none() && self.timeout().is_some()
    }

    /// Why the first rank aborted.
    pub(super) fn asks_for_cause(&self) -> bool {
        settled(self).is_none()
    }

    /// Why the wait ended, once it is known who aborted first. A rank that aborted leaves soon, and its peers may notice that before they see
    /// its abort: its reason counts, not its departure.
    fn effective(&self) -> Stop {
        let aborted = Stop::Aborted { code: self.first, waited: Duration::ZERO };
        let is_ours = self.first == self.mine;
        match (self.stop, self.left) {
            (Stop::Broken, Some(rank)) if is_ours && self.is_first(Reason::Left) => Stop::Left { rank },
            (Stop::Left { .. }, _) if !is_ours && !mutant!("departure-outweighs-abort") => aborted,
            (Stop::Broken, _) if !is_ours && only_ended(&self.faults) => aborted,
            (stop, _) => stop,
        }
    }

    /// Whether the call stopped by something that follows from the end of another rank.
    fn is_consequence(&self) -> bool {
        matches!(self.effective(), Stop::Unreadable { .. } | Stop::Aborted { .. } | Stop::Broken)
    }

    /// How long this rank had waited when a timeout ended the call, its own or that of another rank.
    fn timeout(&self) -> Option<Duration> {
        match self.effective() {
            Stop::Deadline { waited } | Stop::Aborted { waited, .. } if self.is_first(Reason::Deadline) => {
                Some(waited)
            }
            _ => None,
        }
    }

    fn is_first(&self, reason: Reason) -> bool {
        Reason::is(self.first, reason)
    }

    fn name(&self, rank: u32) -> String {
        self.names.get(rank as usize).cloned().unwrap_or_else(|| format!("rank {rank}"))
    }

    fn blame(&self, rank: u32, kind: BlameKind) -> Blame {
        let known = self.identities.get(rank as usize);
        let mut blame = known.cloned().unwrap_or_else(|| Blame::new(rank, kind));
        blame.kind = kind;
        blame
    }

    /// What the call waited for.
    fn awaited(&self) -> String {
        match self.waiting {
            Waiting::Entered { rank } => format!("{} to make the call", self.name(rank)),
            Waiting::Reached { rank, counter } => {
                format!("{} to signal counter {counter}", self.name(rank))
            }
            Waiting::Message { from } => format!("a message from {}", self.name(from)),
            Waiting::Slot { to } => format!("{} to receive", self.name(to)),
            Waiting::Sent { to } => format!("messages to {} to be sent", self.name(to)),
            Waiting::Anything => "other ranks".to_owned(),
        }
    }

    fn mismatch(&self) -> Option<Error> {
        let Difference { call, mine, other, theirs } = self.mismatch.clone()?;
        Some(Error::Mismatch {
            call,
            rank: self.rank,
            mine,
            other: self.blame(other, BlameKind::Differs),
            theirs,
        })
    }
}

/// A rank aborted the communicator on purpose. Everything that this rank noticed follows from that.
fn cancelled(evidence: &Evidence) -> Option<Error> {
    let (by, what) = evidence.ended.clone()?;
    let by = evidence.blame(by, BlameKind::Aborted);
    Some(Error::Cancelled { call: evidence.call, rank: evidence.rank, by, what })
}

/// Two ranks lost the connection between them; both may live.
fn connection_lost(evidence: &Evidence) -> Option<Error> {
    let (by, to, what) = evidence.lost.as_ref().filter(|_| evidence.asks_for_lost())?;
    let ends = [*to, *by].into_iter().filter(|end| *end != evidence.rank);
    let blamed = ends.map(|end| evidence.blame(end, BlameKind::Unreachable)).collect();
    let (peer, what) = (evidence.name(*to), format!("it {what}"));
    Some(Error::Broken { call: evidence.call, rank: *by, peer, what, blamed })
}

/// A process ended. A rank whose call did not match may exit before the others learn of the mismatch.
fn died(evidence: &Evidence) -> Option<Error> {
    if !evidence.is_first(Reason::Died) || !evidence.is_consequence() {
        return None;
    }
    let (rank, call, what) = (evidence.rank, evidence.call, evidence.what.clone());
    let died = evidence.blame(evidence.first.rank, BlameKind::Died);
    let waited =
        if let Stop::Aborted { waited, .. } = evidence.effective() { waited } else { Duration::ZERO };
    Some(evidence.mismatch().unwrap_or(Error::Died { call, what, rank, died, waited }))
}

/// A timeout. It names the ranks at the end of the chain of waits if they are known, and else the rank that this one waited for. If another
/// rank timed out and no late rank is known, that rank's own error is better.
fn timed_out(evidence: &Evidence) -> Option<Error> {
    let (rank, call) = (evidence.rank, evidence.call);
    let step = match evidence.step {
        Some((lane, ordinal)) => format!("lane {lane}, step {ordinal}"),
        None => "no lane could continue".to_owned(),
    };
    let (direct, roots) = (evidence.waiting.rank(), &evidence.roots);
    let is_chain = evidence.timeout().is_some()
        && !roots.is_empty()
        && !direct.is_some_and(|rank| roots.contains(&rank));
    let what = if is_chain { awaited_ranks(&evidence.names, direct, roots) } else { evidence.awaited() };
    let (waited, late) = match (evidence.timeout(), evidence.effective()) {
        (Some(waited), _) if is_chain => (waited, roots.clone()),
        (Some(waited), Stop::Aborted { .. }) => (waited, vec![direct?]),
        (_, Stop::Deadline { waited }) => (waited, direct.into_iter().collect()),
        _ => return None,
    };
    let blamed = late.into_iter().map(|rank| evidence.blame(rank, BlameKind::Late)).collect();
    Some(Error::Deadline { call, rank, what, step, waited, blamed })
}

/// This rank saw that another left before the call was over.
fn left(evidence: &Evidence) -> Option<Error> {
    let Stop::Left { rank: left } = evidence.effective() else { return None };
    let (rank, call, left) = (evidence.rank, evidence.call, evidence.blame(left, BlameKind::Left));
    Some(evidence.mismatch().unwrap_or(Error::Left { call, rank, left }))
}

/// A connection of this rank was closed or carried corrupt data, and no rank reported more.
fn connection_broken(evidence: &Evidence) -> Option<Error> {
    let Stop::Broken = evidence.effective() else { return None };
    let (peer, what) = broken(&evidence.faults, evidence.waiting.rank());
    let blamed = peer.into_iter().map(|peer| evidence.blame(peer, BlameKind::Unreachable)).collect();
    let peer = peer.map_or("another host".to_owned(), |peer| evidence.name(peer));
    Some(Error::Broken { call: evidence.call, rank: evidence.rank, peer, what, blamed })
}

/// The kernel cannot read the memory of a peer, and no rank reported more.
fn unreadable(evidence: &Evidence) -> Option<Error> {
    let Stop::Unreadable { rank: peer, error: errno } = evidence.effective() else { return None };
    let error = std::io::Error::from_raw_os_error(errno).to_string();
    let peer = evidence.blame(peer, BlameKind::Unreachable);
    Some(Error::Unreadable { call: evidence.call, rank: evidence.rank, peer, errno, error })
}

/// Another rank aborted because a rank has left, and this rank sees which.
fn left_says_another(evidence: &Evidence) -> Option<Error> {
    let Stop::Aborted { .. } = evidence.effective() else { return None };
    let left = evidence.left.filter(|_| evidence.is_first(Reason::Left))?;
    let left = evidence.blame(left, BlameKind::Left);
    Some(Error::Left { call: evidence.call, rank: evidence.rank, left })
}

/// Ranks make different calls.
fn differs(evidence: &Evidence) -> Option<Error> {
    match evidence.effective() {
        Stop::Mismatch { .. } | Stop::Aborted { .. } => evidence.mismatch(),
        _ => None,
    }
}

/// Another rank aborted first: its error if it is known, or else that a rank has left, or else only that it aborted.
fn aborted(evidence: &Evidence) -> Error {
    let Evidence { rank, call, first, .. } = *evidence;
    let left = evidence.departed.filter(|_| evidence.is_first(Reason::Left));
    let (cause, blamed) = match (evidence.cause.clone(), left) {
        (Some(cause), _) => cause,
        (None, Some(left)) => (format!("rank {left} has left"), vec![evidence.blame(left, BlameKind::Left)]),
        (None, None) => (String::new(), vec![evidence.blame(first.rank, BlameKind::Failed)]),
    };
    Error::Aborted { call, rank, by: first.rank, reason: Reason::name(first.reason), cause, blamed }
}

#[cfg(test)]
mod tests;
