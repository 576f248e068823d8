//! Connections between two ranks of different hosts, for messages of plans: the lower rank goes, the higher one waits.

use std::collections::BTreeSet;

use super::channel::{Broken, Channel, Connection};
use super::deadline::Deadline;
use super::endpoint::Endpoint;
use super::error::BootstrapError;
use super::group::Group;
use super::message::Introduction;

/// So many connections to each of the ranks, in their order.
pub(super) fn connect(
    group: &Group,
    endpoint: &Endpoint,
    peers: &BTreeSet<u32>,
    streams: u32,
    deadline: Deadline,
) -> Result<Vec<Vec<Connection>>, BootstrapError> {
    let mut connections: Vec<Vec<_>> = peers.iter().map(|_| Vec::new()).collect();
    // First those to whom we go: they need not do anything for it.
    for phase in [true, false] {
        for (place, &peer) in peers.iter().enumerate().filter(|(_, peer)| (**peer > group.rank) == phase) {
            for stream in 0..streams {
                let channel = match phase {
                    true => go(group, endpoint, peer, stream, deadline)?,
                    false => wait(group, endpoint, peer, stream, deadline)?,
                };
                connections[place].push(channel.into_connection());
            }
        }
    }
    Ok(connections)
}

fn go(
    group: &Group,
    endpoint: &Endpoint,
    peer: u32,
    stream: u32,
    deadline: Deadline,
) -> Result<Channel, BootstrapError> {
    let members = group.members.get().map_or(&[][..], Vec::as_slice);
    let contact = &members[peer as usize].contact;
    let wire = Introduction::Wire { group: group.id, from: group.rank, stream };
    let mut tries = 0;
    loop {
        tries += 1;
        match endpoint.dial(contact, &wire, deadline) {
            Ok(channel) => return Ok(channel),
            // What was damaged on its way comes through another time; who is gone does not come back.
            Err(Broken::Stranger(_) | Broken::Strange(_))
                if tries < TRIES_MAX && group.verdict().is_none() => {}
            Err(broken) => {
                let of = || broken.of(peer as usize, contact.pid, PURPOSE, deadline);
                return Err(group.verdict().unwrap_or_else(of));
            }
        }
    }
}

fn wait(
    group: &Group,
    endpoint: &Endpoint,
    peer: u32,
    stream: u32,
    deadline: Deadline,
) -> Result<Channel, BootstrapError> {
    let wire = Introduction::Wire { group: group.id, from: peer, stream };
    let wanted = |introduction: &Introduction| (*introduction == wire).then_some(());
    let over = || group.verdict().map_or(Ok(()), Err);
    match endpoint.expect(deadline, wanted, over)? {
        Some(((), channel)) => Ok(channel),
        None => Err(BootstrapError::Missing {
            ranks: vec![peer as usize],
            purpose: PURPOSE.to_owned(),
            limit: deadline.limit(),
        }),
    }
}

const PURPOSE: &str = "a connection between hosts";
const TRIES_MAX: u32 = 3;
