//! The part of every other rank: it finds rank 0, is admitted, and takes its slot in the tree.
//! [`weftlink_membership::rendezvous`] decides; this is its driver, on the rank's own thread. An action that blocks (a connection to
//! rank 0 or to the parent) takes a few seconds at most, and what arrives meanwhile waits.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weftlink_membership::durations::{CHILDREN, PLACE};
use weftlink_membership::rendezvous::{
    self, Connection, Ended, Hello, Join, JoinAction, JoinError, JoinInput, Undialed, Unlinked,
};

use super::address::{call_abstract, call_path, call_tcp, resolve};
use super::broken::{ANOTHER, Broken};
use super::channel::Channel;
use super::connections::Connections;
use super::deadline::Deadline;
use super::error::{BootstrapError, Refusal, Request};
use super::group::{Group, Link};
use super::message::{Contact, Introduction, Message};
use super::monitor::Monitor;
use super::reason::error_in;
use super::rendezvous::{Met, PURPOSE, Rendezvous, bad_call, check, log_stall, unusable};
use super::rendezvous_address::RendezvousAddress;
use super::slots::in_place;

type Machine = Join<Contact, Refusal, BootstrapError>;
type Input = JoinInput<Contact, Refusal, BootstrapError>;
type Action = JoinAction<Contact, Refusal, BootstrapError>;
type Error = JoinError<Refusal, BootstrapError>;

/// Any other rank: finds rank 0 and waits until all are there.
pub(super) fn join(rendezvous: &Rendezvous, rank: usize) -> Result<Met, BootstrapError> {
    check(rendezvous, rank)?;
    if rank == 0 {
        return Err(bad_call("rank 0 listens, only the others join".to_owned()));
    }
    let deadline = Deadline::new(rendezvous.deadline);
    let monitor = Monitor::new(&rendezvous.token, rendezvous.host()?)?;
    let is_only_place =
        !matches!(&rendezvous.address, RendezvousAddress::Tcp { ports, .. } if ports.start() != ports.end());
    let settings = rendezvous.settings(rank as u32, deadline);
    let (machine, actions) = Join::new(settings, is_only_place, Instant::now());
    let driver = Driver {
        rendezvous,
        rank,
        monitor: &monitor,
        deadline,
        machine,
        inputs: VecDeque::new(),
        connections: Connections::new(&monitor)?,
        places: Box::new(std::iter::empty()),
        own_addresses: None,
        root_pid: 0,
        parent: None,
        children: Vec::new(),
        group: None,
    };
    let group = driver.run(actions)?;
    Ok((Some(monitor), group))
}

struct Driver<'a> {
    rendezvous: &'a Rendezvous,
    rank: usize,
    monitor: &'a Monitor,
    deadline: Deadline,
    machine: Machine,
    inputs: VecDeque<Input>,
    connections: Connections,
    /// Places where rank 0 may be and that have not been tried.
    places: Box<dyn Iterator<Item = Reached> + 'a>,
    /// Where ranks of other hosts find this one, once that is known.
    own_addresses: Option<Vec<SocketAddr>>,
    root_pid: u32,
    parent: Option<Arc<Link>>,
    children: Vec<Arc<Link>>,
    group: Option<Arc<Group>>,
}

