//! Rank 0 admits the other ranks, or refuses them, and assigns each a slot in the tree.

use std::sync::Arc;
use std::time::Duration;

use weftlink_membership::durations::{HELLO, SEND};
use weftlink_membership::{WAS_LOST, tree};

use super::broken::PeerStatus;
use super::channel::Channel;
use super::deadline::Deadline;
use super::error::{BootstrapError, Refusal, Request};
use super::group::Group;
use super::message::{Contact, Hello, Member, Message, Slot};
use super::monitor::Monitor;
use super::reason::failed_event;
use super::rendezvous::{PURPOSE, Rendezvous};
use super::rendezvous_address::RendezvousAddress;
use super::slots::{await_children, in_place};
use super::stall::Stall;
use super::terms;

/// A bound on refusals that are kept for the error message.
const NOTES_MAX: usize = 8;

/// Rank 0's list of the others.
pub(super) struct Admission<'a> {
    rendezvous: &'a Rendezvous,
    own: Contact,
    terms: Vec<(String, String)>,
    /// Of the ranks 1, 2, ..., in this order.
    slots: Vec<Option<(Contact, Channel)>>,
    /// Processes that were refused, and why: often the reason why a rank is missing.
    refused: Vec<String>,
    stall: Stall,
}

impl<'a> Admission<'a> {
    pub(super) fn new(
        rendezvous: &'a Rendezvous,
        own: Contact,
        terms: Vec<(String, String)>,
    ) -> Admission<'a> {
        let slots = (1..rendezvous.size).map(|_| None).collect();
        let stall = Stall::new(0, rendezvous.purpose(), rendezvous.network.warn_after);
        Admission { rendezvous, own, terms, slots, refused: Vec::new(), stall }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.slots.iter().all(Option::is_some)
    }

    /// The ranks that have not joined.
    pub(super) fn missing(&self) -> Vec<usize> {
        let missing = |(index, slot): (usize, &Option<_>)| slot.is_none().then_some(index + 1);
        self.slots.iter().enumerate().filter_map(missing).collect()
    }

    /// Logs a stall warning if one is due, and has the ranks that joined log it too.
    pub(super) fn keep_waiting(&mut self) -> Result<(), BootstrapError> {
        let missing: Vec<u32> = self.missing().into_iter().map(|rank| rank as u32).collect();
        if self.stall.look(&missing) {
            let waiting = Message::Waiting { number: 0, ranks: missing };
            self.slots.iter().flatten().for_each(|(_, channel)| drop(channel.post(&waiting)));
        }
        Ok(())
    }

    /// Admits a rank, or refuses it and says why.
    pub(super) fn admit(&mut self, hello: Hello, channel: Channel) {
        let send = |channel: &Channel, message| channel.send(&message, None, Deadline::new(SEND));
        match self.refusal(&hello) {
            Some(reason) => {
                if self.refused.len() < NOTES_MAX {
                    let (rank, pid) = (hello.rank, hello.contact.pid);
                    self.refused.push(format!("rank {rank} (pid {pid}): {reason}"));
                }
                let _ = send(&channel, Message::Refused(reason));
            }
            None => {
                if send(&channel, Message::Accepted { pid: self.own.pid }).is_ok() {
                    self.slots[hello.rank - 1] = Some((hello.contact, channel));
                }
            }
        }
    }

    /// Reports the ranks that are missing to those that joined.
    pub(super) fn give_up(self, limit: Duration, notes: &[String]) -> BootstrapError {
        let mut purpose = self.rendezvous.purpose();
        let strangers = notes.iter().map(|note| format!("a process: {note}"));
        let refused: Vec<String> = self.refused.iter().cloned().chain(strangers).collect();
        if !refused.is_empty() {
            purpose = format!("{purpose}. Refused meanwhile: {}", refused.join("; "));
        }
        let error = BootstrapError::Missing { ranks: self.missing(), purpose, limit };
        if !mutant!("missing-ranks-not-reported") {
            send_to_all(self.slots.iter().flatten().map(|(_, channel)| channel), &error);
        }
        error
    }

    /// Sends every rank its slot. All ranks have joined.
    pub(super) fn slot(self, monitor: &Monitor, group: u64) -> Result<Assigned<'a>, BootstrapError> {
        let (others, channels): (Vec<Contact>, Vec<Channel>) = self.slots.into_iter().flatten().unzip();
        let contacts: Vec<Contact> = std::iter::once(self.own).chain(others).collect();
        let hosts = tree::number_hosts(&contacts, |one, other| one.host.is_same(&other.host));
        // Ranks that reach rank 0 through a path may not be able to reach each other.
        let parents = match self.rendezvous.address {
            RendezvousAddress::Path(_) => tree::star(contacts.len()),
            _ => tree::parents(&hosts),
        };
        let members =
            contacts.into_iter().zip(hosts).map(|(contact, host)| Member { contact, host }).collect();
        let assigned = Assigned { rendezvous: self.rendezvous, group, members, parents, channels };
        for rank in 1..assigned.members.len() as u32 {
            let parent = assigned.parents[rank as usize].unwrap_or(0);
            let contact = &assigned.members[parent as usize].contact;
            let here = assigned.is_child_here(rank);
            let parent = (!here).then(|| (parent, contact.clone()));
            let children = tree::children(&assigned.parents, rank);
            let slot = Message::Slot(Box::new(Slot { group, parent, children }));
            let sent = assigned.channels[rank as usize - 1].send(&slot, None, Deadline::new(SEND));
            if sent.is_err() {
                return Err(assigned.lost(monitor, rank));
            }
        }
        Ok(assigned)
    }

    fn refusal(&self, hello: &Hello) -> Option<Refusal> {
        let (rank, size) = (hello.rank, hello.size);
        if let Some((name, theirs, ours)) = terms::difference(&hello.terms, &self.terms) {
            return Some(Refusal::Terms { name, theirs, ours });
        }
        if size != self.rendezvous.size && !mutant!("sizes-not-compared") {
            return Some(Refusal::Size { joiner: size, listener: self.rendezvous.size });
        }
        let Some(slot) = rank.checked_sub(1).and_then(|index| self.slots.get(index)) else {
            return Some(Refusal::Rank { rank, size });
        };
        let taken =
            slot.as_ref().filter(|(_, channel)| !channel.has_ended() && !mutant!("duplicates-admitted"));
        taken.map(|(contact, _)| Refusal::Duplicate { rank, pid: contact.pid })
    }
}

