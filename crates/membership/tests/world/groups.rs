//! Drives the group machines: events along the tree, departures, probes and connections.

use std::time::Duration;

use super::{DELAYS_US, Failure, GroupId, Happens, Life, World, place_of};
use weftlink_membership::durations::{HELLO, PROBE, REPARENT};
use weftlink_membership::regroup::Unreached;
use weftlink_membership::{Action, Event, Gone, Input, Probe};

impl World {
    pub(super) fn leave(&mut self, rank: u32) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if std::mem::replace(&mut node.is_leaving, true) {
            return Ok(());
        }
        let group = node.view.group;
        self.group_input(rank, group, Input::Leave { calls: 0 })
    }

    /// A rank that left ends. Unless its departure was confirmed, ranks that stay may take it for dead.
    pub(super) fn departed(&mut self, rank: u32, is_confirmed: bool) {
        let node = &mut self.nodes[rank as usize];
        let group = node.view.group;
        node.life = if node.stays { Life::Away } else { Life::Gone };
        if node.stays {
            for (connection, hello) in std::mem::take(&mut node.arrivals) {
                self.answer_late(rank, connection, &hello);
            }
        }
        match is_confirmed {
            true => {
                self.outcome.confirmed += 1;
                self.departures.push((group, rank));
            }
            false => {
                self.unconfirmed.insert(group);
                self.end_everywhere(rank);
            }
        }
        self.close_all(rank, false);
    }

    pub(super) fn group_input(
        &mut self,
        rank: u32,
        group: GroupId,
        input: Input<Failure>,
    ) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if node.view.group != group {
            // It may not have heard yet that the group stands.
            if node.regroup.is_some() {
                node.early.entry(group).or_default().push(input);
            }
            return Ok(());
        }
        let actions = node.group.handle(input, self.queue.now());
        for action in actions {
            self.act(rank, group, action)?;
        }
        self.schedule_wake(rank);
        self.tell_known(rank)?;
        let node = &mut self.nodes[rank as usize];
        let goes_on = node.life == Life::Runs && !node.is_leaving;
        if node.group.cause().is_some() && !node.has_failed && goes_on {
            node.has_failed = true;
            let cause = node.group.cause().cloned();
            let roots = self.roots.get(&group).map_or(&[][..], Vec::as_slice);
            cause.map_or(Ok(()), |cause| self.check_cause(rank, &cause, roots))?;
            let delay = self.random.delay(&DELAYS_US);
            if !self.nodes[rank as usize].ignores {
                self.queue.at(self.queue.now() + delay, Happens::Shrink(rank, group));
            }
        }
        Ok(())
    }

    pub(super) fn act(&mut self, rank: u32, group: GroupId, action: Action<Failure>) -> Result<(), String> {
        let view = self.nodes[rank as usize].view.clone();
        let of = |place: u32| view.ranks[place as usize];
        if !matches!(action, Action::Send { .. } | Action::Deliver(_)) {
            self.queue.note(|| format!("rank {rank} of group {group}: {action:?}"));
        }
        match action {
            Action::Send { to, event } => {
                let (to, from) = (of(to), place_of(&view, rank));
                let delay = self.random.delay(&DELAYS_US);
                if let Some(last) = self.links.get_mut(&(group, rank, to)) {
                    *last = (self.queue.now() + delay).max(*last);
                    let when = *last;
                    self.queue.at(when, Happens::Group(to, group, Input::Heard { from, event }));
                }
            }
            Action::Deliver(Event::Died { rank: place }) => {
                self.outcome.deaths_heard += 1;
                if matches!(self.nodes[of(place) as usize].life, Life::Runs | Life::Stopped | Life::Away) {
                    return Err(format!("rank {rank} takes rank {} for dead, which lives", of(place)));
                }
            }
            Action::Deliver(_) => {}
            Action::CheckExit(place) => {
                let is_exiting = self.nodes[of(place) as usize].life == Life::Dead;
                let checked = Input::ExitChecked { rank: place, is_exiting };
                self.queue.at(self.queue.now(), Happens::Group(rank, group, checked));
            }
            Action::Probe(place) => {
                let (outcome, time) = self.probe(rank, of(place));
                self.queue
                    .at(self.queue.now() + time, Happens::Group(rank, group, Input::Probed(place, outcome)));
            }
            Action::Reparent(place) => {
                let (to, own) = (of(place), place_of(&view, rank));
                match self.nodes[to as usize].life {
                    Life::Runs | Life::Away if !self.is_cut(rank, to) => {
                        self.after_delay(Happens::Orphan(to, group, rank, own));
                    }
                    _ => self.not_reparented(group, rank, to),
                }
            }
            Action::Close(place) => {
                let to = of(place);
                let last = self.links.remove(&(group, rank, to)).unwrap_or(self.queue.now());
                self.links.remove(&(group, to, rank));
                let is_watched = self.hosts[rank as usize] == self.hosts[to as usize];
                let input = Input::Disconnected { rank: place_of(&view, rank), is_watched };
                self.queue.at(last, Happens::Group(to, group, input));
            }
            Action::Confirm(place) => {
                let (to, from) = (of(place), place_of(&view, rank));
                let delay = self.random.delay(&DELAYS_US);
                if let Some(last) = self.links.get_mut(&(group, rank, to)) {
                    *last = (self.queue.now() + delay).max(*last);
                    let when = *last;
                    self.queue.at(when, Happens::Group(to, group, Input::Confirmed(from)));
                }
            }
            Action::Departed { is_confirmed } => self.departed(rank, is_confirmed),
        }
        Ok(())
    }

    /// A rank whose parent left comes to another, which takes it in or answers that it is not in the group.
    pub(super) fn take_in(
        &mut self,
        rank: u32,
        group: GroupId,
        orphan: u32,
        place: u32,
    ) -> Result<(), String> {
        let node = &self.nodes[rank as usize];
        // The orphan does not confirm in time that it was accepted.
        if self.nodes[orphan as usize].life == Life::Stopped
            && self.nodes[orphan as usize].view.group == group
        {
            if let Some(view) = self.view_of(group) {
                let (rank, why) = (place_of(&view, rank), Probe::Silent);
                let input = Input::NotReparented { rank, why, gone: None };
                self.queue.at(self.queue.now() + REPARENT, Happens::Group(orphan, group, input));
            }
            return Ok(());
        }
        // The orphan has ended, or given up, if this rank was stopped for long.
        if self.nodes[orphan as usize].life != Life::Runs || self.nodes[orphan as usize].view.group != group {
            return Ok(());
        }
        if node.view.group != group || self.is_cut(rank, orphan) {
            self.not_reparented(group, orphan, rank);
            return Ok(());
        }
        let own = place_of(&node.view, rank);
        // If both connect to each other at the same time, each sends all lasting events on both connections, so that none overtakes
        // another that was sent before. One link with one order stands for both.
        let (now, accepted) = (self.queue.now(), self.queue.now() + self.random.delay(&DELAYS_US));
        for (pair, when) in [((group, orphan, rank), now), ((group, rank, orphan), accepted)] {
            let last = self.links.entry(pair).or_insert(when);
            *last = when.max(*last);
        }
        let connected = self.links[&(group, rank, orphan)];
        self.queue.at(connected, Happens::Group(orphan, group, Input::Connected(own)));
        self.group_input(rank, group, Input::Connected(place))
    }

    pub(super) fn not_reparented(&mut self, group: GroupId, orphan: u32, to: u32) {
        let Some(view) = self.view_of(group) else { return };
        let node = &self.nodes[to as usize];
        let gone = match node.past.get(&group) {
            Some(later) => Some(Gone::Continued { group: *later }),
            None if node.view.group == group => Some(Gone::Left { calls: 0 }),
            None => None,
        };
        let why = match node.life {
            _ if self.is_cut(orphan, to) => Probe::Silent,
            // It may not have heard yet that the group stands.
            Life::Runs | Life::Away if gone.is_none() => Probe::Unclear,
            Life::Runs | Life::Away => Probe::Answered,
            Life::Stopped => Probe::Silent,
            Life::Dead | Life::Gone => Probe::Refused,
        };
        let gone = gone.filter(|_| why == Probe::Answered);
        let limit = if why == Probe::Silent { REPARENT } else { Duration::ZERO };
        let delay = self.random.delay(&DELAYS_US) + limit;
        let input = Input::NotReparented { rank: place_of(&view, to), why, gone };
        self.queue.at(self.queue.now() + delay, Happens::Group(orphan, group, input));
    }

    /// What a probe finds, and after which time.
    pub(super) fn probe(&mut self, from: u32, to: u32) -> (Probe, Duration) {
        let delay = self.random.delay(&DELAYS_US);
        if self.is_cut(from, to) {
            return (Probe::Silent, PROBE);
        }
        match self.nodes[to as usize].life {
            Life::Runs | Life::Away if delay < PROBE => (Probe::Answered, delay),
            Life::Runs | Life::Away | Life::Stopped => (Probe::Silent, PROBE),
            // A process that has just ended may still have a socket.
            Life::Dead | Life::Gone if self.has_just_ended(to) => (Probe::Unclear, delay.min(PROBE / 8)),
            Life::Dead | Life::Gone => (Probe::Refused, delay),
        }
    }

    pub(super) fn has_just_ended(&self, rank: u32) -> bool {
        self.ended.get(&rank).is_some_and(|when| self.queue.now() < *when + Duration::from_millis(20))
    }

    pub(super) fn dial(&mut self, from: u32, to: u32) -> (Result<(), Unreached>, Duration) {
        let delay = self.random.delay(&DELAYS_US);
        if self.is_cut(from, to) {
            let limit = if self.random.one_in(2) { HELLO } else { delay };
            return (Err(Unreached::NoRoute), limit);
        }
        match self.nodes[to as usize].life {
            Life::Runs | Life::Away => (Ok(()), delay),
            // A connection to a process that is stopped waits in its queue.
            Life::Stopped => {
                let time = self.nodes[to as usize].resumed - self.queue.now() + delay;
                if time < HELLO { (Ok(()), time) } else { (Err(Unreached::Silent), HELLO) }
            }
            Life::Dead | Life::Gone if self.has_just_ended(to) => (Err(Unreached::Unclear), delay),
            Life::Dead | Life::Gone => (Err(Unreached::Refused), delay),
        }
    }
}
