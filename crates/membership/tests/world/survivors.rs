//! Drives the regrouping machines. Where `World::blocks` is set, a rank carries out one action at a time.

use std::time::{Duration, Instant};

use super::{Blocked, DELAYS_US, Fault, GroupId, Happens, Life, Node, Star, World, place_of};
use weftlink_membership::durations::{ACCEPT_POLL, PROBE};
use weftlink_membership::regroup::{self, Regroup, Unreached, View};
use weftlink_membership::{Event, Input, Probe};

impl World {
    /// A rank that does not regroup, or no longer does, answers one that comes.
    pub(super) fn answer_late(&mut self, rank: u32, connection: u64, hello: &regroup::Hello) {
        let why = match self.nodes[rank as usize].view.ranks.contains(&hello.from) {
            true => regroup::Abort::Left,
            false => regroup::Abort::Excluded,
        };
        let Some(star) = self.stars.get(&connection).filter(|star| star.is_open) else { return };
        let (to, attempt, when) =
            (star.ends[0], star.attempts[0], self.queue.now() + Duration::from_millis(1));
        let input = match (star.is_call, why) {
            (true, regroup::Abort::Left) => regroup::Input::Probed(rank, Probe::Refused),
            (_, why) => {
                let abort = regroup::Message::Abort { group: None, why };
                regroup::Input::Message(connection, abort)
            }
        };
        self.queue.at(when.max(star.last[0]), Happens::Regroup(to, attempt, input));
        self.close_star(connection, Some(rank));
    }

    pub(super) fn shrink(&mut self, rank: u32, group: GroupId) -> Result<(), String> {
        let random = self.random.draw();
        let node = &mut self.nodes[rank as usize];
        if node.view.group != group || node.regroup.is_some() {
            return Ok(());
        }
        let deadline = self.queue.now() + self.regroup_timeout;
        node.attempt += 1;
        (node.blocked, node.known) = (None, None);
        node.regroup_deadline = deadline;
        node.regroup =
            Some(Regroup::new(rank, vec![node.view.clone()], self.hosts.clone(), deadline, random));
        self.tell_known(rank)?;
        for (connection, hello) in std::mem::take(&mut self.nodes[rank as usize].arrivals) {
            self.regroup_input(rank, regroup::Input::Arrived(connection, hello))?;
        }
        Ok(())
    }

    /// Gives the regrouping machine what the group knows, if that has changed.
    pub(super) fn tell_known(&mut self, rank: u32) -> Result<(), String> {
        let node = &self.nodes[rank as usize];
        if node.regroup.is_none() {
            return Ok(());
        }
        let of = |place: &u32| node.view.ranks[*place as usize];
        let own = place_of(&node.view, rank);
        let cut_off = node.group.lost().iter().filter(|(_, by)| *by == own);
        let known = regroup::Input::Known {
            dead: node.group.dead().iter().map(of).collect(),
            left: node.group.left_before_failure().iter().map(of).collect(),
            cut_off: cut_off.map(|(place, _)| of(place)).collect(),
            continued: node.group.continued(),
        };
        if node.known.as_ref() == Some(&known) {
            return Ok(());
        }
        self.nodes[rank as usize].known = Some(known.clone());
        self.regroup_input(rank, known)
    }

