//! Leaving a group in good order.
//!
//! A rank that leaves says so, and its neighbours pass it on. If it ended at once and its parent left at the same time, nobody
//! might pass it on, and the ranks that stay would find its process gone and take it for dead. So a rank that leaves *stays* until
//!
//! - every neighbour has confirmed that it heard of the departure, or has disconnected. Messages of a neighbour keep their order, so whatever
//!   a neighbour that leaves too said before has arrived by then, and was passed on;
//! - and its parent has confirmed and does not leave itself. From then on the parent is responsible: it has passed the departure
//!   on, and sends it again to every rank that it connects to later. If the parent leaves or is gone, the rank connects to the rank
//!   that would be its next parent, or else to the lowest of the higher ranks, and hands its departure over there: that is the rank
//!   that would miss it and probe it.
//!
//! It waits no longer than [`DEPARTURE`], and not at all for a group that has failed.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Action, Group, Probe, Seeking, Timer};
use crate::durations::DEPARTURE;
use crate::event::Event;

/// The most ranks that a rank tries to hand its departure over to.
const TRIES_MAX: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Departure {
    /// Neighbours that have not confirmed.
    pub(super) unconfirmed: BTreeSet<u32>,
    /// Neighbours that have.
    confirmed: BTreeSet<u32>,
    /// Whether a parent that stays has confirmed.
    is_handed_over: bool,
    /// Ranks that were tried to hand it over to.
    tried: BTreeSet<u32>,
    /// Whether one of them, or a neighbour whose connection failed, may stay and did not confirm.
    missed_one: bool,
    /// Whether [`DEPARTURE`] has passed.
    pub(super) is_overdue: bool,
    is_over: bool,
}

impl<F: Clone> Group<F> {
    pub(super) fn leave(&mut self, calls: u32, now: Instant, actions: &mut Vec<Action<F>>) {
        self.learn(Event::Left { rank: self.rank, calls }, None, now, actions);
        let (unconfirmed, seeking) = (self.neighbours.clone(), self.seeking.as_ref());
        let tried = seeking.map(|seeking| seeking.tried.clone()).unwrap_or_default();
        let missed_one = !self.inquiries.is_empty();
        self.departure = Some(Departure { unconfirmed, tried, missed_one, ..Departure::default() });
        self.timers.push((now + DEPARTURE, Timer::Departure));
    }

    pub(super) fn confirmed(&mut self, rank: u32) {
        if let Some(departure) = &mut self.departure {
            departure.unconfirmed.remove(&rank);
            departure.confirmed.insert(rank);
            // A rank that leaves is no parent any more.
            departure.is_handed_over |= self.parent == Some(rank) || mutant!("leavers-confirm-leavers");
        }
    }

    /// A neighbour's connection ended.
    pub(super) fn unconfirmed(&mut self, rank: u32) {
        let is_gone = self.is_gone(rank);
        if let Some(departure) = &mut self.departure {
            departure.missed_one |= departure.unconfirmed.remove(&rank) && !is_gone;
        }
    }

    /// Ends the departure, or tries the next rank to hand it over to.
    pub(super) fn proceed_departure(&mut self, actions: &mut Vec<Action<F>>) {
        let Some(departure) = self.departure.as_ref().filter(|departure| !departure.is_over) else { return };
        let is_settled = departure.unconfirmed.is_empty() && self.seeking.is_none();
        let ends = self.cause.is_some() || departure.is_overdue;
        if is_settled && !ends && !departure.is_handed_over && self.hand_over(actions) {
            return;
        }
        let Some(departure) = &mut self.departure else { return };
        if is_settled || ends {
            departure.is_over = true;
            actions.push(Action::Departed { is_confirmed: is_settled && !ends && !departure.missed_one });
        }
    }

    /// Connects to the next rank that may stay. Returns whether there is one that does not know yet.
    fn hand_over(&mut self, actions: &mut Vec<Action<F>>) -> bool {
        let Some(departure) = &self.departure else { return false };
        let is_lower = |rank: &u32| *rank < self.rank || !mutant!("departure-not-handed-up");
        let candidate = self
            .successors(self.rank)
            .filter(is_lower)
            .find(|rank| !departure.tried.contains(rank))
            .filter(|rank| !departure.confirmed.contains(rank));
        let has_tries = departure.tried.len() < TRIES_MAX;
        let Some(departure) = &mut self.departure else { return false };
        departure.missed_one |= candidate.is_some() && !has_tries;
        let Some(candidate) = candidate.filter(|_| has_tries) else { return false };
        departure.tried.insert(candidate);
        self.seeking = Some(Seeking { candidate, ..Seeking::default() });
        actions.push(Action::Reparent(candidate));
        true
    }

    /// A rank that this rank tried to hand its departure over to was not reached.
    pub(super) fn not_handed_over(&mut self, why: Probe) {
        self.seeking = None;
        if let Some(departure) = &mut self.departure {
            departure.missed_one |= matches!(why, Probe::Silent | Probe::Unclear);
        }
    }
}