/// Every rank has its slot.
pub(super) struct Assigned<'a> {
    rendezvous: &'a Rendezvous,
    group: u64,
    members: Vec<Member>,
    parents: Vec<Option<u32>>,
    /// To the ranks 1, 2, ..., until all are in place.
    channels: Vec<Channel>,
}

impl Assigned<'_> {
    /// Whether a rank is a child of rank 0 whose channel is the right kind already: a socket of this host for those on it.
    fn is_child_here(&self, rank: u32) -> bool {
        let (own, other) = (&self.members[0].contact, &self.members[rank as usize].contact);
        let is_network = matches!(self.rendezvous.address, RendezvousAddress::Tcp { .. });
        self.parents[rank as usize] == Some(0) && own.host.is_same(&other.host) != is_network
    }

    /// Rank 0's own place: waits until all are in theirs.
    pub(super) fn take_place(
        mut self,
        monitor: &Monitor,
        deadline: Deadline,
    ) -> Result<Arc<Group>, BootstrapError> {
        let ask = Request { rank: 0, purpose: PURPOSE.to_owned(), bytes: 0 };
        let warn_after = self.rendezvous.network.warn_after;
        let mut stall = Stall::new(0, self.rendezvous.purpose(), warn_after);
        let children = tree::children(&self.parents, 0);
        let (here, coming): (Vec<u32>, Vec<u32>) =
            children.into_iter().partition(|&rank| self.is_child_here(rank));
        let all_are_there = |missing: &[u32]| match self.channels.iter().position(Channel::has_ended) {
            Some(index) => Err(self.lost(monitor, index as u32 + 1)),
            None => {
                stall.look(missing);
                Ok(())
            }
        };
        let soon = deadline.sooner(HELLO / 2);
        let mut links = Vec::new();
        let come = await_children(monitor, self.group, &coming, &mut links, &ask, soon, all_are_there);
        if let Err(error) = come {
            send_to_all(&self.channels, &error);
            // Children that are connected already read there.
            Group::new(self.group, 0, None, links).fail_for(&error);
            return Err(error);
        }
        // From the back, so that the numbers of those before stay right.
        for &rank in here.iter().rev() {
            let channel = self.channels.remove(rank as usize - 1);
            links.push(monitor.link(rank, channel));
        }
        let group = Group::new(self.group, 0, None, links);
        group.set_warn_after(warn_after);
        // Before a rank can die, so that the error names its host and process.
        group.set_members(self.members.clone());
        monitor.watch(&group);
        in_place(&group, Some(self.members), &ask, deadline)
            .inspect_err(|error| send_to_all(&self.channels, error))?;
        Ok(group)
    }

    fn lost(&self, monitor: &Monitor, rank: u32) -> BootstrapError {
        let contact = &self.members[rank as usize].contact;
        let (pid, host) = (contact.pid, contact.host.to_string());
        let rank = rank as usize;
        let error = match monitor.inquire(contact) {
            PeerStatus::Dead => BootstrapError::Died { rank, host, pid },
            PeerStatus::Lost => BootstrapError::Lost { rank, host, pid, by: 0, what: WAS_LOST.to_owned() },
        };
        send_to_all(&self.channels, &error);
        error
    }
}

fn send_to_all<'a>(channels: impl IntoIterator<Item = &'a Channel>, error: &BootstrapError) {
    let news = failed_event(0, error);
    for channel in channels {
        let _ = channel.send(&Message::Event(news.clone()), None, Deadline::new(SEND));
    }
}
