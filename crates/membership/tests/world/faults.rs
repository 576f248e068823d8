//! Faults: how they begin, and what ends with a process or a connection.

use std::time::Instant;

use super::{DELAYS_US, Failure, Fault, GroupId, Happens, Life, World, place_of};
use weftlink_membership::regroup::{self, View};
use weftlink_membership::{Event, Input, tree};

impl World {
    pub(super) fn begin(&mut self, fault: Fault) -> Result<(), String> {
        if let Fault::Kill(rank)
        | Fault::Leave(rank)
        | Fault::LeaveAndStay(rank)
        | Fault::Ignore(rank)
        | Fault::Stop(rank, _) = fault
        {
            self.faulty.insert(rank);
        }
        match fault {
            Fault::Kill(rank) => {
                let node = &mut self.nodes[rank as usize];
                if matches!(node.life, Life::Dead | Life::Gone) {
                    return Ok(());
                }
                node.life = Life::Dead;
                if node.is_leaving {
                    self.unconfirmed.insert(node.view.group);
                }
                self.end(rank);
                Ok(())
            }
            Fault::Ignore(rank) => {
                self.nodes[rank as usize].ignores = true;
                Ok(())
            }
            Fault::Leave(rank) | Fault::LeaveAndStay(rank) => {
                // A rank that has failed, or regroups, does not leave in good order.
                let node = &mut self.nodes[rank as usize];
                node.stays |= matches!(fault, Fault::LeaveAndStay(_)) && !node.is_leaving;
                match node.has_failed || node.group.cause().is_some() {
                    true => Ok(()),
                    false => self.leave(rank),
                }
            }
            Fault::Abort(rank) => {
                let (view, place) = (self.nodes[rank as usize].view.clone(), self.place(rank));
                if self.nodes[rank as usize].group.cause().is_some() {
                    return Ok(());
                }
                let event = Event::Failed { rank: place, reason: 1, culprit: place, error: rank };
                self.root(view.group, event.clone());
                self.group_input(rank, view.group, Input::Raise(event))
            }
            Fault::Stop(rank, time) => {
                let view = self.nodes[rank as usize].view.clone();
                self.stop_below(&view, rank);
                let (node, resumed) = (&mut self.nodes[rank as usize], self.queue.now() + time);
                if node.life == Life::Runs {
                    (node.life, node.resumed) = (Life::Stopped, resumed);
                    self.queue.at(resumed, Happens::Resume(rank));
                }
                Ok(())
            }
            Fault::CutAtCommit(..) | Fault::KillAtCommit => {
                self.at_commit.push(fault);
                Ok(())
            }
            Fault::Cut(..) | Fault::CutPair(..) => {
                self.had_cut = true;
                match fault {
                    Fault::CutPair(one, other, time) => {
                        self.pairs.insert((one, other));
                        self.apart.insert(other);
                        self.queue.at(self.queue.now() + time, Happens::HealPair(one, other));
                    }
                    Fault::Cut(host, time) => {
                        self.had_partition = true;
                        self.cuts.insert(host);
                        self.queue.at(self.queue.now() + time, Happens::Heal(host));
                    }
                    _ => {}
                }
                let cut: Vec<(GroupId, u32, u32)> =
                    self.links.keys().copied().filter(|(_, from, to)| self.is_cut(*from, *to)).collect();
                for (group, from, to) in cut {
                    let last = self.links.remove(&(group, from, to));
                    // What was in flight arrives before the receiver notices the cut, or is lost.
                    if self.random.one_in(2) {
                        self.lose_messages(group, from, to);
                    }
                    self.notice_end(group, from, to, last.unwrap_or(self.queue.now()));
                }
                let cut: Vec<u64> = self
                    .stars
                    .iter()
                    .filter(|(_, star)| star.is_open && self.is_cut(star.ends[0], star.ends[1]))
                    .map(|(id, _)| *id)
                    .collect();
                for connection in cut {
                    self.close_star(connection, None);
                }
                Ok(())
            }
        }
    }

    /// Ranks below one that is stopped do not hear of failures in time.
    pub(super) fn stop_below(&mut self, view: &View, rank: u32) {
        let hosts: Vec<u32> = view.ranks.iter().map(|rank| self.hosts[*rank as usize]).collect();
        let parents = tree::parents(&tree::number_hosts(&hosts, |one, other| one == other));
        let above = |place: &u32| parents[*place as usize];
        let own = place_of(view, rank);
        let is_below = |place: &u32| std::iter::successors(Some(*place), above).any(|one| one == own);
        let below = (0..view.ranks.len() as u32).filter(is_below);
        self.faulty.extend(below.map(|place| view.ranks[place as usize]));
    }

