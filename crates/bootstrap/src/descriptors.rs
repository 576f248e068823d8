//! Descriptors that ranks of one host give each other: memory of a device, an event, a file. Each pair of ranks connects, and
//! each end sends its descriptor to the other.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use weftlink_membership::durations::{INQUIRY_RESULT, POLL};
use weftlink_shm::poll_hook;

use super::broken::Broken;
use super::channel::Channel;
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::group::Group;
use super::in_process::duplicate;
use super::message::{Introduction, Message};
use super::monitor::Monitor;
use super::wires::{Peer, accept, dial};
use super::{Bootstrap, Link};

impl Bootstrap {
    /// All ranks give a descriptor to every rank of their host. Returns them by rank: nothing for ranks of other hosts, a
    /// duplicate for this one. All ranks call this together, and it is a barrier.
    pub fn pass_descriptors(
        &mut self,
        purpose: &str,
        own: BorrowedFd<'_>,
        deadline: Duration,
    ) -> Result<Vec<Option<OwnedFd>>, BootstrapError> {
        let ask = self.ask(purpose, 0)?;
        let turn = self.sweeps.wrapping_add(1);
        if let Link::InProcess(local) = &self.link {
            let put = duplicate(own, self.rank).map(|own| local.put_descriptor(self.rank, Some(own)));
            put.map_err(|error| self.fall(error, &ask, Deadline::new(deadline)))?;
        }
        // No rank passes descriptors of this turn before this exchange, and all ranks have theirs after the second one.
        self.exchange(purpose, Vec::new(), deadline)?;
        let until = Deadline::new(deadline);
        let passed = match &self.link {
            Link::InProcess(local) => local.descriptors(self.rank),
            Link::Tree { monitor: None, .. } => duplicate(own, self.rank).map(|own| vec![Some(own)]),
            Link::Tree { group, monitor: Some(monitor), .. } => {
                pass(group, monitor, turn, own, purpose, until)
            }
        };
        let passed = passed.map_err(|error| self.fall(error, &ask, until))?;
        self.exchange(purpose, Vec::new(), deadline)?;
        if let Link::InProcess(local) = &self.link {
            local.put_descriptor(self.rank, None);
        }
        Ok(passed)
    }
}

/// Gives this rank's descriptor to every rank of its host, and takes theirs, by rank; nothing of ranks on other hosts. `turn` is
/// the same on all ranks and never comes again.
fn pass(
    group: &Group,
    monitor: &Monitor,
    turn: u32,
    own: BorrowedFd<'_>,
    purpose: &str,
    deadline: Deadline,
) -> Result<Vec<Option<OwnedFd>>, BootstrapError> {
    let failed = |rank: u32, broken: Broken| failure(group, rank, broken, purpose, deadline);
    let receive = |channel: &Channel| loop {
        match channel.receive(deadline.or_within(POLL)) {
            Err(Broken::Late) if deadline.left().is_some() && group.verdict().is_none() => poll_hook::poll(),
            received => return received,
        }
    };
    let message = Message::Descriptor { turn };
    let channels = connect_pairs(group, monitor, turn, purpose, deadline)?;
    for (rank, channel) in &channels {
        channel.send(&message, Some(own), deadline).map_err(|broken| failed(*rank, broken))?;
    }
    let mut descriptors: Vec<Option<OwnedFd>> =
        group.members.get().into_iter().flatten().map(|_| None).collect();
    for (rank, channel) in channels {
        match receive(&channel).map_err(|broken| failed(rank, broken))? {
            (Message::Descriptor { turn: theirs }, Some(descriptor)) if theirs == turn => {
                descriptors[rank as usize] = Some(descriptor);
            }
            (other, _) => return Err(other.unexpected(rank as usize)),
        }
    }
    descriptors[group.rank as usize] = Some(duplicate(own, group.rank as usize)?);
    Ok(descriptors)
}

/// Connects this rank with every other rank of its host, in the order of ranks. `turn` is the same on all ranks and never comes again.
pub(super) fn connect_pairs(
    group: &Group,
    monitor: &Monitor,
    turn: u32,
    purpose: &str,
    deadline: Deadline,
) -> Result<Vec<(u32, Channel)>, BootstrapError> {
    let members = group.members.get().map_or(&[][..], Vec::as_slice);
    let host = members.get(group.rank as usize).map(|member| member.host);
    let is_near = |rank: &u32| Some(members[*rank as usize].host) == host && *rank != group.rank;
    let (lower, higher): (Vec<u32>, Vec<u32>) =
        (0..members.len() as u32).filter(is_near).partition(|rank| *rank < group.rank);
    let introduction = |from: u32| Introduction::Descriptor { group: group.id, from, turn };
    let peer = |rank: u32| Peer { group, monitor, rank, purpose };
    // First those that need not do anything: the monitor thread of a higher rank accepts.
    let dialled: Vec<(u32, Channel)> = higher
        .into_iter()
        .map(|rank| Ok((rank, dial(&peer(rank), &introduction(group.rank), deadline)?)))
        .collect::<Result<_, BootstrapError>>()?;
    let mut channels: Vec<(u32, Channel)> = lower
        .into_iter()
        .map(|rank| Ok((rank, accept(&peer(rank), &introduction(rank), deadline)?)))
        .collect::<Result<_, BootstrapError>>()?;
    channels.extend(dialled);
    Ok(channels)
}

/// What a broken connection to a rank means.
pub(super) fn failure(
    group: &Group,
    rank: u32,
    broken: Broken,
    purpose: &str,
    deadline: Deadline,
) -> BootstrapError {
    // A process that ends closes its connections first; its neighbours report its death a moment later.
    let known = match broken {
        Broken::Ended | Broken::Refused => group.await_failure(Deadline::new(INQUIRY_RESULT)),
        _ => group.verdict(),
    };
    let (peer, by) = ((rank as usize, group.pid(rank)), group.rank as usize);
    known.unwrap_or_else(|| broken.of(peer, by, purpose, deadline))
}
