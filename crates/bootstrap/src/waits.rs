//! Chains of waits: what a blocked caller does about them. [`weftlink_membership`] decides what they mean.
//!
//! Ranks wait for each other in chains: rank 0 for a message of rank 1, which waits for rank 2 to make a call, which is
//! stopped. A rank that looks only at its own wait would blame rank 1. So each rank records the ranks that it waits for, once that takes
//! long, and its monitor thread announces the record when any rank asks; an announcement is a question to all others. A
//! rank that does not answer is stopped, or behind one that is; a rank that answers that it waits for none does something
//! else. These are the *roots*, which warnings and errors name.
//!
//! The record of a wait that ended in a failure stays: that is what the rank was waiting for.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weftlink_membership::Roots;
use weftlink_membership::durations::{ASK_AHEAD, NOTE_AFTER};

use super::deadline::Deadline;
use super::error::person;
use super::group::Group;
use super::in_process::InProcessGroup;

impl Group {
    /// Records the ranks that this rank waits for; none if it no longer waits.
    pub(super) fn waits_for(&self, awaited: &[u32]) {
        self.state().core.set_waits(awaited);
    }

    /// Announces the ranks that this rank waits for, so that all others do the same.
    pub(super) fn announce_waits(&self) {
        let news = self.state().core.announce_waits(Instant::now());
        self.learn(news);
    }

    /// The roots of the chain, by what is known now. Follows this rank's waits, or those of `other` if it has none.
    pub(super) fn roots(&self, other: Option<u32>, asked: Instant) -> Roots {
        self.state().core.roots(other, asked)
    }

    /// The same, after asking all others, which have until the deadline to answer.
    pub(super) fn ask_for_roots(&self, other: Option<u32>, deadline: Deadline) -> Vec<u32> {
        let asked = Instant::now();
        self.announce_waits();
        loop {
            let roots = self.roots(other, asked);
            if roots.silent.is_empty() || deadline.left().is_none() {
                return roots.all();
            }
            drop(self.wait(self.state(), deadline));
        }
    }

    /// The group that this one is made of, until it is, and what its ranks are called there.
    fn elder(&self) -> Option<(Arc<Group>, Vec<u32>)> {
        let state = self.state();
        let (elder, called) = state.elder.as_ref()?;
        Some((elder.upgrade()?, called.clone()))
    }

    pub(super) fn set_elder(&self, elder: Option<(Weak<Group>, Vec<u32>)>) {
        self.state().elder = elder;
    }

    /// The name of a rank in messages.
    pub(super) fn name(&self, rank: u32) -> String {
        let members = self.members.get().map_or(&[][..], Vec::as_slice);
        let spans_hosts = members.iter().any(|member| member.host > 0);
        let contact = members.get(rank as usize).map(|member| &member.contact);
        let host = contact.filter(|_| spans_hosts).map_or(String::new(), |contact| contact.host.to_string());
        person(rank as usize, &host, contact.map_or(0, |contact| contact.pid))
    }
}