    pub(super) fn root(&mut self, group: GroupId, event: Event<Failure>) {
        self.roots.entry(group).or_default().push(event);
    }

    pub(super) fn place(&self, rank: u32) -> u32 {
        place_of(&self.nodes[rank as usize].view, rank)
    }

    /// One end of a tree connection notices that it failed, some time later.
    fn notice_end(&mut self, group: GroupId, from: u32, to: u32, last: Instant) {
        let Some(view) = self.view_of(group) else { return };
        let (other, is_watched) =
            (place_of(&view, from), self.hosts[from as usize] == self.hosts[to as usize]);
        if !self.killed.contains(&from) {
            let event = Event::Lost { rank: other, by: place_of(&view, to), what: String::new() };
            self.root(group, event);
        }
        let when = (self.queue.now() + self.random.delay(&DELAYS_US)).max(last);
        self.queue.at(when, Happens::Group(to, group, Input::Disconnected { rank: other, is_watched }));
    }

    /// Messages from one rank to another that have not arrived never do. A connection that both ends have begun counts as there.
    fn lose_messages(&mut self, group: GroupId, from: u32, to: u32) {
        let Some(view) = self.view_of(group) else { return };
        let sender = place_of(&view, from);
        self.queue.retain(|happens| match happens {
            Happens::Group(rank, other, Input::Heard { from, .. } | Input::Confirmed(from)) => {
                (*rank, *other, *from) != (to, group, sender)
            }
            _ => true,
        });
    }

    pub(super) fn view_of(&self, group: GroupId) -> Option<View> {
        self.epochs.iter().find(|view| view.group == group).cloned()
    }

    /// A process ends that others count on.
    pub(super) fn end(&mut self, rank: u32) {
        self.killed.insert(rank);
        self.end_everywhere(rank);
        self.close_all(rank, true);
    }

    /// From now on a rank that reports this one as dead is right.
    pub(super) fn end_everywhere(&mut self, rank: u32) {
        for view in self.epochs.clone().iter().filter(|view| view.ranks.contains(&rank)) {
            self.root(view.group, Event::Died { rank: place_of(view, rank) });
        }
    }

    /// A process ends: its connections do, and neighbours on its host see the process end.
    pub(super) fn close_all(&mut self, rank: u32, is_death: bool) {
        self.ended.insert(rank, self.queue.now());
        let ended: Vec<(GroupId, u32, u32)> =
            self.links.keys().copied().filter(|(_, from, to)| *from == rank || *to == rank).collect();
        for (group, from, to) in ended {
            // What was sent before arrives first.
            let last = self.links.remove(&(group, from, to));
            if from != rank {
                continue;
            }
            let Some(view) = self.view_of(group) else { continue };
            let place = place_of(&view, rank);
            let is_watched = self.hosts[from as usize] == self.hosts[to as usize];
            let delay = self.random.delay(&DELAYS_US);
            let when = (self.queue.now() + delay).max(last.unwrap_or(self.queue.now()));
            self.queue.at(when, Happens::Group(to, group, Input::Disconnected { rank: place, is_watched }));
            if is_watched && is_death {
                // The kernel reports it within the time that an inquiry takes, unless nobody runs there. The driver reads what
                // was sent before.
                let when =
                    (self.queue.now() + self.random.delay(&DELAYS_US)).max(last.unwrap_or(self.queue.now()));
                self.queue.at(when, Happens::Group(to, group, Input::Exited(place)));
            }
        }
        let stars: Vec<u64> =
            self.stars.iter().filter(|(_, star)| star.ends.contains(&rank)).map(|(id, _)| *id).collect();
        for connection in stars {
            self.close_star(connection, Some(rank));
        }
    }

    /// Ends a connection to a leader; the end that closed it does not hear of that.
    pub(super) fn close_star(&mut self, connection: u64, by: Option<u32>) {
        let Some(star) = self.stars.get_mut(&connection) else { return };
        if !std::mem::replace(&mut star.is_open, false) {
            return;
        }
        let (ends, attempts, last) = (star.ends, star.attempts, star.last);
        for end in [0, 1] {
            if Some(ends[end]) != by {
                let delay = self.random.delay(&DELAYS_US);
                let when = (self.queue.now() + delay).max(last[end]);
                let input = regroup::Input::Closed(connection);
                self.queue.at(when, Happens::Regroup(ends[end], attempts[end], input));
                self.nodes[ends[end] as usize].arrivals.retain(|(other, _)| *other != connection);
            }
        }
    }
}