    /// Gives the regrouping machine the children that have connected, if it awaits them.
    pub(super) fn accept_children(&mut self, rank: u32) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if node.blocked.is_some() {
            return Ok(());
        }
        let Some(group) = node.regroup.as_ref().and_then(Regroup::forming).map(|view| view.group) else {
            return Ok(());
        };
        for child in node.children.remove(&group).unwrap_or_default() {
            self.regroup_input(rank, regroup::Input::Child(group, child))?;
        }
        Ok(())
    }

    pub(super) fn regroup_input(&mut self, rank: u32, input: regroup::Input) -> Result<(), String> {
        let node = &mut self.nodes[rank as usize];
        if node.life != Life::Runs {
            return Ok(());
        }
        if let regroup::Input::Arrived(connection, _) = &input
            && let Some(star) = self.stars.get_mut(connection)
        {
            star.attempts[1] = node.attempt;
            if !star.is_open {
                return Ok(());
            }
        }
        use regroup::Input as In;
        if self.blocks
            && let Some(blocked) = &mut node.blocked
        {
            let is_result = matches!(&input, In::Dialed(_) | In::Linked(..));
            if !is_result {
                blocked.inputs.push_back(input);
                return Ok(());
            }
            blocked.results.push_back(input);
            let blocked = node.blocked.take().unwrap_or_default();
            return self.carry_out(rank, blocked);
        }
        let Some(regroup) = &mut node.regroup else {
            // It came while this rank was busy, and has to come again.
            if let In::Arrived(connection, _) = input {
                self.close_star(connection, Some(rank));
            }
            return Ok(());
        };
        let actions = regroup.handle(input, self.queue.now()).into();
        self.carry_out(rank, Blocked { actions, ..Blocked::default() })
    }

    /// Carries out actions until one blocks, then takes in what waited.
    pub(super) fn carry_out(&mut self, rank: u32, mut blocked: Blocked) -> Result<(), String> {
        while let Some(action) = blocked.actions.pop_front() {
            let is_commit = match &action {
                regroup::Action::Send(_, regroup::Message::Commit { group }) => {
                    self.committed.insert(*group, rank);
                    true
                }
                _ => false,
            };
            let blocks = matches!(&action, regroup::Action::Dial(..) | regroup::Action::Link { .. });
            self.regroup_act(rank, action)?;
            if is_commit && let Some(fault) = self.at_commit.pop() {
                match fault {
                    Fault::CutAtCommit(host, time) => self.begin(Fault::Cut(host, time))?,
                    _ => return self.begin(Fault::Kill(rank)),
                }
            }
            if self.blocks && blocks {
                self.nodes[rank as usize].blocked = Some(blocked);
                return Ok(());
            }
        }
        for input in blocked.results.into_iter().chain(blocked.inputs) {
            self.regroup_input(rank, input)?;
        }
        self.accept_children(rank)?;
        self.schedule_wake(rank);
        Ok(())
    }

    pub(super) fn regroup_act(&mut self, rank: u32, action: regroup::Action) -> Result<(), String> {
        use regroup::Action as Act;
        let attempt = self.nodes[rank as usize].attempt;
        if !matches!(action, Act::Send(..)) {
            self.queue.note(|| format!("rank {rank} regroups: {action:?}"));
        }
        match action {
            Act::Dial(to, hello) => {
                let (dialed, time) = self.dial(rank, to);
                let dialed = match dialed {
                    // What it sent last may say that it continued.
                    Err(Unreached::Refused) if self.is_unread(rank, to) => Err(Unreached::Unclear),
                    dialed => dialed,
                };
                let when = self.queue.now() + time;
                let input = match dialed {
                    Ok(()) => {
                        let id = self.queue.number();
                        let last = [when; 2];
                        let (ends, attempts) = ([rank, to], [attempt, 0]);
                        let star = Star { ends, is_call: false, attempts, is_open: true, last };
                        self.stars.insert(id, star);
                        self.queue.at(when, Happens::Arrives(to, id, hello));
                        Ok(id)
                    }
                    Err(unreached) => Err(unreached),
                };
                self.queue.at(when, Happens::Regroup(rank, attempt, regroup::Input::Dialed(input)));
            }
            Act::Send(connection, message) => {
                let delay = self.random.delay(&DELAYS_US);
                let now = self.queue.now();
                if let Some(star) = self.stars.get_mut(&connection).filter(|star| star.is_open) {
                    let end = usize::from(star.ends[0] == rank);
                    star.last[end] = (now + delay).max(star.last[end]);
                    let (to, attempt, when) = (star.ends[end], star.attempts[end], star.last[end]);
                    let input = regroup::Input::Message(connection, message);
                    self.queue.at(when, Happens::Regroup(to, attempt, input));
                }
            }
            Act::Close(connection) => self.close_star(connection, Some(rank)),
            Act::Link { view, parent } => {
                let (linked, time) = self.dial(rank, parent);
                let (group, when) = (view.group, self.queue.now() + time);
                if linked.is_ok() {
                    self.links.insert((group, rank, parent), when);
                    self.links.insert((group, parent, rank), when);
                    self.queue.at(when, Happens::Child(parent, group, rank));
                }
                self.queue.at(when, Happens::Regroup(rank, attempt, regroup::Input::Linked(group, linked)));
            }
            Act::Abandon(view) => self.abandon(rank, view.group),
            Act::Probe(to) | Act::Call(to, _) => {
                let (outcome, time) = self.probe(rank, to);
                if let (Act::Call(_, hello), Probe::Answered) = (action, outcome) {
                    let (id, when) = (self.queue.number(), self.queue.now() + time);
                    let (ends, attempts, last) = ([rank, to], [attempt, 0], [when; 2]);
                    let star = Star { ends, is_call: true, attempts, is_open: true, last };
                    self.stars.insert(id, star);
                    self.queue.at(when, Happens::Arrives(to, id, hello));
                }
                let when = self.queue.now() + time;
                self.queue.at(
                    when,
                    match outcome {
                        Probe::Refused => Happens::Refused(rank, attempt, to, when + PROBE),
                        outcome => Happens::Regroup(rank, attempt, regroup::Input::Probed(to, outcome)),
                    },
                );
            }
            Act::Done(result) => self.regrouped(rank, result)?,
        }
        Ok(())
    }

    /// A rank reports a refused probe, once it has read what the other sent last: that may say that it continued.
    pub(super) fn refused(
        &mut self,
        rank: u32,
        attempt: u32,
        other: u32,
        until: Instant,
    ) -> Result<(), String> {
        let now = self.queue.now();
        let refused = regroup::Input::Probed(other, Probe::Refused);
        match self.nodes[rank as usize].attempt == attempt {
            true if now < until && self.is_unread(rank, other) => {
                self.queue.at(now + ACCEPT_POLL, Happens::Refused(rank, attempt, other, until));
                Ok(())
            }
            true => self.regroup_input(rank, refused),
            false => Ok(()),
        }
    }

    /// A rank closes its connections in the tree of a group that it gives up.
    pub(super) fn abandon(&mut self, rank: u32, group: GroupId) {
        let ended: Vec<(GroupId, u32, u32)> = self
            .links
            .keys()
            .copied()
            .filter(|(other, from, to)| *other == group && (*from == rank || *to == rank))
            .collect();
        for (group, from, to) in ended {
            self.links.remove(&(group, from, to));
            if from == rank
                && let Some(view) = self.view_of(group)
            {
                let place = place_of(&view, rank);
                let event = Event::Failed { rank: place, reason: 2, culprit: place, error: rank };
                self.root(group, event.clone());
                self.after_delay(Happens::Group(to, group, Input::Heard { from: place, event }));
            }
        }
    }

    pub(super) fn regrouped(
        &mut self,
        rank: u32,
        result: Result<View, regroup::Error>,
    ) -> Result<(), String> {
        let node = &self.nodes[rank as usize];
        // A rank that is stopped does nothing by its deadline.
        let deadline = node.regroup_deadline.max(node.resumed);
        let late = self.queue.now().saturating_duration_since(deadline);
        self.outcome.slowest_regroup = self.outcome.slowest_regroup.max(late);
        let view = match result {
            Ok(view) => view,
            // The program lives on without this communicator.
            Err(_) if self.random.one_in(2) => {
                let node = &mut self.nodes[rank as usize];
                (node.regroup, node.blocked, node.stays) = (None, None, true);
                node.attempt += 1;
                return self.leave(rank);
            }
            Err(_) => {
                // The program ends with an error.
                self.nodes[rank as usize].life = Life::Gone;
                self.end(rank);
                return Ok(());
            }
        };
        if !view.ranks.contains(&rank) {
            return Err(format!("rank {rank} is not in its own group {view:?}"));
        }
        let shares = |other: &&View| other.epoch == view.epoch && **other != view && self.has_living(other);
        if let Some(other) = self.epochs.iter().find(shares) {
            return Err(format!("two groups of epoch {}: {other:?} and {view:?}", view.epoch));
        }
        if !self.epochs.contains(&view) {
            // A rank that was stopped may hear of it long after the leader, and be the only one if the leader died while it committed.
            let is_late = self.committed.get(&view.group).is_some_and(|leader| *leader != rank);
            if self.excluded.contains_key(&rank) && !is_late {
                return Err(format!("rank {rank} commits {view:?}, though the others continue without it"));
            }
            self.outcome.groups += 1;
            // Ranks that died while it formed are causes that it begins with.
            for &other in &view.ranks {
                if matches!(self.nodes[other as usize].life, Life::Dead | Life::Gone) {
                    self.root(view.group, Event::Died { rank: place_of(&view, other) });
                }
            }
            self.epochs.push(view.clone());
            let is_stopped = |rank: &u32| self.nodes[*rank as usize].life == Life::Stopped;
            let stopped: Vec<u32> = view.ranks.iter().copied().filter(is_stopped).collect();
            stopped.into_iter().for_each(|rank| self.stop_below(&view, rank));
        }
        // It may hear late that an older group stands, in which it is. That group has failed, and its next attempt to regroup fails.
        if self.excluded.get(&rank).is_some_and(|epoch| view.epoch >= *epoch) {
            return Err(format!("rank {rank} continues in {view:?}, though the others have excluded it"));
        }
        self.continue_elsewhere(rank, &view)?;
        let group = self.machine(&view, rank);
        let neighbours: Vec<u32> = group.neighbours().iter().copied().collect();
        let node = &mut self.nodes[rank as usize];
        (node.group, node.view, node.has_failed, node.regroup) = (group, view.clone(), false, None);
        node.blocked = None;
        node.attempt += 1;
        let early = node.early.remove(&view.group).unwrap_or_default();
        node.early.clear();
        for place in neighbours {
            let other = view.ranks[place as usize];
            if !self.links.contains_key(&(view.group, other, rank)) {
                let is_watched = self.hosts[other as usize] == self.hosts[rank as usize];
                let place = place_of(&view, other);
                let event = Event::Lost { rank: place, by: place_of(&view, rank), what: String::new() };
                self.root(view.group, event);
                self.after_delay(Happens::Group(
                    rank,
                    view.group,
                    Input::Disconnected { rank: place, is_watched },
                ));
                if is_watched && self.killed.contains(&other) {
                    self.after_delay(Happens::Group(rank, view.group, Input::Exited(place)));
                }
            }
        }
        for input in early {
            self.group_input(rank, view.group, input)?;
        }
        self.check_split()
    }

    /// Whether a rank that lives is in this group now.
    pub(super) fn has_living(&self, view: &View) -> bool {
        let is_in = |node: &Node| matches!(node.life, Life::Runs | Life::Stopped) && node.view == *view;
        self.nodes.iter().any(is_in)
    }

    /// A rank says in its old group that it continues in another, and uses nothing of the old one any more.
    pub(super) fn continue_elsewhere(&mut self, rank: u32, view: &View) -> Result<(), String> {
        let old = self.nodes[rank as usize].view.clone();
        let event = Event::Continued { rank: place_of(&old, rank), group: view.group };
        let node = &mut self.nodes[rank as usize];
        // What the old group makes of it does not matter to the machine that is done.
        node.regroup = None;
        node.past.insert(old.group, view.group);
        let actions = node.group.handle(Input::Raise(event), self.queue.now());
        for action in actions {
            self.act(rank, old.group, action)?;
        }
        let is_own =
            |(group, from, to): &(GroupId, u32, u32)| *group == old.group && (*from == rank || *to == rank);
        let ended: Vec<(GroupId, u32, u32)> = self.links.keys().copied().filter(is_own).collect();
        for (group, from, to) in ended {
            let last = self.links.remove(&(group, from, to));
            if from == rank {
                if !view.ranks.contains(&to) {
                    self.excluded.entry(to).or_insert(view.epoch);
                }
                let is_watched = self.hosts[from as usize] == self.hosts[to as usize];
                let input = Input::Disconnected { rank: place_of(&old, rank), is_watched };
                self.queue.at(last.unwrap_or(self.queue.now()), Happens::Group(to, group, input));
            }
        }
        Ok(())
    }

    /// Whether a rank has not read to the end what another sent it in their group.
    fn is_unread(&self, rank: u32, other: u32) -> bool {
        let node = &self.nodes[rank as usize];
        node.group.neighbours().contains(&place_of(&node.view, other))
    }
}