impl Driver<'_> {
    fn run(mut self, actions: Vec<Action>) -> Result<Arc<Group>, BootstrapError> {
        let mut result = self.carry_out(actions);
        while result.is_none() {
            self.collect();
            while let Some(input) = self.inputs.pop_front().filter(|_| result.is_none()) {
                let actions = self.machine.handle(input, Instant::now());
                result = self.carry_out(actions);
            }
            if result.is_none() && self.inputs.is_empty() {
                self.connections.wait(self.machine.next_timeout());
            }
        }
        let error = match (result, self.group.take()) {
            (Some(Err(error)), _) => self.error(error),
            (_, Some(group)) => return Ok(group),
            (_, None) => BootstrapError::Protocol { rank: self.rank, what: "no group".to_owned() },
        };
        // Otherwise neighbours that are connected would take this rank for dead when it ends.
        if let Some(slot) = self.machine.slot() {
            let (parent, children) = (self.parent.take(), std::mem::take(&mut self.children));
            Group::new(slot.group, self.rank as u32, parent, children).fail_for(&error);
        }
        Err(error)
    }

    /// Takes in what has happened.
    fn collect(&mut self) {
        for (connection, received) in self.connections.receive() {
            let input = match received {
                Ok(message) => JoinInput::Message(connection, self.message(message)),
                Err(broken) => JoinInput::Closed(connection, self.ended(broken)),
            };
            self.inputs.push_back(input);
        }
        if let Some(slot) = self.machine.slot() {
            for link in self.monitor.children(slot.group, |rank| self.machine.awaits(rank)) {
                self.inputs.push_back(JoinInput::Child(link.rank));
                self.children.push(link);
            }
        }
        if self.machine.next_timeout().is_some_and(|when| when <= Instant::now()) {
            self.inputs.push_back(JoinInput::Timeout);
        }
    }

    fn message(&mut self, message: Message) -> rendezvous::Message<Contact, Refusal, BootstrapError> {
        use rendezvous::Message as To;
        match message {
            Message::Accepted { pid } => {
                self.root_pid = pid;
                To::Accepted
            }
            Message::Refused(reason) => To::Refused(reason),
            Message::Waiting { ranks, .. } => To::Waiting(ranks),
            Message::Slot(slot) => To::Slot(*slot),
            Message::Event(event) => To::Failed(error_in(event)),
            other => To::Other(format!("it said {other:?}")),
        }
    }

    fn ended(&self, broken: Broken) -> Ended<BootstrapError> {
        let why = why(&broken);
        let purpose = self.rendezvous.purpose();
        Ended { why, error: broken.of((0, self.root_pid), self.rank, &purpose, self.deadline) }
    }

    /// Carries out actions in order. Returns the result once there is one.
    fn carry_out(&mut self, actions: Vec<Action>) -> Option<Result<(), Error>> {
        let mut result = None;
        for action in actions {
            match action {
                JoinAction::Dial { is_first, limit } => {
                    let dialed = self.dial(is_first, limit);
                    self.inputs.push_back(JoinInput::Dialed(dialed));
                }
                JoinAction::Close(connection) => drop(self.connections.remove(connection)),
                JoinAction::Warn(ranks) => {
                    log_stall(self.rank, &self.rendezvous.purpose(), self.deadline.waited(), &ranks);
                }
                JoinAction::Link { rank, contact, limit } => {
                    let linked = self.link(rank, &contact, limit);
                    self.inputs.push_back(JoinInput::Linked(linked));
                }
                JoinAction::KeepLink(connection) => {
                    let channel = self.connections.remove(connection);
                    self.parent = channel.map(|channel| self.monitor.link(0, channel));
                }
                JoinAction::Settle => {
                    let settled = self.settle();
                    self.inputs.push_back(JoinInput::Settled(settled));
                }
                JoinAction::Done(done) => result = Some(done),
            }
        }
        result
    }

    /// Connects to the next place where rank 0 may be, and introduces this rank.
    fn dial(
        &mut self,
        is_first: bool,
        limit: Duration,
    ) -> Result<Connection, Undialed<Refusal, BootstrapError>> {
        let address = &self.rendezvous.address;
        if is_first {
            self.places = reach(address, self.deadline).map_err(Undialed::Unusable)?;
        }
        let (socket, local) = self.places.next().ok_or(Undialed::Exhausted)?.map_err(Undialed::Failed)?;
        if let (Some(ip), None) = (local.or_else(|| self.rendezvous.reached_here()), &self.own_addresses) {
            let network = &self.rendezvous.network;
            let own = network.listen(ip).map_err(|error| Undialed::Unusable(unusable(address, error)))?;
            let port = self.monitor.listen_tcp(own).map_err(Undialed::Unusable)?;
            self.own_addresses = Some(network.addresses(ip, port));
        }
        let dialed = Channel::dial(socket, &self.rendezvous.token, None, Deadline::new(limit));
        let channel = dialed.map_err(|broken| match broken {
            Broken::Stranger(reason) => {
                let is_other_user = matches!(reason, Refusal::User { .. });
                Undialed::Refused { reason, is_other_user }
            }
            broken => Undialed::Failed(why(&broken)),
        })?;
        let hello = Hello {
            rank: self.rank as u32,
            size: self.rendezvous.size as u32,
            contact: self.monitor.contact(self.own_addresses.clone().unwrap_or_default()),
            terms: self.rendezvous.terms(),
        };
        let hello = Message::Introduction(Introduction::Join(hello));
        let connection = self.connections.add(channel);
        self.connections.post(connection, &hello);
        Ok(connection)
    }

    /// Connects to the parent.
    fn link(
        &mut self,
        parent: u32,
        contact: &Contact,
        limit: Duration,
    ) -> Result<(), Unlinked<BootstrapError>> {
        let group = self.machine.slot().map_or(0, |slot| slot.group);
        let link = Introduction::Link { group, from: self.rank as u32 };
        let dialed = self.monitor.dial(contact, &link, Deadline::new(limit));
        let channel = dialed.map_err(|broken| {
            let is_late = broken == Broken::Late;
            let peer = (parent as usize, contact.pid);
            let error = broken.of(peer, self.rank, PURPOSE, self.deadline.later(PLACE));
            if is_late { Unlinked::Late(error) } else { Unlinked::Failed(error) }
        })?;
        self.parent = Some(self.monitor.link(parent, channel));
        Ok(())
    }

    /// Forms the group, learns who is who, and waits until all ranks are in place.
    fn settle(&mut self) -> Result<(), BootstrapError> {
        let Some(slot) = self.machine.slot() else { return Ok(()) };
        let mut children = std::mem::take(&mut self.children);
        children.sort_by_key(|link| link.rank);
        let group = Group::new(slot.group, self.rank as u32, self.parent.take(), children);
        group.set_warn_after(self.rendezvous.network.warn_after);
        self.monitor.watch(&group);
        let ask = Request { rank: self.rank, purpose: PURPOSE.to_owned(), bytes: 0 };
        in_place(&group, None, slot.shape, &ask, self.deadline.later(PLACE))?;
        self.group = Some(group);
        Ok(())
    }

    fn error(&self, error: Error) -> BootstrapError {
        let (rank, place, limit) = (self.rank, self.rendezvous.address.to_string(), self.deadline.limit());
        match error {
            JoinError::NobodyListens(last) => BootstrapError::NobodyListens { place, last, limit },
            JoinError::Refused(reason) => BootstrapError::Refused { rank, place, reason },
            JoinError::NoAnswer => {
                Broken::Late.of((0, self.root_pid), rank, &self.rendezvous.purpose(), self.deadline)
            }
            JoinError::Missing(ranks) => BootstrapError::Missing {
                ranks: ranks.into_iter().map(|rank| rank as usize).collect(),
                purpose: PURPOSE.to_owned(),
                limit: limit + CHILDREN,
            },
            JoinError::Protocol(what) => BootstrapError::Protocol { rank: 0, what },
            JoinError::Failed(error) => error,
        }
    }
}

