//! Connections between two ranks of different hosts, for messages of plans: the lower rank goes, the higher one waits.

use std::collections::BTreeSet;
use std::time::Duration;

use weftlink_membership::WAS_LOST;

use super::broken::{Broken, PeerStatus};
use super::channel::{Channel, Connection};
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::group::Group;
use super::message::Introduction;
use super::monitor::Monitor;
use super::waits::Watch;

/// Opens `streams` connections to each of the peers and puts them into `connections`, a list for each peer. After an error the lists hold
/// the connections that were opened before it.
pub(super) fn connect(
    group: &Group,
    monitor: &Monitor,
    peers: &BTreeSet<u32>,
    streams: u32,
    deadline: Deadline,
    connections: &mut [Vec<Connection>],
) -> Result<(), BootstrapError> {
    // First those to whom we go: they need not do anything for it.
    for phase in [true, false] {
        for (place, &peer) in peers.iter().enumerate().filter(|(_, peer)| (**peer > group.rank) == phase) {
            for stream in 0..streams {
                let peer = Peer { group, monitor, rank: peer, purpose: PURPOSE };
                let channel = match phase {
                    true => dial(
                        &peer,
                        &Introduction::Wire { group: group.id, from: group.rank, stream },
                        deadline,
                    )?,
                    false => accept(
                        &peer,
                        &Introduction::Wire { group: group.id, from: peer.rank, stream },
                        deadline,
                    )?,
                };
                connections[place].push(channel.into_connection());
            }
        }
    }
    Ok(())
}

/// A rank to connect with.
pub(super) struct Peer<'a> {
    pub(super) group: &'a Group,
    pub(super) monitor: &'a Monitor,
    pub(super) rank: u32,
    /// What for, in errors.
    pub(super) purpose: &'a str,
}

/// Connects to a peer and says what for.
pub(super) fn dial(
    peer: &Peer<'_>,
    introduction: &Introduction,
    deadline: Deadline,
) -> Result<Channel, BootstrapError> {
    let Peer { group, monitor, rank: peer, purpose } = *peer;
    let members = group.members.get().map_or(&[][..], Vec::as_slice);
    let contact = &members[peer as usize].contact;
    let mut tries = 0;
    let mut watch = Watch::new(group, purpose);
    watch.note(&[peer]);
    loop {
        // One that is stopped is where it was, and says nothing: it is called again and again, and people are told of it.
        match monitor.dial(
            contact,
            introduction,
            deadline.or_within(group.warn_after().clamp(CALL_MIN, CALL_MAX)),
        ) {
            Ok(channel) => {
                watch.over();
                return Ok(channel);
            }
            Err(Broken::Late) if deadline.left().is_some() && group.verdict().is_none() => {
                watch.look(&[peer]);
                continue;
            }
            // What was damaged on its way comes through another time; who is gone does not come back.
            Err(
                Broken::Unreachable(_)
                | Broken::Stranger(_)
                | Broken::Another
                | Broken::Strange(_)
                | Broken::Forged(_),
            ) if tries < TRIES_MAX && group.verdict().is_none() => {
                tries += 1;
            }
            // Who died is told by those who watch over it, and this is a moment sooner.
            Err(Broken::Ended | Broken::Refused) => {
                let fate = monitor.inquire(contact);
                if fate == PeerStatus::Dead || group.verdict().is_some() {
                    let gone = || match group.state().core.left().contains(&peer) {
                        true => BootstrapError::Left {
                            rank: peer as usize,
                            pid: contact.pid,
                            purpose: purpose.to_owned(),
                        },
                        false => contact.died(peer),
                    };
                    return Err(group.await_failure(Deadline::new(NEWS_LIMIT)).unwrap_or_else(gone));
                }
                // The other side hangs up on what was damaged on its way.
                if tries < TRIES_MAX {
                    tries += 1;
                    continue;
                }
                let (rank, host, pid) = (peer as usize, contact.host.to_string(), contact.pid);
                let (by, what) = (group.rank as usize, WAS_LOST.to_owned());
                return Err(BootstrapError::Lost { rank, host, pid, by, what });
            }
            Err(broken) => {
                let (to, by) = ((peer as usize, contact.pid), group.rank as usize);
                let of = || broken.of(to, by, purpose, deadline);
                return Err(group.verdict().unwrap_or_else(of));
            }
        }
    }
}

/// Waits for a peer that connects for something.
pub(super) fn accept(
    peer: &Peer<'_>,
    introduction: &Introduction,
    deadline: Deadline,
) -> Result<Channel, BootstrapError> {
    let Peer { group, monitor, rank: peer, purpose } = *peer;
    let wanted = |arrived: &Introduction| (arrived == introduction).then_some(());
    let mut watch = Watch::new(group, purpose);
    watch.note(&[peer]);
    let over = || {
        watch.look(&[peer]);
        group.verdict().map_or(Ok(()), Err)
    };
    match monitor.expect(deadline, wanted, over)? {
        Some(((), channel)) => {
            watch.over();
            Ok(channel)
        }
        None => Err(BootstrapError::Missing {
            ranks: vec![peer as usize],
            purpose: purpose.to_owned(),
            limit: deadline.limit(),
        }),
    }
}

pub(super) const PURPOSE: &str = "a connection between hosts";
/// How often what was damaged on its way is tried again.
const TRIES_MAX: u32 = 2;
/// How long it may take to hear what became of one that is dead.
const NEWS_LIMIT: Duration = Duration::from_secs(1);
/// How long one call may take.
const CALL_MIN: Duration = Duration::from_secs(1);
const CALL_MAX: Duration = Duration::from_secs(10);
