//! Rank 0's part: it admits the other ranks or refuses them, and places all in the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Connection, Contact, Hello, Message, Refusal, Settings, Slot, Stall, difference};
use crate::durations::CHILDREN;
use crate::tree::{self, Shape};

/// What happened.
#[derive(Debug, Clone)]
pub enum AdmitInput<C, E> {
    /// A process that has proved that it knows the secret wants to join.
    Arrived(Connection, Hello<C>),
    /// A connection has ended.
    Closed(Connection),
    /// An [`AdmitAction::Inquire`] has a result: whether the process of that rank has ended.
    Inquired {
        /// The rank.
        rank: u32,
        /// Whether its process has ended. Otherwise only the connection has.
        is_dead: bool,
    },
    /// A child has connected.
    Child(u32),
    /// An [`AdmitAction::Settle`] has a result.
    Settled(Result<(), E>),
    /// The time that [`Admit::next_timeout`] named has come.
    Timeout,
}

/// What the driver has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmitAction<C, E> {
    /// Send a message to a process.
    Send(Connection, Message<C, Refusal, AdmitError<E>>),
    /// Close a connection, once what was sent is written.
    Close(Connection),
    /// Log that this rank waits for these.
    Warn(Vec<u32>),
    /// All ranks have joined: close the listeners at the address of the rendezvous.
    StopListening,
    /// Find out what became of a rank whose connection has ended, and report [`AdmitInput::Inquired`].
    Inquire(u32, C),
    /// All children are connected: form the group, send the members down the tree, and run the barrier. Report
    /// [`AdmitInput::Settled`].
    Settle,
    /// It is over.
    Done(Result<(), AdmitError<E>>),
}

/// Why the rendezvous failed on rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmitError<E> {
    /// These ranks did not join or connect in time.
    Missing(Vec<u32>),
    /// A rank's process ended after all ranks had joined.
    Died(u32),
    /// The connection to a rank ended after all ranks had joined.
    Lost(u32),
    /// The barrier failed.
    Settle(E),
}

/// How ranks are connected.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of the new group.
    pub group: u64,
    /// The shape of its tree.
    pub shape: Shape,
    /// Whether ranks join over a network. If so, ranks of rank 0's host need another connection to it, which can carry descriptors.
    pub is_network: bool,
}

/// All ranks, placed in the tree.
#[derive(Debug, Clone)]
pub struct Placed<C> {
    /// The contact and the host of each rank.
    pub members: Vec<(C, u32)>,
    /// The parent of each rank.
    pub parents: Vec<Option<u32>>,
    /// The children of rank 0 whose connections become links.
    pub here: BTreeMap<u32, Connection>,
}

#[derive(Debug)]
enum Phase<C> {
    Admitting,
    /// Children of rank 0 that have not connected.
    Placing(Placed<C>, BTreeSet<u32>),
    Inquiring(u32),
    Settling(Placed<C>),
    Done,
    Failed,
}

/// Rank 0's part in the rendezvous. `E` is the error of a barrier.
#[derive(Debug)]
pub struct Admit<C, E> {
    own: C,
    terms: Vec<(String, String)>,
    settings: Settings,
    plan: Plan,
    /// The ranks that have joined.
    joined: BTreeMap<u32, (C, Connection)>,
    stall: Stall,
    phase: Phase<C>,
    failed: std::marker::PhantomData<E>,
}

impl<C: Contact, E: Clone> Admit<C, E> {
    /// Begins to admit ranks.
    pub fn new(
        own: C,
        terms: Vec<(String, String)>,
        settings: Settings,
        plan: Plan,
        now: Instant,
    ) -> Admit<C, E> {
        let stall = Stall::new(settings.warn_after, now);
        let (joined, phase) = (BTreeMap::new(), Phase::Admitting);
        Admit { own, terms, settings, plan, joined, stall, phase, failed: std::marker::PhantomData }
    }