/// Why an attempt to reach rank 0 failed. Another one may succeed.
fn why(broken: &Broken) -> String {
    match broken {
        Broken::Ended | Broken::Refused => "the listener closed the connection without an answer".to_owned(),
        Broken::Late => "it did not answer".to_owned(),
        // Bytes that were changed in transit come through another time.
        Broken::Unreachable(what) | Broken::Strange(what) | Broken::Forged(what) => what.clone(),
        Broken::Another => ANOTHER.to_owned(),
        Broken::Stranger(reason) => reason.to_string(),
    }
}

/// A connection to where rank 0 may be, with the address from which it was made; or why there is none.
type Reached = Result<(OwnedFd, Option<IpAddr>), String>;

/// Connections to all places where rank 0 may be, as far as they can be made now.
fn reach(
    place: &RendezvousAddress,
    deadline: Deadline,
) -> Result<Box<dyn Iterator<Item = Reached> + '_>, BootstrapError> {
    let unix = |called: Result<OwnedFd, Errno>| match called {
        Ok(socket) => Ok(Box::new(std::iter::once(Ok((socket, None)))) as Box<dyn Iterator<Item = Reached>>),
        Err(error @ (Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR | Errno::INPROGRESS)) => {
            Ok(Box::new(std::iter::once(Err(error.to_string()))) as _)
        }
        Err(error) => Err(unusable(place, error)),
    };
    match place {
        RendezvousAddress::Abstract(name) => unix(call_abstract(name.as_bytes(), deadline)),
        RendezvousAddress::Path(path) => unix(call_path(path, deadline)),
        RendezvousAddress::Tcp { host, ports } => Ok(Box::new(ports.clone().flat_map(move |port| {
            // A name that is not known yet may be soon, as those of containers are.
            let found = resolve(host, port).map_err(|error| format!("{host}: {error}"));
            let found =
                found.map_or_else(|error| vec![Err(error)], |found| found.into_iter().map(Ok).collect());
            found.into_iter().map(move |address| {
                let address = address?;
                let stream = call_tcp(address, deadline).map_err(|error| format!("{address}: {error}"))?;
                let local = stream.local_addr().map_err(|error| error.to_string())?.ip();
                Ok((OwnedFd::from(stream), Some(local)))
            })
        }))),
    }
}
