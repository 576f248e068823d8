//! Regrouping: the ranks that are left of a group form a new one.
//!
//! [`weftlink_membership::regroup`] has the protocol; this is its driver. The rank's own thread runs it: it polls the connections
//! between followers and leader, takes over connections that the monitor thread has accepted, and carries out actions one by
//! one. An action that blocks (a connection to the leader or to a parent) takes [`HELLO`] at most, and what arrives meanwhile waits.
//!
//! Ranks keep the numbers that they had in the first group, and each keeps the contacts of that whole group ([`Lineage`]). However often
//! they have regrouped, and whichever of the groups between a rank missed, they find each other. A rank that comes to
//! regroup after the others have done so without it hears that from the monitor thread (`monitor.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weftlink_membership::durations::{ACCEPT_POLL, HELLO, PROBE, SEND};
use weftlink_membership::regroup::{self, Abort, Action, Connection, Input, Regroup, Unreached, View};
use weftlink_membership::{Probe, tree};
use weftlink_shm::limits::STACK_BYTES;
use weftlink_shm::poll_hook;

use super::broken::Broken;
use super::channel::Channel;
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::group::{Group, Link};
use super::message::{Contact, Introduction, Member, Message};
use super::monitor::Monitor;
use super::secret::random_number;
use super::waits::Watch;

const PURPOSE: &str = "regrouping";
/// Probes that are under way at once.
const PROBES_MAX: usize = 16;

/// What a group has in common with those that it came out of by regrouping.
#[derive(Debug, Clone)]
pub(super) struct Lineage {
    /// The number of the first group.
    pub(super) id: u64,
    /// The members of the first group.
    members: Arc<[Member]>,
    /// This group. Its ranks are numbered as in the first.
    view: View,
}

impl Lineage {
    /// The lineage of a group that did not come out of another.
    pub(super) fn new(group: &Group) -> Lineage {
        let members: Arc<[Member]> = group.members.get().map_or(&[][..], Vec::as_slice).into();
        let ranks = (0..members.len() as u32).collect();
        Lineage { id: group.id, members, view: View { epoch: 0, group: group.id, ranks } }
    }

    /// The rank in this group of a rank of the first.
    fn rank(&self, number: u32) -> Option<u32> {
        self.view.ranks.iter().position(|other| *other == number).map(|rank| rank as u32)
    }

    /// The number in the first group of a rank of this one.
    fn number(&self, rank: u32) -> u32 {
        self.view.ranks[rank as usize]
    }

    fn contact(&self, number: u32) -> &Contact {
        &self.members[number as usize].contact
    }

    /// The rank that each rank of a group that came out of this one has here.
    pub(super) fn origins(&self, later: &Lineage) -> Vec<usize> {
        later.view.ranks.iter().filter_map(|number| self.rank(*number)).map(|rank| rank as usize).collect()
    }
}

/// Forms a group of those who are left of `old`: all ranks that live and do this within the limit.
pub(super) fn regroup(
    old: &Arc<Group>,
    monitor: &Monitor,
    lineage: &Lineage,
    limit: Duration,
) -> Result<(Arc<Group>, Lineage), BootstrapError> {
    Driver::new(old, monitor, lineage, limit)?.run()
}

struct Driver<'a> {
    old: &'a Arc<Group>,
    monitor: &'a Monitor,
    lineage: &'a Lineage,
    limit: Duration,
    /// Written to when the monitor thread has accepted a connection.
    wake: Arc<OwnedFd>,
    machine: Regroup,
    inputs: VecDeque<Input>,
    /// What the machine knows of the old group.
    known: Option<Input>,
    /// Ranks to probe, and what to tell them.
    probes: VecDeque<(u32, Option<regroup::Hello>)>,
    /// Since when processes have ended whose last messages have not been read.
    unread: BTreeMap<u32, Instant>,
    /// Ranks whose probe was refused, reported once their last messages have been read.
    refused: BTreeSet<u32>,
    /// Connections between this rank and its followers or leader.
    connections: BTreeMap<Connection, Channel>,
    connected: Connection,
    /// Those to ranks that this rank has called, the last one to each: a rank that has left the old group answers that.
    called: BTreeMap<Connection, u32>,
    /// Connections in the tree of the group that is forming.
    parent: Option<Arc<Link>>,
    children: Vec<Arc<Link>>,
}

