//! The leader's part.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Abort, Action, Connection, Error, Forming, Hello, Message, Phase, Regroup, View};
use crate::durations::{HELLO, LATE_MINORITY, MINORITY, PROBE, REGROUP_RETRY_MAX};
use crate::quorum::may_continue;

/// The most proposals that a leader aborts, for each rank. Ranks that die or cannot reach each other take one or two.
const ABORTS_MAX_PER_RANK: usize = 8;
/// The most calls of a rank that a rank heeds without being led by it.
const HEEDED_MAX: u32 = 4;

impl Regroup {
    pub(super) fn arrive(
        &mut self,
        connection: Connection,
        hello: Hello,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        self.stands(&hello, now, actions);
        if !self.view().ranks.contains(&hello.from) {
            let why = Abort::Excluded;
            actions.push(Action::Send(connection, Message::Abort { group: None, why }));
            actions.push(Action::Close(connection));
            return;
        }
        let dead = hello.dead.iter().copied().filter(|rank| *rank != self.rank);
        self.out.dead.extend(dead);
        // A rank that came is there, whatever was known of it.
        self.out.unreachable.remove(&hello.from);
        self.passed.remove(&hello.from);
        let from = hello.from;
        self.hear_of_silent(&hello.passed, now, actions);
        // It leads.
        if from < self.rank {
            actions.push(Action::Close(connection));
            let is_leading = matches!(self.phase, Phase::Gathering { .. });
            let awaits_higher =
                matches!(self.phase, Phase::Following { leader, is_led: false, .. } if from < leader);
            if (is_leading || awaits_higher) && self.heeds(from) {
                if is_leading {
                    self.dismiss(None, &Abort::Retry, actions);
                }
                self.retry(now, actions);
            }
            return;
        }
        if let Some((old, _)) = self.arrived.insert(from, (connection, hello)) {
            actions.push(Action::Close(old));
            // It gave the proposal up and came again.
            if let Phase::Forming(Forming { leader: None, view, .. }) = &self.phase
                && view.ranks.contains(&from)
            {
                return self.abort(Abort::Retry, now, actions);
            }
        }
        self.lead(connection, now, actions);
        self.name_leader(actions);
    }

    /// Whether this rank goes to a lower rank that calls it. One that calls and cannot be reached must not hold up the others.
    fn heeds(&mut self, caller: u32) -> bool {
        let calls = self.heeded.entry(caller).or_default();
        *calls += 1;
        *calls <= HEEDED_MAX
    }

    /// If another rank is in a group that this rank was ready for, this rank is in it too.
    fn stands(&mut self, hello: &Hello, now: Instant, actions: &mut Vec<Action>) {
        let is_theirs = |view: &View| hello.views.first().is_some_and(|theirs| theirs.group == view.group);
        let Some(place) = self.views.iter().position(is_theirs).filter(|place| *place > 0) else { return };
        self.past.extend(self.views.drain(..place).map(|view| view.group));
        match self.phase {
            Phase::Gathering { .. } | Phase::Following { .. } => {
                self.dismiss(None, &Abort::Retry, actions);
                self.retry(now, actions);
            }
            // A proposal has a quorum in that group, too.
            _ => {}
        }
    }

    /// Sends ranks that came to this rank instead of its leader that the leader is there.
    pub(super) fn name_leader(&mut self, actions: &mut Vec<Action>) {
        let leader = match &self.phase {
            Phase::Following { leader, is_led: true, .. } => *leader,
            Phase::Forming(Forming { leader: Some((leader, _)), .. }) => *leader,
            _ => return,
        };
        // Once: a rank that comes again cannot reach it.
        let is_new = |from: &u32, _: &mut (Connection, Hello)| self.named.insert((*from, leader));
        let strays: Vec<_> = self.arrived.extract_if(.., is_new).collect();
        for (_, (connection, _)) in strays {
            let why = Abort::LedBy(leader);
            actions.push(Action::Send(connection, Message::Abort { group: None, why }));
            actions.push(Action::Close(connection));
        }
    }

    /// Sends a follower that this rank leads, if it does.
    pub(super) fn lead(&self, connection: Connection, now: Instant, actions: &mut Vec<Action>) {
        let until = match &self.phase {
            Phase::Gathering { .. } => self.gather_end(),
            Phase::Forming(Forming { leader: None, until, .. }) => *until,
            _ => return,
        };
        let wait = until.saturating_duration_since(now);
        actions.push(Action::Send(connection, Message::Gathering { wait }));
    }

    pub(super) fn closed(&mut self, connection: Connection, now: Instant, actions: &mut Vec<Action>) {
        let from = self.arrived.iter().find(|(_, (other, _))| *other == connection).map(|(rank, _)| *rank);
        if let Some(from) = from {
            self.arrived.remove(&from);
            if let Phase::Forming(Forming { leader: None, view, .. }) = &self.phase
                && view.ranks.contains(&from)
            {
                // If it does not connect again, a probe finds out whether it is dead.
                self.abort(Abort::Retry, now, actions);
            }
            return;
        }
        match &self.phase {
            Phase::Following { connection: own, .. } if *own == connection => self.retry(now, actions),
            Phase::Forming(Forming { leader: Some((_, own)), .. }) if *own == connection => {
                self.retry(now, actions);
            }
            _ => {}
        }
    }

    /// When this rank proposes a group at the latest.
    pub(super) fn gather_end(&self) -> Instant {
        self.returning.as_ref().map_or(self.gather_until, |(until, _)| self.gather_until.max(*until))
    }

