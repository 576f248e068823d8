//! A follower's part, and what both parts do with messages.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Abort, Action, Connection, Error, Forming, Message, Phase, Regroup, Unreached};
use crate::durations::{HELLO, INQUIRY};

impl Regroup {
    pub(super) fn dialed(
        &mut self,
        dialed: Result<Connection, Unreached>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Phase::Dialing { leader } = self.phase else {
            if let Ok(connection) = dialed {
                actions.push(Action::Close(connection));
            }
            return;
        };
        let unclear_since = self.unclear_since.take();
        match dialed {
            // Another rank has found it silent meanwhile, or this rank is in another group.
            Ok(connection) if self.out.has(leader) || !self.view().ranks.contains(&leader) => {
                actions.push(Action::Close(connection));
                self.retry(now, actions);
            }
            Ok(connection) => {
                let until = self.deadline.max(now) + HELLO;
                self.phase = Phase::Following { leader, connection, since: now, until, is_led: false };
            }
            // A rank that is stopped is not passed over before: the others may be waiting there already.
            Err(Unreached::Silent) if now >= self.deadline => self.pass_over(leader, now, actions),
            Err(Unreached::Silent) => self.retry(now, actions),
            Err(Unreached::Refused) => {
                self.out.dead.insert(leader);
                self.retry(now, actions);
            }
            Err(Unreached::Unclear) if unclear_since.is_none_or(|since| now < since + INQUIRY) => {
                self.unclear_since = Some(unclear_since.unwrap_or(now));
                self.retry(now, actions);
            }
            Err(Unreached::NoRoute | Unreached::Unclear) => {
                self.out.unreachable.insert(leader);
                self.retry(now, actions);
            }
        }
    }

    /// The leader is silent at the deadline: the next one leads.
    pub(super) fn pass_over(&mut self, leader: u32, now: Instant, actions: &mut Vec<Action>) {
        self.out.unreachable.insert(leader);
        self.passed.insert(leader);
        // Other ranks that are stopped would each take as long as this one.
        let is_unknown = |rank: &u32| {
            *rank < self.rank
                && !self.out.has(*rank)
                && !self.there.contains(rank)
                && !self.checking.contains(rank)
        };
        let lower: Vec<u32> = self.view().ranks.iter().copied().filter(is_unknown).collect();
        self.checking.extend(&lower);
        actions.extend(lower.into_iter().map(Action::Probe));
        self.retry(now, actions);
    }

    /// Another rank has passed these leaders over. If this rank waits for one of them, it gives it a moment to answer, because this
    /// rank may have begun much later than the other. It makes up its own mind about the rest: a rank that waits for a silent leader
    /// answers no better than that leader.
    pub(super) fn hear_of_silent(&mut self, silent: &BTreeSet<u32>, now: Instant, actions: &mut Vec<Action>) {
        let deadline = self.deadline;
        let Phase::Following { leader, since, until, is_led: false, .. } = &mut self.phase else { return };
        if !silent.contains(leader) {
            return;
        }
        *until = (*until).min(*since + HELLO);
        if now >= deadline.min(*until) {
            let leader = *leader;
            self.out.unreachable.insert(leader);
            self.passed.insert(leader);
            self.retry(now, actions);
        }
    }

    pub(super) fn linked(
        &mut self,
        group: u64,
        linked: Result<(), Unreached>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Phase::Forming(forming) = &mut self.phase else { return };
        if forming.view.group != group {
            return;
        }
        match linked {
            Ok(()) => forming.is_linked = true,
            Err(unreached) => {
                let parent = forming.view.parent(&self.hosts, self.rank);
                if let (Some((_, connection)), Some(parent)) = (forming.leader, parent) {
                    let is_dead = unreached == Unreached::Refused;
                    actions.push(Action::Send(connection, Message::Failed { group, parent, is_dead }));
                }
                self.retry(now, actions);
            }
        }
    }

