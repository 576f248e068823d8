//! Finding out what became of ranks, and finding a new parent.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Action, Group, INQUIRY_ATTEMPTS_MIN, Probe, Seeking, Timer, WAS_LOST};
use crate::durations::{INQUIRY_RETRY, REPARENT};
use crate::tree;

/// The most ranks that a rank tries as its new parent.
const REPARENT_TRIES_MAX: usize = 64;
/// The most searches for a new parent that end without one; each follows after twice the time of the one before.
const REPARENT_SEARCHES_MAX: u32 = 6;

impl<F: Clone> Group<F> {
    pub(super) fn probed(&mut self, rank: u32, outcome: Probe, now: Instant, actions: &mut Vec<Action<F>>) {
        // A rank that did not reconnect and is there may still do so.
        if self.missed.remove(&rank) && outcome == Probe::Refused && !self.neighbours.contains(&rank) {
            self.inquiries.remove(&rank);
            return self.die(rank, now, actions);
        }
        let Some(inquiry) = self.inquiries.get_mut(&rank).filter(|inquiry| !inquiry.is_watched) else {
            return;
        };
        match outcome {
            Probe::Refused => {
                self.inquiries.remove(&rank);
                self.die(rank, now, actions);
            }
            // A process that ends closes its sockets one after the other.
            Probe::Unclear if now < inquiry.until || inquiry.attempts < INQUIRY_ATTEMPTS_MIN => {
                inquiry.attempts += 1;
                self.timers.push((now + INQUIRY_RETRY, Timer::Inquiry(rank)));
            }
            Probe::Answered | Probe::Silent | Probe::Unclear => {
                self.inquiries.remove(&rank);
                self.lose(rank, WAS_LOST.to_owned(), now, actions);
            }
        }
    }

    /// Tries the next rank as a new parent, if there is one.
    pub(super) fn reparent(&mut self, now: Instant, actions: &mut Vec<Action<F>>) {
        let (mut tried, is_worth_retrying) = match self.seeking.take() {
            Some(seeking) => (seeking.tried, seeking.is_worth_retrying),
            None => (BTreeSet::new(), false),
        };
        // If no lower rank is left in the group, perhaps a higher one is.
        let higher = (self.rank + 1..self.parents.len() as u32).filter(|rank| !self.is_gone(*rank));
        let higher = higher.filter(|_| self.neighbours.is_empty());
        let candidate = self.heirs(self.rank).chain(higher).find(|rank| !tried.contains(rank));
        match candidate.filter(|_| tried.len() < REPARENT_TRIES_MAX) {
            Some(candidate) => {
                tried.insert(candidate);
                self.seeking = Some(Seeking { candidate, tried, is_worth_retrying });
                actions.push(Action::Reparent(candidate));
            }
            None if is_worth_retrying && self.searches < REPARENT_SEARCHES_MAX => {
                self.searches += 1;
                self.timers.push((now + REPARENT * (1 << self.searches), Timer::Reparent));
            }
            None => {}
        }
    }

    /// The ranks that a rank whose parent left connects to, best first: those above it, then the lowest. None for the lowest.
    pub(super) fn heirs(&self, orphan: u32) -> impl Iterator<Item = u32> + '_ {
        let parent = |rank: &u32| self.parents.get(*rank as usize).copied().flatten();
        let above = std::iter::successors(Some(orphan), parent).skip(1);
        above.chain(0..orphan).filter(|rank| !self.is_gone(*rank))
    }

    /// The children of a rank that left which should have connected to this rank and have not.
    pub(super) fn missed_children(&self, left: u32) -> Vec<u32> {
        let is_missed = |child: &u32| {
            !self.neighbours.contains(child)
                && !self.inquiries.contains_key(child)
                && !self.is_gone(*child)
                && self.heirs(*child).next() == Some(self.rank)
        };
        tree::children(&self.parents, left).into_iter().filter(is_missed).collect()
    }
}
