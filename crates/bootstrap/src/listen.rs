//! Rank 0's part of the rendezvous. [`weftlink_membership::rendezvous`] decides who is admitted; this is its driver.
//!
//! The monitor thread accepts connections and does their handshakes; rank 0's own thread takes them over, reads the connections
//! of the ranks that joined, and carries out the machine's actions one by one.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use weftlink_membership::WAS_LOST;
use weftlink_membership::durations::{CHILDREN, PLACE};
use weftlink_membership::rendezvous::{self, Admit, AdmitAction, AdmitError, AdmitInput, Connection, Plan};
use weftlink_membership::tree::Shape;

use super::address::{Listener, listen_abstract, listen_tcp, resolve};
use super::broken::PeerStatus;
use super::connections::Connections;
use super::deadline::Deadline;
use super::error::{BootstrapError, Refusal, Request};
use super::group::{Group, Link};
use super::message::{Contact, Introduction, Member, Message};
use super::monitor::Monitor;
use super::reason::failed_event;
use super::rendezvous::{Met, PURPOSE, Rendezvous, check, log_stall, unusable};
use super::rendezvous_address::RendezvousAddress;
use super::secret::random_number;
use super::slots::in_place;

/// A bound on refusals that are kept for the error message.
const NOTES_MAX: usize = 8;

/// Rank 0: waits until all other ranks have joined.
pub(super) fn listen(rendezvous: &Rendezvous) -> Result<Met, BootstrapError> {
    check(rendezvous, 0)?;
    let deadline = Deadline::new(rendezvous.deadline);
    if rendezvous.size == 1 {
        let contact = Contact {
            pid: std::process::id(),
            host: rendezvous.host()?,
            name: Vec::new(),
            addresses: Vec::new(),
        };
        return Ok((None, Group::alone(random_number()?, vec![contact])));
    }
    let monitor = Monitor::new(&rendezvous.token, rendezvous.host()?)?;
    let (listeners, reached_at) = listen_at(rendezvous)?;
    let own_addresses = match reached_at {
        Some(ip) => {
            let own = rendezvous.network.listen(ip).map_err(|error| unusable(&rendezvous.address, error))?;
            let port = monitor.listen_tcp(own)?;
            rendezvous.network.addresses(ip, port)
        }
        None => Vec::new(),
    };
    let contact = monitor.contact(own_addresses);
    let settings = rendezvous.settings(0, deadline);
    let shape = match rendezvous.address {
        // Ranks that reach rank 0 through a path may not be able to reach each other.
        RendezvousAddress::Path(_) => Shape::Star,
        _ => Shape::Binomial,
    };
    let is_network = matches!(rendezvous.address, RendezvousAddress::Tcp { .. });
    let plan = Plan { group: random_number()?, shape, is_network };
    let connections = Connections::new(&monitor)?;
    monitor.set_admitting(true);
    let driver = Driver {
        rendezvous,
        monitor: &monitor,
        deadline,
        listeners: listeners.into_iter().map(|listener| monitor.listen(listener)).collect(),
        machine: Admit::new(contact, rendezvous.terms(), settings, plan.clone(), Instant::now()),
        plan,
        inputs: VecDeque::new(),
        connections,
        joined: BTreeMap::new(),
        refused: Vec::new(),
        has_placed: false,
        children: Vec::new(),
        group: None,
    };
    let group = driver.run()?;
    Ok((Some(monitor), group))
}

struct Driver<'a> {
    rendezvous: &'a Rendezvous,
    monitor: &'a Monitor,
    deadline: Deadline,
    /// At the address of the rendezvous.
    listeners: Vec<Arc<Listener>>,
    plan: Plan,
    machine: Admit<Contact, BootstrapError>,
    inputs: VecDeque<AdmitInput<Contact, BootstrapError>>,
    connections: Connections,
    /// The rank and process of each connection.
    joined: BTreeMap<Connection, (u32, u32)>,
    /// Processes that were refused or left, and why: often the reason why a rank is missing.
    refused: Vec<String>,
    /// All ranks have joined.
    has_placed: bool,
    children: Vec<Arc<Link>>,
    group: Option<Arc<Group>>,
}