    /// The follower at the other end of a connection.
    pub(super) fn sender(&self, connection: Connection) -> Option<u32> {
        self.arrived.iter().find(|(_, (other, _))| *other == connection).map(|(rank, _)| *rank)
    }

    /// The ranks that have not come and are not out.
    pub(super) fn missing(&self) -> Vec<u32> {
        let is_missing =
            |rank: &u32| *rank != self.rank && !self.out.has(*rank) && !self.arrived.contains_key(rank);
        self.view().ranks.iter().copied().filter(is_missing).collect()
    }

    /// The ranks of the group that are not here and may live.
    pub(super) fn others(&self, here: &[u32]) -> Vec<u32> {
        let is_other = |rank: &u32| !here.contains(rank) && !self.out.dead.contains(rank);
        self.view().ranks.iter().copied().filter(is_other).collect()
    }

    /// Proposes a group once all have come that may, or when it is too late for the rest.
    pub(super) fn gather(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let missing = self.missing();
        let is_awaited = |(until, ranks): &(Instant, BTreeSet<u32>)| {
            now < *until && missing.iter().any(|rank| ranks.contains(rank))
        };
        if !missing.is_empty() && now < self.gather_until || self.returning.as_ref().is_some_and(is_awaited) {
            return;
        }
        let hellos = self.arrived.values().map(|(_, hello)| hello);
        let own = self.view();
        let theirs = hellos.clone().filter_map(|hello| hello.views.first());
        let newest = theirs.fold(own, |newest, view| if view.epoch > newest.epoch { view } else { newest });
        let may_join = |rank: &u32| newest.ranks.contains(rank) && !self.barred.contains(rank);
        let here: BTreeSet<u32> = self.arrived.keys().copied().chain([self.rank]).filter(may_join).collect();
        // The newest group stands, so no rank is in an older one.
        let is_current = |view: &&View| view.epoch >= newest.epoch;
        let views = hellos.flat_map(|hello| &hello.views).chain(&self.views).filter(is_current);
        let views: BTreeSet<&View> = views.collect();
        let has_quorum = views.iter().all(|view| may_continue(&view.ranks, &here, &self.out.dead));
        let epoch = views.iter().map(|view| view.epoch).max().unwrap_or_default().saturating_add(1);
        let here: Vec<u32> = here.into_iter().collect();
        if !has_quorum {
            // A leader that was stopped meanwhile gives the others a moment even after the deadline.
            // So does one that leads since the deadline, because it has passed over those before: they may call it.
            let until = match now >= self.gather_until + PROBE {
                true => now + LATE_MINORITY,
                false if now >= self.deadline => self.gather_until.min(now + LATE_MINORITY),
                false => self.deadline.min(now + MINORITY),
            };
            let until = *self.minority_until.get_or_insert(until);
            if now >= until {
                let others = self.others(&here);
                let why = Abort::Minority { here: here.clone(), others: others.clone() };
                self.dismiss(None, &why, actions);
                return self.done(Err(Error::Minority { here, others }), actions);
            }
            // The others may only have been slow to answer, or wait for another leader.
            let (own, passed, is_late) = (self.rank, &self.passed, now >= self.deadline);
            self.out.unreachable.retain(|rank| passed.contains(rank) || is_late && *rank < own);
            self.there.clear();
            if self.leader() != self.rank {
                self.dismiss(None, &Abort::Retry, actions);
                return self.retry(now, actions);
            }
            self.gather_until = self.gather_until.max(until);
            self.phase = Phase::Gathering { probe_at: now + PROBE };
            return;
        }
        self.random = mix(self.random ^ u64::from(self.rank));
        let view = View { epoch, group: self.random, ranks: here };
        // Followers that may not be in the new group hear that, so that they do not wait for it.
        let excluded: Vec<u32> =
            self.arrived.keys().copied().filter(|rank| !view.ranks.contains(rank)).collect();
        for rank in excluded {
            if let Some((connection, _)) = self.arrived.remove(&rank) {
                let why = Abort::Excluded;
                actions.push(Action::Send(connection, Message::Abort { group: None, why }));
                actions.push(Action::Close(connection));
            }
        }
        let propose =
            |(connection, _): &(Connection, Hello)| Action::Send(*connection, Message::Propose(view.clone()));
        actions.extend(self.arrived.values().map(propose));
        self.form(view, None, now, actions);
    }

    /// The leader gives its proposal up.
    pub(super) fn abort(&mut self, why: Abort, now: Instant, actions: &mut Vec<Action>) {
        let group = match &self.phase {
            Phase::Forming(forming) => {
                self.returning = Some((now + HELLO, forming.view.ranks.iter().copied().collect()));
                Some(forming.view.group)
            }
            _ => None,
        };
        self.aborts += 1;
        if self.aborts > ABORTS_MAX_PER_RANK * self.hosts.len() {
            let missing = self.missing();
            return self.done(Err(Error::Missing(missing)), actions);
        }
        self.dismiss(group, &why, actions);
        // Followers need a moment to connect again, even if the deadline has passed.
        self.gather_until = self.gather_until.max(now + PROBE + REGROUP_RETRY_MAX);
        self.retry(now, actions);
    }

    /// Sends all followers the reason, and closes their connections.
    pub(super) fn dismiss(&mut self, group: Option<u64>, why: &Abort, actions: &mut Vec<Action>) {
        for (connection, _) in std::mem::take(&mut self.arrived).into_values() {
            actions.push(Action::Send(connection, Message::Abort { group, why: why.clone() }));
            actions.push(Action::Close(connection));
        }
    }
}

fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