impl<'a> Driver<'a> {
    fn new(
        old: &'a Arc<Group>,
        monitor: &'a Monitor,
        lineage: &'a Lineage,
        limit: Duration,
    ) -> Result<Driver<'a>, BootstrapError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake
            .map_err(|error| BootstrapError::System { what: format!("cannot make an eventfd: {error}") })?;
        let wake = Arc::new(wake);
        monitor.wake_on_arrival(&wake);
        let limit = Deadline::new(limit).limit();
        let hosts = lineage.members.iter().map(|member| member.host).collect();
        let (rank, views, deadline) =
            (lineage.number(old.rank), vec![lineage.view.clone()], Instant::now() + limit);
        Ok(Driver {
            old,
            monitor,
            lineage,
            limit,
            wake,
            machine: Regroup::new(rank, views, hosts, deadline, random_number()?),
            inputs: VecDeque::new(),
            known: None,
            probes: VecDeque::new(),
            unread: BTreeMap::new(),
            refused: BTreeSet::new(),
            connections: BTreeMap::new(),
            connected: 0,
            called: BTreeMap::new(),
            parent: None,
            children: Vec::new(),
        })
    }

    fn run(mut self) -> Result<(Arc<Group>, Lineage), BootstrapError> {
        let mut watch = Watch::new(self.old, PURPOSE);
        loop {
            self.collect();
            while let Some(input) = self.inputs.pop_front() {
                let actions = self.machine.handle(input, Instant::now());
                if let Some(result) = self.carry_out(actions) {
                    watch.over();
                    return self.finish(result);
                }
                self.accept_children();
            }
            let ranks = self.machine.waits_for();
            let ranks: Vec<u32> = ranks.into_iter().filter_map(|number| self.lineage.rank(number)).collect();
            if !ranks.is_empty() {
                watch.look(&ranks);
            }
            match self.probes.is_empty() {
                true => self.wait(),
                false => self.probe(),
            }
        }
    }

    /// Takes in what has happened.
    fn collect(&mut self) {
        // A peer may have named a rank that does not exist.
        let numbers = |ranks: BTreeSet<u32>| {
            let known = |rank: u32| self.lineage.view.ranks.get(rank as usize).copied();
            ranks.into_iter().filter_map(known).collect()
        };
        let (dead, left, cut_off) =
            (numbers(self.old.dead()), numbers(self.old.left_before_failure()), numbers(self.old.cut_off()));
        let known = Input::Known { dead, left, cut_off, continued: self.old.continued() };
        if self.known.as_ref() != Some(&known) {
            self.known = Some(known.clone());
            self.inputs.push_back(known);
        }
        for number in std::mem::take(&mut self.refused) {
            self.refuse(number);
        }
        let lineage = self.lineage;
        let is_follower = |introduction: &Introduction| {
            matches!(introduction, Introduction::Regroup { lineage: id, hello }
                if *id == lineage.id && (hello.from as usize) < lineage.members.len())
        };
        for (introduction, channel) in self.monitor.arrivals(is_follower) {
            if let Introduction::Regroup { hello, .. } = introduction {
                let (rank, from, dead) = (self.old.rank as usize, hello.from, &hello.dead);
                tracing::info!(target: "weft::meet", rank, "rank {from} of the first group regroups too; it knows of the deaths of {dead:?}");
                let connection = self.add(channel);
                self.inputs.push_back(Input::Arrived(connection, hello));
            }
        }
        self.accept_children();
        let mut ended = Vec::new();
        for (&connection, channel) in &self.connections {
            let (messages, has_ended) = match channel.receive_ready() {
                Ok(messages) => (messages, false),
                Err((messages, _)) => (messages, true),
            };
            let mut has_ended = has_ended;
            for (message, _) in messages {
                match (message, self.called.get(&connection)) {
                    (Message::Regroup(message), None) => {
                        self.inputs.push_back(Input::Message(connection, message));
                    }
                    (Message::Regroup(regroup::Message::Abort { why: Abort::Left, .. }), Some(&number)) => {
                        self.inputs.push_back(Input::Probed(number, Probe::Refused));
                    }
                    _ => has_ended = true,
                }
            }
            if has_ended {
                ended.push(connection);
            }
        }
        for connection in ended {
            self.connections.remove(&connection);
            self.called.remove(&connection);
            self.inputs.push_back(Input::Closed(connection));
        }
        if self.machine.next_timeout().is_some_and(|when| when <= Instant::now()) {
            self.inputs.push_back(Input::Timeout);
        }
    }

    /// Takes over connections of children in the group that is forming. Children of other groups wait: this rank may not have
    /// heard of the group yet.
    fn accept_children(&mut self) {
        let Some(view) = self.machine.forming() else { return };
        let is_child = |introduction: &Introduction| {
            matches!(introduction, Introduction::Link { group, from }
                if *group == view.group && (*from as usize) < view.ranks.len())
        };
        for (introduction, channel) in self.monitor.arrivals(is_child) {
            if let Introduction::Link { group, from } = introduction {
                self.children.push(self.monitor.link(from, channel));
                self.inputs.push_back(Input::Child(group, view.ranks[from as usize]));
            }
        }
    }

    fn add(&mut self, channel: Channel) -> Connection {
        self.connected += 1;
        self.connections.insert(self.connected, channel);
        self.connected
    }

    /// Carries out actions in order, except that probes come later. Returns the result once there is one.
    fn carry_out(&mut self, actions: Vec<Action>) -> Option<Result<View, regroup::Error>> {
        let rank = self.old.rank as usize;
        for action in actions {
            match action {
                Action::Dial(leader, hello) => {
                    let introduction = Introduction::Regroup { lineage: self.lineage.id, hello };
                    let contact = self.lineage.contact(leader);
                    let dialed = self.monitor.dial(contact, &introduction, Deadline::new(HELLO));
                    if let Err(broken) = &dialed {
                        tracing::info!(target: "weft::meet", rank, "cannot reach rank {leader} of the first group to regroup: {broken:?}");
                    }
                    let dialed = match dialed {
                        Ok(channel) => Ok(self.add(channel)),
                        Err(Broken::Refused) if self.is_unread(leader) => Err(Unreached::Unclear),
                        Err(broken) => Err(unreached(&broken)),
                    };
                    self.inputs.push_back(Input::Dialed(dialed));
                }
                // A connection that cannot be written to has ended, which reading finds.
                Action::Send(connection, message) => {
                    if let Some(channel) = self.connections.get(&connection) {
                        let _ = channel.post(&Message::Regroup(message));
                    }
                }
                Action::Close(connection) => {
                    if let Some(channel) = self.connections.remove(&connection) {
                        let _ = channel.drain(Deadline::new(SEND));
                    }
                }
                Action::Link { view, parent } => {
                    let place = |number: u32| position(&view, number);
                    let link = Introduction::Link {
                        group: view.group,
                        from: place(self.lineage.number(self.old.rank)),
                    };
                    let contact = self.lineage.contact(parent);
                    let linked = match self.monitor.dial(contact, &link, Deadline::new(HELLO)) {
                        Ok(channel) => {
                            self.parent = Some(self.monitor.link(place(parent), channel));
                            Ok(())
                        }
                        Err(broken) => Err(unreached(&broken)),
                    };
                    self.inputs.push_back(Input::Linked(view.group, linked));
                }
                Action::Abandon(view) => self.abandon(&view),
                Action::Probe(number) => self.add_probe(number, None),
                Action::Call(number, hello) => self.add_probe(number, Some(hello)),
                Action::Done(result) => return Some(result),
            }
        }
        None
    }

    fn add_probe(&mut self, number: u32, hello: Option<regroup::Hello>) {
        self.probes.retain(|(other, _)| *other != number);
        self.probes.push_back((number, hello));
    }

    /// Whether the process of a rank has ended and what it sent last in the old group has not been read: it may say that the rank
    /// continued elsewhere. A child that it forked may keep the connection open, so this holds for a moment only.
    fn is_unread(&mut self, number: u32) -> bool {
        let Some(rank) = self.lineage.rank(number).filter(|rank| self.old.is_neighbour(*rank)) else {
            return false;
        };
        tracing::trace!(target: "weft::meet", rank = self.old.rank as usize, "rank {rank} has ended; reading what it sent");
        self.unread.entry(number).or_insert_with(Instant::now).elapsed() < PROBE
    }

    /// Closes the connections in the tree of a group that does not form. Neighbours hear that, so that those that take the group
    /// for formed do not take this rank for dead.
    fn abandon(&mut self, view: &View) {
        let rank = position(view, self.lineage.number(self.old.rank));
        tracing::info!(target: "weft::meet", rank = self.old.rank as usize, "ranks {:?} of the first group do not form a group; retrying", view.ranks);
        let is_child = |introduction: &Introduction| matches!(introduction, Introduction::Link { group, .. } if *group == view.group);
        for (introduction, channel) in self.monitor.arrivals(is_child) {
            if let Introduction::Link { from, .. } = introduction {
                self.children.push(self.monitor.link(from, channel));
            }
        }
        let group = Group::new(view.group, rank, self.parent.take(), std::mem::take(&mut self.children));
        let cause = "it regroups again".to_owned();
        group.fail_for(&BootstrapError::GaveUp { rank: rank as usize, cause, blamed: Vec::new() });
        self.monitor.refuse_children(view.group);
    }

    /// Probes the next ranks in turn, a few at once, so that this takes [`PROBE`] at most, however many are silent.
    fn probe(&mut self) {
        poll_hook::poll();
        let next: Vec<_> = self.probes.drain(..self.probes.len().min(PROBES_MAX)).collect();
        let (monitor, lineage) = (self.monitor, self.lineage);
        type Probed = (Probe, Option<Channel>);
        let probe = |number: u32, hello: Option<regroup::Hello>| -> Probed {
            let is_call = hello.is_some();
            let regroup = |hello| Introduction::Regroup { lineage: lineage.id, hello };
            let introduction = hello.map_or(Introduction::Probe, regroup);
            match monitor.dial(lineage.contact(number), &introduction, Deadline::new(PROBE)) {
                Ok(channel) => (Probe::Answered, Some(channel).filter(|_| is_call)),
                Err(Broken::Refused) => (Probe::Refused, None),
                Err(Broken::Late | Broken::Unreachable(_)) => (Probe::Silent, None),
                Err(_) => (Probe::Unclear, None),
            }
        };
        let probe = &probe;
        let probed: Vec<(u32, Probed)> = std::thread::scope(|scope| {
            type Started<'a> = Result<ScopedJoinHandle<'a, Probed>, Option<regroup::Hello>>;
            let begin = |(number, hello): (u32, Option<regroup::Hello>)| {
                let thread =
                    std::thread::Builder::new().name("weft-helper".to_owned()).stack_size(STACK_BYTES);
                let sent = hello.clone();
                (number, thread.spawn_scoped(scope, move || probe(number, sent)).map_err(|_| hello))
            };
            let threads: Vec<(u32, Started<'_>)> = next.into_iter().map(begin).collect();
            // Where no thread could be started, this one probes.
            let join = |(number, thread): (u32, Started<'_>)| match thread {
                Ok(thread) => (number, thread.join().unwrap_or((Probe::Unclear, None))),
                Err(hello) => (number, probe(number, hello)),
            };
            threads.into_iter().map(join).collect()
        });
        for (number, (outcome, call)) in probed {
            if let Some(channel) = call {
                let earlier = self.called.extract_if(.., |_, other| *other == number);
                earlier.for_each(|(connection, _)| drop(self.connections.remove(&connection)));
                let connection = self.add(channel);
                self.called.insert(connection, number);
            }
            match outcome {
                Probe::Refused => self.refuse(number),
                outcome => self.inputs.push_back(Input::Probed(number, outcome)),
            }
        }
    }

    /// Reports a refused probe, unless messages that the rank sent before it ended have not been read.
    fn refuse(&mut self, number: u32) {
        match self.is_unread(number) {
            true => drop(self.refused.insert(number)),
            false => self.inputs.push_back(Input::Probed(number, Probe::Refused)),
        }
    }

    /// Waits until something happens, but not longer than a moment: not everything wakes this thread.
    fn wait(&self) {
        poll_hook::poll();
        let timeout = self.machine.next_timeout().map(|when| when.saturating_duration_since(Instant::now()));
        let timeout = poll_hook::at_most(timeout.unwrap_or(ACCEPT_POLL).min(ACCEPT_POLL));
        let mut watched = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        for channel in self.connections.values() {
            let writable = if channel.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            watched.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN | writable));
        }
        let timeout = Timespec::try_from(timeout).ok();
        let _ = poll(&mut watched, timeout.as_ref());
        drop(watched);
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.connections.values().for_each(|channel| drop(channel.flush()));
    }

    fn finish(self, result: Result<View, regroup::Error>) -> Result<(Arc<Group>, Lineage), BootstrapError> {
        let view = result.map_err(|error| self.error(error))?;
        let Driver { old, monitor, lineage, parent, mut children, .. } = self;
        children.sort_by_key(|link| link.rank);
        let rank = position(&view, lineage.number(old.rank));
        let members: Vec<&Member> =
            view.ranks.iter().map(|number| &lineage.members[*number as usize]).collect();
        let hosts = tree::number_hosts(&members, |one, other| one.host == other.host);
        let members = members.into_iter().zip(hosts);
        let members =
            members.map(|(member, host)| Member { contact: member.contact.clone(), host }).collect();
        let group = Group::new(view.group, rank, parent, children);
        group.set_members(members, tree::Shape::Binomial);
        monitor.watch(&group);
        monitor.regrouped(lineage.id, &view.ranks);
        Ok((group, Lineage { id: lineage.id, members: Arc::clone(&lineage.members), view }))
    }

    /// An error in the numbers of the old group.
    fn error(&self, error: regroup::Error) -> BootstrapError {
        let rank = |number: u32| self.lineage.rank(number).unwrap_or(number) as usize;
        let ranks = |numbers: Vec<u32>| numbers.into_iter().map(rank).collect();
        let (purpose, limit) = (PURPOSE.to_owned(), self.limit);
        match error {
            regroup::Error::Minority { here, others } => {
                let size = self.lineage.view.ranks.len();
                BootstrapError::Minority { here: ranks(here), others: ranks(others), size }
            }
            regroup::Error::Missing(missing) => {
                BootstrapError::Missing { ranks: ranks(missing), purpose, limit }
            }
            regroup::Error::Excluded => BootstrapError::Excluded { rank: self.old.rank as usize },
        }
    }
}

/// The rank in a new group of a rank of the first.
fn position(view: &View, number: u32) -> u32 {
    view.ranks.iter().position(|other| *other == number).unwrap_or_default() as u32
}

fn unreached(broken: &Broken) -> Unreached {
    match broken {
        Broken::Refused => Unreached::Refused,
        Broken::Late => Unreached::Silent,
        Broken::Unreachable(_) => Unreached::NoRoute,
        _ => Unreached::Unclear,
    }
}

#[cfg(test)]
mod tests;
