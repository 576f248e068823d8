//! Rank 0's part of the rendezvous: it listens, admits the other ranks (`admission.rs`) and assigns each a slot in the tree.

use std::net::{IpAddr, Ipv4Addr};

use weftlink_membership::durations::HELLO;

use super::address::{Listener, listen_abstract, listen_tcp, resolve};
use super::admission::Admission;
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::group::Group;
use super::message::{Contact, Introduction};
use super::monitor::Monitor;
use super::rendezvous::{Meeting, Met, Place, check, unusable};
use super::secret::random_number;

/// Rank 0: waits for all others.
pub(super) fn listen(meeting: &Meeting) -> Result<Met, BootstrapError> {
    check(meeting, 0)?;
    let deadline = Deadline::new(meeting.deadline);
    if meeting.size == 1 {
        let contact = Contact {
            pid: std::process::id(),
            host: meeting.host()?,
            name: Vec::new(),
            addresses: Vec::new(),
        };
        return Ok((None, Group::alone(random_number()?, vec![contact])));
    }
    let monitor = Monitor::new(&meeting.token, meeting.host()?)?;
    let (listeners, reached_at) = listen_at(meeting)?;
    let found_at = match reached_at {
        Some(ip) => {
            let own = meeting.network.listen(ip).map_err(|error| unusable(&meeting.place, error))?;
            let port = monitor.listen_tcp(own)?;
            meeting.network.addresses(ip, port)
        }
        None => Vec::new(),
    };
    let listeners: Vec<_> = listeners.into_iter().map(|listener| monitor.listen(listener)).collect();
    let mut admission = Admission::new(meeting, monitor.contact(found_at), meeting.terms());
    while !admission.is_complete() {
        let join = |introduction: &Introduction| match introduction {
            Introduction::Join(hello) => Some(hello.clone()),
            _ => None,
        };
        match monitor.expect(deadline, join, || admission.keep_waiting())? {
            Some((hello, channel)) => admission.admit(hello, channel),
            None => return Err(admission.give_up(deadline.limit(), &monitor.notes())),
        }
    }
    listeners.iter().for_each(|listener| monitor.stop_listening(listener));
    drop(listeners);
    // What remains takes as long as messages do, unless somebody is stopped just now.
    let deadline = deadline.later(HELLO);
    let assigned = admission.slot(&monitor, random_number()?)?;
    let group = assigned.take_place(&monitor, deadline)?;
    Ok((Some(monitor), group))
}

/// The sockets at which rank 0 is found, and the address that leads to it, if it is one of the network.
fn listen_at(meeting: &Meeting) -> Result<(Vec<Listener>, Option<IpAddr>), BootstrapError> {
    let place = &meeting.place;
    match place {
        Place::Abstract(name) => {
            let listener = listen_abstract(name.as_bytes()).map_err(|error| unusable(place, error))?;
            Ok((vec![Listener::Unix(listener)], meeting.reached_here()))
        }
        Place::Path(path) => {
            let listener = Listener::at_path(path).map_err(|reason| unusable(place, reason))?;
            Ok((vec![listener], meeting.reached_here()))
        }
        Place::Tcp { host, ports } => {
            let first = resolve(host, *ports.start()).map_err(|error| unusable(place, error))?;
            let ip = first.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
            let listeners = listen_tcp(ip, Some(ports), &meeting.network.interfaces, Some(ip));
            let listeners = listeners.map_err(|error| unusable(place, error))?;
            Ok((listeners.into_iter().map(Listener::Tcp).collect(), Some(ip)))
        }
    }
}