    /// Takes in what happened. The actions are to be carried out in order.
    pub fn handle(&mut self, input: AdmitInput<C, E>, now: Instant) -> Vec<AdmitAction<C, E>> {
        let mut actions = Vec::new();
        let is_timeout = matches!(input, AdmitInput::Timeout);
        match input {
            AdmitInput::Arrived(connection, hello) => self.arrive(connection, hello, &mut actions),
            AdmitInput::Closed(connection) => self.closed(connection, &mut actions),
            AdmitInput::Inquired { rank, is_dead } => {
                if matches!(self.phase, Phase::Inquiring(other) if other == rank) {
                    let error = if is_dead { AdmitError::Died(rank) } else { AdmitError::Lost(rank) };
                    self.fail(error, &mut actions);
                }
            }
            AdmitInput::Child(rank) => {
                if let Phase::Placing(_, missing) = &mut self.phase {
                    missing.remove(&rank);
                }
            }
            AdmitInput::Settled(settled) => {
                if let Phase::Settling(placed) = &self.phase {
                    match settled {
                        Ok(()) => {
                            self.phase = Phase::Done;
                            actions.push(AdmitAction::Done(Ok(())));
                        }
                        Err(error) => {
                            // Those whose connections are links have heard it from the group.
                            let here: BTreeSet<Connection> = placed.here.values().copied().collect();
                            self.joined.retain(|_, (_, connection)| !here.contains(connection));
                            self.fail(AdmitError::Settle(error), &mut actions);
                        }
                    }
                }
            }
            AdmitInput::Timeout => {}
        }
        self.proceed(&mut actions);
        if is_timeout {
            self.time_out(now, &mut actions);
        }
        actions
    }