impl Driver<'_> {
    fn run(mut self) -> Result<Arc<Group>, BootstrapError> {
        let result = loop {
            self.collect();
            if let Some(result) = self.handle_inputs() {
                break result;
            }
            self.connections.wait(self.machine.next_timeout());
        };
        self.monitor.set_admitting(false);
        // Others that came as a rank that is in the group already.
        self.take_arrivals();
        let _ = self.handle_inputs();
        let error = match (result, self.group.take()) {
            (Ok(()), Some(group)) => return Ok(group),
            (Ok(()), None) => BootstrapError::Protocol { rank: 0, what: "no group".to_owned() },
            (Err(error), _) => self.error(error),
        };
        self.connections.drain();
        // Children that are connected already read there.
        let children = std::mem::take(&mut self.children);
        Group::new(self.plan.group, 0, None, children).fail_for(&error);
        Err(error)
    }

    /// Gives the machine what has happened. Returns the result once there is one.
    fn handle_inputs(&mut self) -> Option<Result<(), AdmitError<BootstrapError>>> {
        let mut result = None;
        while let Some(input) = self.inputs.pop_front() {
            let actions = self.machine.handle(input, Instant::now());
            result = self.carry_out(actions).or(result);
        }
        result
    }

    /// Takes in what has happened.
    fn collect(&mut self) {
        // Ends first: a process that comes as a rank whose connection has ended takes its place.
        for (connection, received) in self.connections.receive() {
            if let (Err(_), Some((rank, pid))) = (received, self.joined.remove(&connection)) {
                self.note(format!("rank {rank} (pid {pid}): it joined, and closed its connection"));
                self.inputs.push_back(AdmitInput::Closed(connection));
            }
        }
        self.take_arrivals();
        for link in self.monitor.children(self.plan.group, |rank| self.machine.awaits(rank)) {
            self.inputs.push_back(AdmitInput::Child(link.rank));
            self.children.push(link);
        }
        if self.machine.next_timeout().is_some_and(|when| when <= Instant::now()) {
            self.inputs.push_back(AdmitInput::Timeout);
        }
    }

    fn take_arrivals(&mut self) {
        let joins = |introduction: &Introduction| matches!(introduction, Introduction::Join(_));
        for (introduction, channel) in self.monitor.arrivals(joins) {
            if let Introduction::Join(hello) = introduction {
                let connection = self.connections.add(channel);
                self.joined.insert(connection, (hello.rank, hello.contact.pid));
                self.inputs.push_back(AdmitInput::Arrived(connection, hello));
            }
        }
    }

    fn carry_out(
        &mut self,
        actions: Vec<AdmitAction<Contact, BootstrapError>>,
    ) -> Option<Result<(), AdmitError<BootstrapError>>> {
        let mut result = None;
        for action in actions {
            match action {
                AdmitAction::Send(connection, message) => {
                    let message = self.message(connection, message);
                    self.connections.post(connection, &message);
                }
                AdmitAction::Close(connection) => {
                    self.joined.remove(&connection);
                    self.connections.close(connection);
                }
                AdmitAction::Warn(ranks) => {
                    log_stall(0, &self.rendezvous.purpose(), self.deadline.waited(), &ranks);
                }
                AdmitAction::StopListening => {
                    self.has_placed = true;
                    let listeners = std::mem::take(&mut self.listeners);
                    listeners.iter().for_each(|listener| self.monitor.stop_listening(listener));
                }
                AdmitAction::Inquire(rank, contact) => {
                    let is_dead = self.monitor.inquire(&contact) == PeerStatus::Dead;
                    self.inputs.push_back(AdmitInput::Inquired { rank, is_dead });
                }
                AdmitAction::Settle => {
                    let settled = self.settle();
                    self.inputs.push_back(AdmitInput::Settled(settled));
                }
                AdmitAction::Done(done) => result = Some(done),
            }
        }
        result
    }

    fn message(
        &mut self,
        connection: Connection,
        message: rendezvous::Message<Contact, rendezvous::Refusal, AdmitError<BootstrapError>>,
    ) -> Message {
        use rendezvous::Message as From;
        match message {
            From::Accepted => Message::Accepted { pid: std::process::id() },
            From::Refused(refusal) => {
                let (rank, pid) = self.joined.remove(&connection).unwrap_or_default();
                let refusal = refused(refusal, rank, self.rendezvous.size);
                self.note(format!("rank {rank} (pid {pid}): {refusal}"));
                Message::Refused(refusal)
            }
            From::Waiting(ranks) => Message::Waiting { number: 0, ranks },
            From::Slot(slot) => Message::Slot(Box::new(slot)),
            From::Failed(error) => Message::Event(failed_event(0, &self.error(error))),
            From::Other(cause) => {
                let error = BootstrapError::GaveUp { rank: 0, cause, blamed: Vec::new() };
                Message::Event(failed_event(0, &error))
            }
        }
    }

    /// Forms the group and waits until all ranks are in place.
    fn settle(&mut self) -> Result<(), BootstrapError> {
        let Some(placed) = self.machine.placed() else { return Ok(()) };
        let mut links = std::mem::take(&mut self.children);
        for (&rank, &connection) in &placed.here {
            if let Some(channel) = self.connections.remove(connection) {
                links.push(self.monitor.link(rank, channel));
            }
        }
        links.sort_by_key(|link| link.rank);
        let members: Vec<Member> = placed
            .members
            .iter()
            .map(|(contact, host)| Member { contact: contact.clone(), host: *host })
            .collect();
        let group = Group::new(self.plan.group, 0, None, links);
        group.set_warn_after(self.rendezvous.network.warn_after);
        // Before a rank can die, so that the error names its host and process.
        group.set_members(members.clone(), self.plan.shape);
        self.monitor.watch(&group);
        let ask = Request { rank: 0, purpose: PURPOSE.to_owned(), bytes: 0 };
        in_place(&group, Some(members), self.plan.shape, &ask, self.deadline.later(PLACE))?;
        self.group = Some(group);
        Ok(())
    }

    fn note(&mut self, what: String) {
        if self.refused.len() < NOTES_MAX {
            self.refused.push(what);
        }
    }

    fn error(&self, error: AdmitError<BootstrapError>) -> BootstrapError {
        let person = |rank: u32| {
            let contact = self.machine.contact(rank);
            contact.map_or_else(Default::default, |contact| (contact.host.to_string(), contact.pid))
        };
        match error {
            AdmitError::Settle(error) => error,
            AdmitError::Died(rank) => {
                let (host, pid) = person(rank);
                BootstrapError::Died { rank: rank as usize, host, pid }
            }
            AdmitError::Lost(rank) => {
                let (host, pid) = person(rank);
                BootstrapError::Lost { rank: rank as usize, host, pid, by: 0, what: WAS_LOST.to_owned() }
            }
            AdmitError::Missing(ranks) => {
                let ranks = ranks.into_iter().map(|rank| rank as usize).collect();
                let limit = self.deadline.limit();
                if self.has_placed {
                    let (purpose, limit) = (PURPOSE.to_owned(), limit + CHILDREN);
                    return BootstrapError::Missing { ranks, purpose, limit };
                }
                let mut purpose = self.rendezvous.purpose();
                let notes = self.monitor.notes();
                let strangers = notes.iter().map(|note| format!("a process: {note}"));
                let refused: Vec<String> = self.refused.iter().cloned().chain(strangers).collect();
                if !refused.is_empty() {
                    purpose = format!("{purpose}. Meanwhile: {}", refused.join("; "));
                }
                BootstrapError::Missing { ranks, purpose, limit }
            }
        }
    }
}

