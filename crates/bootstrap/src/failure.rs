//! How a bootstrap fails: what it reports to the other ranks, and what it learns from them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use weftlink_membership::durations::{ROOTS, THREAD_CAUSE};

use super::blame::{Blame, BlameKind, Failure};
use super::deadline::Deadline;
use super::error::{BootstrapError, Request};
use super::group::Group;
use super::in_process::InProcessGroup;
use super::message::Event;
use super::waits::{Chain, Kind};
use super::{Bootstrap, Link};

impl Bootstrap {
    /// Returns a function that raises an event from any thread, until the bootstrap is dropped. Threads of one process share memory,
    /// so only failures are raised there.
    pub fn notifier(&self) -> impl Fn(Event) + Send + 'static {
        let (group, local) = self.weak_link();
        move |news| match (group.upgrade(), local.upgrade(), news) {
            (Some(group), _, news) => group.learn(news),
            (None, Some(local), Event::Failed { error, .. }) => local.fail(&error),
            _ => {}
        }
    }

    /// Returns a function that reads, from any thread, why a rank aborted the group and which ranks it blames; nothing while that is unknown.
    pub fn abort_cause_reader(&self) -> impl Fn() -> Option<(String, Vec<Blame>)> + Send + 'static {
        let (group, local) = self.weak_link();
        move || match (group.upgrade(), local.upgrade()) {
            (Some(group), _) => group.verdict().map(said),
            (None, Some(local)) => local.await_failure(Deadline::new(Duration::ZERO)).map(said),
            // The bootstrap is dropped, so no reason will arrive.
            (None, None) => Some((String::new(), Vec::new())),
        }
    }

    fn weak_link(&self) -> (Weak<Group>, Weak<InProcessGroup>) {
        match &self.link {
            Link::Tree { group, .. } => (Arc::downgrade(group), Weak::new()),
            Link::InProcess(local) => (Weak::new(), Arc::downgrade(local)),
        }
    }

    /// The ranks at the end of the chain of waits: stopped, or busy with something else. Records which rank this one waited for in a failed
    /// call, asks the others for theirs, and waits briefly for their answers. If this rank waits for none, it follows the waits of `other`.
    pub fn roots(&self, awaited: Option<u32>, other: u32, timeout: Duration) -> Vec<usize> {
        let roots = match &self.link {
            Link::InProcess(local) => {
                awaited.into_iter().for_each(|awaited| local.waits_for(self.rank as u32, &[awaited]));
                local.roots(self.rank as u32, Some(other))
            }
            Link::Tree { group, .. } => {
                awaited.into_iter().for_each(|awaited| group.waits_for(&[awaited]));
                group.ask_for_roots(Some(other), Deadline::new(timeout))
            }
        };
        roots.into_iter().map(|rank| rank as usize).collect()
    }

    /// The chain of waits, for callers that wait in calls.
    pub fn chain(&self) -> Chain {
        Chain(match &self.link {
            Link::InProcess(local) => Kind::InProcess(Arc::downgrade(local), self.rank as u32),
            Link::Tree { group, .. } => Kind::Tree(Arc::downgrade(group)),
        })
    }

    /// Between whom a connection was lost, if that is what went wrong first and is heard in time: who noticed, to whom, and
    /// what.
    pub fn lost(&self, timeout: Duration) -> Option<(u32, u32, String)> {
        let Link::Tree { group, .. } = &self.link else { return None };
        match group.await_failure(Deadline::new(timeout))? {
            BootstrapError::Lost { rank, by, what, .. } => Some((by as u32, rank as u32, what)),
            _ => None,
        }
    }

    /// Why a rank aborted the group and which ranks it blames, if that is known in time.
    pub fn cause(&self, timeout: Duration) -> Option<(String, Vec<Blame>)> {
        let error = match &self.link {
            Link::InProcess(local) => local.await_failure(Deadline::new(timeout.min(THREAD_CAUSE))),
            Link::Tree { group, .. } => group.await_failure(Deadline::new(timeout)),
        };
        error.map(said)
    }

    /// Aborts the group for a reason outside this bootstrap, so that other ranks do not wait for this one in its calls. `culprit` and
    /// `reason` go into the abort word of ranks on other hosts.
    pub fn give_up(&mut self, failure: &Failure, culprit: u32, reason: u32) {
        if self.failed.is_none() {
            let (cause, blamed) = (failure.why.clone(), failure.blamed.clone());
            let blamed = blamed.into_iter().map(|blame| self.identified(blame)).collect();
            let error = BootstrapError::GaveUp { rank: self.rank, cause, blamed };
            self.failed = Some(failure_of(&error));
            match &self.link {
                Link::InProcess(local) => local.fail(&error),
                Link::Tree { group, .. } => group.fail(reason, culprit, &error),
            }
        }
    }

    /// Tells the others why it is over, as far as they still listen. If that is that ranks waited for too long, finds out for
    /// whom in the end, and makes that the error.
    pub(super) fn fall(
        &mut self,
        error: BootstrapError,
        ask: &Request,
        deadline: Deadline,
    ) -> BootstrapError {
        use BootstrapError::{Late, Missing};
        let group = match &self.link {
            Link::InProcess(local) => {
                let error = match error {
                    Missing { ranks, purpose, limit } => {
                        let roots = local.roots(self.rank as u32, None);
                        let roots: Vec<usize> = roots.into_iter().map(|rank| rank as usize).collect();
                        Missing { ranks: if roots.is_empty() { ranks } else { roots }, purpose, limit }
                    }
                    other => other,
                };
                local.fail(&error);
                self.failed.get_or_insert_with(|| failure_of(&error));
                return error;
            }
            Link::Tree { group, .. } => group,
        };
        group.fail_for(&error);
        let error = match group.failed_late() {
            Some(by) if !deadline.is_ended() => {
                let ranks = group.ask_for_roots(Some(by), Deadline::new(ROOTS));
                let blamed: Vec<Blame> =
                    ranks.into_iter().map(|rank| self.blame(rank, BlameKind::Late)).collect();
                let (purpose, waited) = (ask.purpose.clone(), deadline.waited());
                if blamed.is_empty() { error } else { Late { blamed, purpose, waited } }
            }
            _ => error,
        };
        self.failed.get_or_insert_with(|| failure_of(&error));
        error
    }
}

/// The cause of an abort, and the ranks that it blames.
fn said(error: BootstrapError) -> (String, Vec<Blame>) {
    let blamed = error.blamed();
    match error {
        BootstrapError::GaveUp { cause, .. } => (cause, blamed),
        error => (error.to_string(), blamed),
    }
}

/// Why a bootstrap cannot be used any more.
pub(super) fn failure_of(error: &BootstrapError) -> Failure {
    Failure { why: error.to_string(), blamed: error.blamed(), aborted_by: None }
}
