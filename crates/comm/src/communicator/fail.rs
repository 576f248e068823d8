//! A call that stopped early fails: its rank collects evidence, decides what happened and aborts for all ranks.
//!
//! Other ranks may be about to report what this rank only sees the consequences of, so collecting evidence waits for them, each wait with a
//! limit. `diagnose.rs` decides what is worth waiting for and what the error is; `abort.rs` acts.

use std::time::{Duration, Instant};

use weftlink_bootstrap::{BlameKind, ROOTS_LIMIT, Reason, is_on_purpose};
use weftlink_shm::counter::Counter;
use weftlink_shm::line::Poll;
use weftlink_shm::wait::{AbortCode, Stop};

use super::Communicator;
use super::diagnose::{Difference, Evidence, broken, diagnose, only_ended, own_reason};
use crate::abort_note::purpose;
use crate::durations::{ABORT_CAUSE_BRIEF, CAUSE_POLL, REPORT};
use crate::engine::Stopped;
use crate::error::Error;
use crate::request::CallArgs;
use crate::shared::{Call, HEADERS};
use crate::symmetric::Reached;
use crate::transport::Fault;

/// How many calls ranks on different hosts show each other when they differ.
const COMPARED_MAX: u32 = HEADERS as u32 / 2;

impl Communicator {
    /// Fails a stopped call on all ranks: collects evidence, decides what happened, aborts.
    #[cold]
    pub(super) fn fail(&mut self, call: &Call<'_>, stopped: &Stopped, reached: Reached) -> Error {
        let reason = self.reason(call, stopped);
        // First of all, so that the other ranks stop waiting for this one.
        let (mine, first) = self.set_abort_word(reason);
        let evidence = self.evidence(call, stopped, mine, first);
        let error = diagnose(&evidence);
        self.abort(&error, first, reached);
        error
    }

    /// Fails the call that was announced last.
    #[cold]
    pub(super) fn fail_current(
        &mut self,
        request: &CallArgs<'_>,
        stopped: &Stopped,
        reached: Reached,
    ) -> Error {
        let header = self.current.header;
        self.fail(&Call::without_buffers(&header, self.calls, request.collective), stopped, reached)
    }

    /// Why this rank aborts, if it is the first to do so.
    fn reason(&self, call: &Call<'_>, stopped: &Stopped) -> Reason {
        let faults = self.faults();
        let suspect = match stopped.stop {
            Stop::Unreadable { rank, .. } => Some(rank),
            Stop::Broken if only_ended(&faults) => broken(&faults, stopped.waiting.rank()).0,
            _ => None,
        };
        let confirmed = suspect.and_then(|rank| self.confirm_death(rank));
        own_reason(stopped.stop, &faults, confirmed, self.shared.left(call))
    }

    /// All that is known about a call that stopped. The abort word is set.
    fn evidence(&self, call: &Call<'_>, stopped: &Stopped, mine: AbortCode, first: AbortCode) -> Evidence {
        let Stopped { stop, step, waiting } = *stopped;
        let ranks = 0..self.size as u32;
        let mut evidence = Evidence {
            rank: self.rank as u32,
            call: call.number,
            what: call.header.to_string(),
            stop,
            step,
            waiting,
            mine,
            first,
            ended: is_on_purpose(&self.shared.waiter)
                .then(|| purpose(&self.shared.waiter, &self.shared.departures, self.rank as u32)),
            mismatch: None,
            left: None,
            departed: None,
            faults: Vec::new(),
            lost: None,
            roots: Vec::new(),
            cause: None,
            names: ranks.clone().map(|rank| self.bootstrap.name(rank as usize)).collect(),
            identities: ranks.map(|rank| self.bootstrap.blame(rank, BlameKind::Failed)).collect(),
        };
        if evidence.asks_for_calls() {
            self.compare(call);
        }
        let has_left = |departure: &Counter<'_>| departure.poll(1, 0, 1) == Poll::Ready;
        evidence.left = self.shared.left(call);
        evidence.departed = self.shared.departures.iter().position(has_left).map(|rank| rank as u32);
        evidence.faults = self.faults();
        if evidence.asks_for_lost() {
            evidence.lost = self.bootstrap.lost(REPORT);
        }
        evidence.mismatch = self.difference(call);
        // Asked before this rank reports its failure, which is final.
        if evidence.asks_for_roots() {
            let roots = self.bootstrap.roots(waiting.rank(), first.rank, ROOTS_LIMIT);
            evidence.roots = roots.into_iter().map(|rank| rank as u32).collect();
        }
        if evidence.asks_for_cause() {
            // A rank that has left may not have forwarded the reports of others.
            let is_known = Reason::is(first, Reason::Left) && evidence.departed.is_some();
            evidence.cause = self.bootstrap.cause(if is_known { ABORT_CAUSE_BRIEF } else { REPORT });
        }
        evidence
    }

    /// A call in which another rank differs, if there is one.
    fn difference(&self, call: &Call<'_>) -> Option<Difference> {
        let (call, mine, other, theirs) = self.shared.difference(self.rank, call)?;
        Some(Difference { call, mine: mine.to_string(), other, theirs: theirs.to_string() })
    }

    /// The error that shows it.
    pub(super) fn mismatch(&self, call: &Call<'_>) -> Option<Error> {
        let Difference { call, mine, other, theirs } = self.difference(call)?;
        let other = self.bootstrap.blame(other, BlameKind::Differs);
        Some(Error::Mismatch { call, rank: self.rank as u32, mine, other, theirs })
    }

    /// What is wrong with connections, by rank.
    fn faults(&self) -> Vec<(u32, Fault)> {
        let of = |rank| Some((rank, self.ports.fault(rank)?));
        (0..self.size as u32).filter_map(of).collect()
    }

    /// Sends this rank's calls to other hosts, and waits a moment for theirs.
    #[cold]
    pub(super) fn compare(&self, call: &Call<'_>) {
        let Some(send_header) = self
            .shared
            .stall_reporter
            .send_header
            .as_ref()
            .filter(|_| !mutant!("mismatch-not-compared-across-hosts"))
        else {
            return;
        };
        // The mismatch may be in an earlier call.
        (0..COMPARED_MAX).for_each(|back| send_header(call.number.wrapping_sub(back)));
        let began = Instant::now();
        while began.elapsed() < REPORT && self.shared.difference(self.rank, call).is_none() {
            std::thread::sleep(CAUSE_POLL);
        }
    }

    /// The error of a call that cannot be made because a rank has died.
    pub(super) fn died(&self, call: &Call<'_>, died: u32, waited: Duration) -> Error {
        let (what, died) = (call.header.to_string(), self.bootstrap.blame(died, BlameKind::Died));
        Error::Died { call: call.number, what, rank: self.rank as u32, died, waited }
    }

    /// Waits for the report that a rank has died or was lost, which is most likely if its memory or its connection is gone.
    #[cold]
    fn confirm_death(&self, rank: u32) -> Option<Reason> {
        let began = Instant::now();
        while began.elapsed() < REPORT && !mutant!("deaths-not-awaited") {
            match self.shared.waiter.aborted() {
                Some(code) => {
                    let is_it = |reason: &Reason| code.rank == rank && Reason::is(code, *reason);
                    return [Reason::Died, Reason::Lost].into_iter().find(is_it);
                }
                // It has left normally.
                None if self.shared.departures[rank as usize].poll(1, 0, 1) == Poll::Ready => return None,
                None => std::thread::sleep(CAUSE_POLL),
            }
        }
        None
    }
}
