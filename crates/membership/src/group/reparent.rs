//! Finding out what became of ranks, and finding a new parent.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Action, Gone, Group, INQUIRY_ATTEMPTS_MIN, Probe, Seeking, Timer, WAS_LOST};
use crate::durations::{INQUIRY_RETRY, REPARENT};
use crate::event::Event;
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
        let mut seeking = self.seeking.take().unwrap_or_default();
        // If no lower rank is left in the group, perhaps a higher one is.
        let is_alone = self.is_alone();
        let is_candidate = |rank: &u32| *rank < self.rank || is_alone;
        let candidate =
            self.successors(self.rank).filter(is_candidate).find(|rank| !seeking.tried.contains(rank));
        match candidate.filter(|_| seeking.tried.len() < REPARENT_TRIES_MAX) {
            Some(candidate) => {
                seeking.tried.insert(candidate);
                self.seeking = Some(Seeking { candidate, ..seeking });
                actions.push(Action::Reparent(candidate));
            }
            None if seeking.is_worth_retrying && self.searches < REPARENT_SEARCHES_MAX => {
                self.searches += 1;
                self.timers.push((now + REPARENT * (1 << self.searches), Timer::Reparent));
            }
            None => self.conclude(&seeking.refused, now, actions),
        }
    }

    /// An attempt to reparent failed.
    pub(super) fn not_reparented(
        &mut self,
        rank: u32,
        why: Probe,
        gone: Option<Gone>,
        now: Instant,
        actions: &mut Vec<Action<F>>,
    ) {
        let Some(seeking) = self.seeking.as_mut().filter(|seeking| seeking.candidate == rank) else { return };
        seeking.is_worth_retrying |= matches!(why, Probe::Silent | Probe::Unclear);
        // It left while this rank had no neighbour to hear it from. Waiting for it would take until a deadline.
        if let Some(gone) = gone {
            seeking.has_gaps = true;
            let event = match gone {
                Gone::Left { calls } => Event::Left { rank, calls },
                Gone::Continued { group } => Event::Continued { rank, group },
            };
            self.learn(event, None, now, actions);
        }
        if self.departure.is_some() {
            return self.not_handed_over(why);
        }
        if why == Probe::Refused && !self.is_gone(rank) {
            let is_successor = self.successors(rank).next() == Some(self.rank);
            match &mut self.seeking {
                // In good order, it would have handed its departure over to this rank.
                Some(seeking) if is_successor && !seeking.has_gaps => self.die(rank, now, actions),
                Some(seeking) => drop(seeking.refused.insert(rank)),
                None => {}
            }
        }
        self.reparent(now, actions);
    }

    /// No rank is left to connect to, and the processes of `refused` have ended. The last rank that leaves hands all departures over
    /// to the one that stays, so one of those that are not known to have left has died. If there are several, it is unclear which:
    /// one may have taken the departures of the others with it.
    fn conclude(&mut self, refused: &BTreeSet<u32>, now: Instant, actions: &mut Vec<Action<F>>) {
        let ended: Vec<u32> = refused.iter().copied().filter(|rank| !self.is_gone(*rank)).collect();
        match ended[..] {
            _ if !self.is_alone() => {}
            [one] => self.die(one, now, actions),
            _ => ended.into_iter().for_each(|rank| self.lose(rank, WAS_LOST.to_owned(), now, actions)),
        }
    }

    /// Whether no neighbour stays. One that has left may still be connected.
    fn is_alone(&self) -> bool {
        self.neighbours.iter().all(|rank| self.is_gone(*rank))
    }

    /// The ranks that a rank whose parent left connects to, best first: those above it, then the lowest. None for the lowest.
    pub(super) fn heirs(&self, orphan: u32) -> impl Iterator<Item = u32> + '_ {
        let parent = |rank: &u32| self.parents.get(*rank as usize).copied().flatten();
        let above = std::iter::successors(Some(orphan), parent).skip(1);
        above.chain(0..orphan).filter(|rank| !self.is_gone(*rank))
    }

    /// The ranks that a rank which leaves hands its departure over to, best first: its heirs, then the higher ranks.
    pub(super) fn successors(&self, rank: u32) -> impl Iterator<Item = u32> + '_ {
        let higher = (rank.saturating_add(1)..self.parents.len() as u32).filter(|rank| !self.is_gone(*rank));
        self.heirs(rank).chain(higher)
    }

    /// The children of a rank that left which should have connected to this rank and have not.
    pub(super) fn missed_children(&self, left: u32) -> Vec<u32> {
        let is_missed = |child: &u32| {
            !self.neighbours.contains(child)
                && !self.inquiries.contains_key(child)
                && !self.is_gone(*child)
                && self.successors(*child).next() == Some(self.rank)
        };
        tree::children(&self.parents, left).into_iter().filter(is_missed).collect()
    }
}