/// A wait outside of calls: recorded, and logged when it takes long.
pub(super) struct Watch<'a> {
    group: &'a Group,
    /// The group that this one is made of, where all its ranks hear each other already, and what they are called there.
    elder: Option<(Arc<Group>, Vec<u32>)>,
    purpose: &'a str,
    began: Instant,
    /// When to record next, and when to log.
    due: Duration,
    next: Duration,
    asked: Option<Instant>,
    is_noted: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(group: &'a Group, purpose: &'a str) -> Watch<'a> {
        let elder = group.elder();
        let next = elder.as_ref().map_or(group, |(elder, _)| elder).warn_after();
        let (began, due) = (Instant::now(), NOTE_AFTER.min(next / 4));
        Watch { group, elder, purpose, began, due, next, asked: None, is_noted: false }
    }

    /// Whether there is something to do.
    pub(super) fn is_due(&self) -> bool {
        self.began.elapsed() >= self.due
    }

    /// Records the ranks that this rank waits for, and logs a warning, if that is due.
    pub(super) fn look(&mut self, awaited: &[u32]) {
        let waited = self.began.elapsed();
        if waited < self.due {
            return;
        }
        self.due = waited + NOTE_AFTER / 2;
        let awaited = self.note(awaited);
        let group = self.elder.as_ref().map_or(self.group, |(elder, _)| elder);
        if waited >= self.next {
            // A caller that looks rarely has not asked yet. Request now, and give the other ranks time to answer.
            let roots = match self.asked {
                Some(asked) if asked.elapsed() < ASK_AHEAD.min(group.warn_after() / 2) => return,
                Some(asked) => group.roots(None, asked).all(),
                None => group.ask_for_roots(None, Deadline::new(ASK_AHEAD)),
            };
            let roots = if roots.is_empty() { awaited } else { roots };
            let names: Vec<String> = roots.iter().map(|rank| group.name(*rank)).collect();
            let (what, names) = (self.purpose.trim_start_matches("weft: "), names.join(" and "));
            let seconds = waited.as_secs_f64();
            tracing::warn!(target: "weft::fault", rank = group.rank as usize, "{what} has waited {seconds:.1} s for {names}");
            (self.next, self.asked) = (waited + group.warn_after(), None);
        } else if waited + ASK_AHEAD.min(self.next / 2) >= self.next && self.asked.is_none() {
            self.asked = Some(Instant::now());
            group.announce_waits();
        }
    }

    /// Notes that these are waited for, however long that takes, and how they are called where it is noted.
    pub(super) fn note(&mut self, awaited: &[u32]) -> Vec<u32> {
        let called = |rank: &u32| {
            self.elder
                .as_ref()
                .map_or(*rank, |(_, called)| called.get(*rank as usize).copied().unwrap_or(*rank))
        };
        let awaited: Vec<u32> = awaited.iter().map(called).collect();
        self.elder.as_ref().map_or(self.group, |(elder, _)| elder).waits_for(&awaited);
        self.is_noted = true;
        awaited
    }

    /// What was waited for came.
    pub(super) fn over(self) {
        if self.is_noted {
            self.elder.as_ref().map_or(self.group, |(elder, _)| elder).waits_for(&[]);
        }
    }
}

/// The chain of waits, for callers that wait in calls; empty once the bootstrap is dropped.
pub struct Chain(pub(super) Kind);

pub(super) enum Kind {
    Tree(Weak<Group>),
    InProcess(Weak<InProcessGroup>, u32),
}

impl Chain {
    /// Records the ranks that this rank waits for; none if it no longer waits.
    pub fn note(&self, awaited: Option<u32>) {
        match &self.0 {
            Kind::Tree(group) => {
                group.upgrade().into_iter().for_each(|group| group.waits_for(awaited.as_slice()))
            }
            Kind::InProcess(local, rank) => {
                local.upgrade().into_iter().for_each(|local| local.waits_for(*rank, awaited.as_slice()));
            }
        }
    }

    /// Asks all other ranks to announce their waits. The answers arrive a little later.
    pub fn ask(&self) {
        if let Kind::Tree(group) = &self.0
            && let Some(group) = group.upgrade()
        {
            group.announce_waits();
        }
    }

    /// The roots of the chain, by what was announced since all were asked.
    pub fn roots(&self, asked: Instant) -> Vec<u32> {
        match &self.0 {
            Kind::Tree(group) => group.upgrade().map_or(Vec::new(), |group| group.roots(None, asked).all()),
            Kind::InProcess(local, rank) => {
                local.upgrade().map_or(Vec::new(), |local| local.roots(*rank, None))
            }
        }
    }

    /// When to ask the others, for a wait that is logged after `told_at`.
    pub fn asks_at(told_at: Duration) -> Duration {
        told_at.saturating_sub(ASK_AHEAD.min(told_at / 2))
    }
}