    pub(super) fn hear(
        &mut self,
        connection: Connection,
        message: Message,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        match message {
            Message::Gathering { wait } => {
                if let Phase::Following { leader, connection: own, until, is_led, .. } = &mut self.phase
                    && *own == connection
                    && let Some(later) = now.checked_add(wait)
                {
                    self.heeded.remove(leader);
                    // Its deadline counts, which may be later.
                    self.deadline = self.deadline.max(later);
                    self.gather_until = self.gather_until.max(later);
                    (*until, *is_led) = (self.deadline + HELLO, true);
                    self.name_leader(actions);
                }
            }
            Message::Propose(view) => {
                let Phase::Following { leader, connection: own, .. } = self.phase else { return };
                let follows = view.follows(self.view(), self.hosts.len());
                let is_right = own == connection && view.ranks.contains(&self.rank) && follows;
                if !is_right {
                    return;
                }
                actions.push(Action::Send(connection, Message::Forming { group: view.group }));
                self.form(view, Some((leader, connection)), now, actions);
            }
            Message::Commit { group } => {
                if let Phase::Forming(forming) = &self.phase
                    && forming.view.group == group
                    && forming.leader.is_some_and(|(_, own)| own == connection)
                {
                    let view = forming.view.clone();
                    actions.push(Action::Close(connection));
                    self.done(Ok(view), actions);
                }
            }
            Message::Abort { group, why } => self.aborted(connection, group, why, now, actions),
            Message::Forming { group } | Message::Ready { group } => {
                let from = self.sender(connection);
                if let Phase::Forming(forming) = &mut self.phase
                    && let Some(from) = from.filter(|_| forming.view.group == group)
                {
                    forming.heard.insert(from);
                    if matches!(message, Message::Ready { .. }) {
                        forming.ready.insert(from);
                    }
                }
            }
            Message::Failed { group, parent, is_dead } => {
                let from = self.sender(connection);
                if let (Phase::Forming(forming), Some(from)) = (&self.phase, from)
                    && forming.view.group == group
                {
                    let (lower, higher) = (from.min(parent), from.max(parent));
                    match is_dead {
                        true if parent != self.rank => drop(self.out.dead.insert(parent)),
                        false => self.fail_to_connect(lower, higher),
                        _ => {}
                    }
                    self.abort(Abort::Retry, now, actions);
                }
            }
        }
    }

    /// Two ranks could not connect. Once it may have been a proposal that others gave up. Twice, the later of the two is out; if that
    /// happens to two ranks of its host, the whole host is.
    fn fail_to_connect(&mut self, lower: u32, higher: u32) {
        let host = |rank: u32| self.hosts.get(rank as usize).copied();
        let hosts = (host(lower), host(higher));
        let is_of_host = |rank: &u32| *rank != self.rank && hosts.0 != hosts.1 && host(*rank) == hosts.1;
        let is_out = |rank: &u32| *rank == higher || is_of_host(rank);
        let barred: Vec<u32> = match self.apart_hosts.contains(&hosts) {
            true => self.view().ranks.iter().copied().filter(is_out).collect(),
            false if !self.apart.insert((lower, higher)) => vec![higher],
            false => return,
        };
        self.apart_hosts.insert(hosts);
        self.out.unreachable.extend(&barred);
        self.barred.extend(barred);
    }

    pub(super) fn aborted(
        &mut self,
        connection: Connection,
        group: Option<u64>,
        why: Abort,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let own = match &self.phase {
            Phase::Following { leader, connection, .. } => Some((*leader, *connection)),
            Phase::Forming(Forming { leader: Some(leader), .. }) => Some(*leader),
            _ => None,
        };
        let Some((leader, _)) = own.filter(|(_, own)| *own == connection) else { return };
        // The leader has not committed that group and never will.
        let current = self.view().group;
        self.views.retain(|view| Some(view.group) != group || view.group == current);
        match why {
            Abort::Retry => {
                // The leader is there, and tries again even if the deadline has passed.
                self.deadline = self.deadline.max(now);
                self.retry(now, actions);
            }
            Abort::LedBy(leader) => {
                self.out.unreachable.remove(&leader);
                self.passed.remove(&leader);
                self.deadline = self.deadline.max(now);
                self.retry(now, actions);
            }
            Abort::Left => {
                self.out.dead.insert(leader);
                self.retry(now, actions);
            }
            Abort::Minority { here, others } => self.done(Err(Error::Minority { here, others }), actions),
            Abort::Excluded => self.done(Err(Error::Excluded), actions),
        }
    }
}