fn refused(refusal: rendezvous::Refusal, rank: u32, size: usize) -> Refusal {
    use rendezvous::Refusal as From;
    let rank = rank as usize;
    match refusal {
        From::Terms(name, theirs, ours) => Refusal::Terms { name, theirs, ours },
        From::Size(joiner) => Refusal::Size { joiner: joiner as usize, listener: size },
        From::Rank(_) => Refusal::Rank { rank, size },
        From::Duplicate(pid) => Refusal::Duplicate { rank, pid },
    }
}

/// The sockets at which rank 0 is found, and the address that leads to it, if it is one of the network.
fn listen_at(rendezvous: &Rendezvous) -> Result<(Vec<Listener>, Option<IpAddr>), BootstrapError> {
    let place = &rendezvous.address;
    match place {
        RendezvousAddress::Abstract(name) => {
            let listener = listen_abstract(name.as_bytes()).map_err(|error| unusable(place, error))?;
            Ok((vec![Listener::Unix(listener)], rendezvous.reached_here()))
        }
        RendezvousAddress::Path(path) => {
            let listener = Listener::at_path(path).map_err(|reason| unusable(place, reason))?;
            Ok((vec![listener], rendezvous.reached_here()))
        }
        RendezvousAddress::Tcp { host, ports } => {
            let first = resolve(host, *ports.start()).map_err(|error| unusable(place, error))?;
            let ip = first.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
            let listeners = listen_tcp(ip, Some(ports), &rendezvous.network.interfaces, Some(ip));
            let listeners = listeners.map_err(|error| unusable(place, error))?;
            Ok((listeners.into_iter().map(Listener::Tcp).collect(), Some(ip)))
        }
    }
}