    /// When to call [`Admit::handle`] with [`AdmitInput::Timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let until = match &self.phase {
            Phase::Admitting => self.settings.deadline,
            Phase::Placing(..) => self.settings.deadline + CHILDREN,
            Phase::Inquiring(_) | Phase::Settling(_) | Phase::Done | Phase::Failed => return None,
        };
        Some(self.stall.next.map_or(until, |next| next.min(until)))
    }

    /// All ranks in the tree, once all have joined.
    pub fn placed(&self) -> Option<&Placed<C>> {
        match &self.phase {
            Phase::Placing(placed, _) | Phase::Settling(placed) => Some(placed),
            _ => None,
        }
    }

    /// Whether rank 0 waits for a child to connect.
    pub fn awaits(&self, child: u32) -> bool {
        matches!(&self.phase, Phase::Placing(_, missing) if missing.contains(&child))
    }

    /// The contact of a rank that has joined.
    pub fn contact(&self, rank: u32) -> Option<&C> {
        self.joined.get(&rank).map(|(contact, _)| contact)
    }

    /// The ranks that have not joined, or not connected.
    fn missing(&self) -> Vec<u32> {
        match &self.phase {
            Phase::Placing(_, missing) => missing.iter().copied().collect(),
            _ => (1..self.settings.size).filter(|rank| !self.joined.contains_key(rank)).collect(),
        }
    }

    fn arrive(&mut self, connection: Connection, hello: Hello<C>, actions: &mut Vec<AdmitAction<C, E>>) {
        // The rendezvous has failed, or is about to.
        if matches!(self.phase, Phase::Inquiring(_) | Phase::Failed) {
            return actions.push(AdmitAction::Close(connection));
        }
        match self.refusal(&hello) {
            Some(refusal) => {
                actions.push(AdmitAction::Send(connection, Message::Refused(refusal)));
                actions.push(AdmitAction::Close(connection));
            }
            None => {
                actions.push(AdmitAction::Send(connection, Message::Accepted));
                let joined = self.joined.insert(hello.rank, (hello.contact, connection));
                actions.extend(joined.map(|(_, old)| AdmitAction::Close(old)));
            }
        }
    }

    /// The first reason to refuse a process.
    fn refusal(&self, hello: &Hello<C>) -> Option<Refusal> {
        let Hello { rank, size, .. } = *hello;
        if let Some((name, theirs, ours)) = difference(&hello.terms, &self.terms) {
            return Some(Refusal::Terms(name, theirs, ours));
        }
        if size != self.settings.size && !mutant!("sizes-not-compared") {
            return Some(Refusal::Size(size));
        }
        if !(1..self.settings.size).contains(&rank) {
            return Some(Refusal::Rank(rank));
        }
        let joined = self.joined.get(&rank).filter(|_| !mutant!("duplicates-admitted"));
        let is_back =
            |contact: &C| matches!(self.phase, Phase::Admitting) && contact.is_process_of(&hello.contact);
        joined.filter(|(contact, _)| !is_back(contact)).map(|(contact, _)| Refusal::Duplicate(contact.pid()))
    }

    fn closed(&mut self, connection: Connection, actions: &mut Vec<AdmitAction<C, E>>) {
        let of = |(rank, (_, other)): (&u32, &(C, Connection))| (*other == connection).then_some(*rank);
        let Some(rank) = self.joined.iter().find_map(of) else { return };
        match &self.phase {
            Phase::Admitting if mutant!("slot-not-given-back") => {}
            Phase::Admitting => drop(self.joined.remove(&rank)),
            Phase::Placing(..) => {
                if let Some((contact, _)) = self.joined.get(&rank) {
                    actions.push(AdmitAction::Inquire(rank, contact.clone()));
                    self.phase = Phase::Inquiring(rank);
                }
            }
            // The group notices by itself.
            Phase::Inquiring(_) | Phase::Settling(_) | Phase::Done | Phase::Failed => {}
        }
    }

    /// Takes the steps that need no further input.
    fn proceed(&mut self, actions: &mut Vec<AdmitAction<C, E>>) {
        if matches!(self.phase, Phase::Admitting) && self.joined.len() as u32 + 1 == self.settings.size {
            self.place(actions);
        }
        if let Phase::Placing(placed, missing) = &self.phase
            && missing.is_empty()
        {
            self.phase = Phase::Settling(placed.clone());
            actions.push(AdmitAction::Settle);
        }
    }

    /// Nothing else checks the time: a rank that was stopped past its deadline takes in first what came meanwhile.
    fn time_out(&mut self, now: Instant, actions: &mut Vec<AdmitAction<C, E>>) {
        let deadline = self.settings.deadline;
        let until = match self.phase {
            Phase::Admitting => deadline,
            Phase::Placing(..) => deadline + CHILDREN,
            _ => return,
        };
        if now >= until {
            return self.fail(AdmitError::Missing(self.missing()), actions);
        }
        if self.stall.is_due(now) {
            let missing = self.missing();
            if matches!(self.phase, Phase::Admitting) {
                for (_, connection) in self.joined.values() {
                    actions.push(AdmitAction::Send(*connection, Message::Waiting(missing.clone())));
                }
            }
            actions.push(AdmitAction::Warn(missing));
        }
    }

    /// Sends every rank its slot. All ranks have joined.
    fn place(&mut self, actions: &mut Vec<AdmitAction<C, E>>) {
        actions.push(AdmitAction::StopListening);
        let others = self.joined.values().map(|(contact, _)| contact.clone());
        let contacts: Vec<C> = std::iter::once(self.own.clone()).chain(others).collect();
        let hosts = tree::number_hosts(&contacts, C::is_on_host_of);
        let parents = self.plan.shape.parents(&hosts);
        // A child of rank 0 keeps its connection if that is the right kind: a socket of this host for those on it.
        let is_here = |rank: u32| {
            parents[rank as usize] == Some(0) && (hosts[rank as usize] == hosts[0]) != self.plan.is_network
        };
        let mut here = BTreeMap::new();
        for (&rank, (_, connection)) in &self.joined {
            let parent = parents[rank as usize].unwrap_or(0);
            let slot = Slot {
                group: self.plan.group,
                shape: self.plan.shape,
                parent: (!is_here(rank)).then(|| (parent, contacts[parent as usize].clone())),
                children: tree::children(&parents, rank),
            };
            actions.push(AdmitAction::Send(*connection, Message::Slot(slot)));
            if is_here(rank) {
                here.insert(rank, *connection);
            }
        }
        let missing = tree::children(&parents, 0).into_iter().filter(|rank| !is_here(*rank)).collect();
        let members = contacts.into_iter().zip(hosts).collect();
        self.phase = Phase::Placing(Placed { members, parents, here }, missing);
    }

    /// Reports an error to all ranks that have joined.
    fn fail(&mut self, error: AdmitError<E>, actions: &mut Vec<AdmitAction<C, E>>) {
        if !mutant!("missing-ranks-not-reported") {
            for (_, connection) in self.joined.values() {
                actions.push(AdmitAction::Send(*connection, Message::Failed(error.clone())));
            }
        }
        self.phase = Phase::Failed;
        actions.push(AdmitAction::Done(Err(error)));
    }
}
