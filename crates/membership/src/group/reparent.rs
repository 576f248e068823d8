//! Finding out what became of ranks, and finding a new parent.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Action, Gone, Group, HAS_CONTINUED, INQUIRY_ATTEMPTS_MIN, Probe, Seeking, Timer, WAS_LOST};
use crate::durations::{INQUIRY_RETRY, PROBE_CHILDREN_AFTER, REPARENT};
use crate::event::Event;
use crate::tree;

/// The most ranks that a rank tries as its new parent.
const REPARENT_TRIES_MAX: usize = 64;
/// The most searches for a new parent that end without one; each follows after twice the time of the one before.
const REPARENT_SEARCHES_MAX: u32 = 6;
/// The most probes of children that do not reconnect; each follows after twice the time of the one before.
const CHILD_PROBES_MAX: u32 = 6;

impl<F: Clone> Group<F> {
    pub(super) fn probed(&mut self, rank: u32, outcome: Probe, now: Instant, actions: &mut Vec<Action<F>>) {
        // A rank that did not reconnect and is there may still do so.
        if self.missed.remove(&rank) && outcome == Probe::Refused && !self.neighbours.contains(&rank) {
            self.inquiries.remove(&rank);
            return self.end(rank, now, actions);
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

    /// A process of the group has ended, or exits.
    pub(super) fn exited(&mut self, rank: u32, now: Instant, actions: &mut Vec<Action<F>>) {
        self.disconnect(rank);
        self.inquiries.remove(&rank);
        match mutant!("dead-count-as-lost") {
            true => self.lose(rank, WAS_LOST.to_owned(), now, actions),
            false => self.die(rank, now, actions),
        }
    }

    /// Whether the process of a rank exits, whose connection has ended.
    pub(super) fn exit_checked(
        &mut self,
        rank: u32,
        is_exiting: bool,
        now: Instant,
        actions: &mut Vec<Action<F>>,
    ) {
        let Some(inquiry) = self.inquiries.get(&rank).filter(|inquiry| inquiry.is_watched) else { return };
        if is_exiting {
            self.exited(rank, now, actions);
        } else if now < inquiry.until {
            self.timers.push((now + INQUIRY_RETRY, Timer::Inquiry(rank)));
        } else {
            self.inquiries.remove(&rank);
            self.lose(rank, WAS_LOST.to_owned(), now, actions);
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
            None if seeking.is_worth_retrying && self.search_again(now) => {}
            None => self.conclude(&seeking.refused, now, actions),
        }
    }

    /// Searches again later, unless it has done so often enough.
    pub(super) fn search_again(&mut self, now: Instant) -> bool {
        let may = self.searches < REPARENT_SEARCHES_MAX;
        if may {
            self.searches += 1;
            self.timers.push((now + REPARENT * (1 << self.searches), Timer::Reparent));
        }
        may
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
        if why == Probe::Refused {
            seeking.refused.insert(rank);
        }
        // It left while this rank had no neighbour to hear it from. Waiting for it would take until a deadline.
        match gone {
            Some(Gone::Left { calls }) => {
                self.has_gaps = true;
                self.learn(Event::Left { rank, calls }, None, now, actions);
            }
            Some(Gone::Continued { group }) => {
                // Ranks regroup after a failure, which this rank has not heard of and none of them will pass on.
                if self.cause.is_none() {
                    self.lose(rank, HAS_CONTINUED.to_owned(), now, actions);
                }
                self.learn(Event::Continued { rank, group }, None, now, actions);
            }
            None => {}
        }
        if self.departure.is_some() {
            return self.not_handed_over(why);
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
            [one] => self.end(one, now, actions),
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

    /// Probes the children of a rank that left which should have connected to this rank and have not. One that answers may still
    /// connect, or may leave without a rank that confirms it, so it is probed again.
    pub(super) fn probe_children(
        &mut self,
        left: u32,
        probes: u32,
        now: Instant,
        actions: &mut Vec<Action<F>>,
    ) {
        let missed = self.missed_children(left);
        if !missed.is_empty() && probes + 1 < CHILD_PROBES_MAX {
            let when = now + PROBE_CHILDREN_AFTER * (2 << probes);
            self.timers.push((when, Timer::Children(left, probes + 1)));
        }
        for child in missed {
            self.missed.insert(child);
            actions.push(Action::Probe(child));
        }
    }

    fn missed_children(&self, left: u32) -> Vec<u32> {
        let is_missed = |child: &u32| {
            !self.neighbours.contains(child)
                && !self.inquiries.contains_key(child)
                && !self.is_gone(*child)
                && self.successors(*child).next() == Some(self.rank)
        };
        tree::children(&self.parents, left).into_iter().filter(is_missed).collect()
    }
}
