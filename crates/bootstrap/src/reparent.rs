//! What the monitor does when the tree of a group comes apart: it finds out what became of a neighbour whose connection ended, and
//! connects ranks again whose parent has left. `weftlink_membership` decides when; the connections are made here, on helper threads.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use weftlink_membership::durations::{INQUIRY, INQUIRY_RETRY, REPARENT};
use weftlink_membership::{Action, Input, Probe};
use weftlink_shm::limits::STACK_BYTES;

use super::broken::{Broken, PeerStatus};
use super::channel::Channel;
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::group::Group;
use super::message::{Contact, Introduction, Message};
use super::monitor::{Inner, link};
use super::process::Process;

/// Probes and connections that are under way at once, for one group.
const THREADS_MAX: usize = 16;

impl Group {
    fn contact(&self, rank: u32) -> Option<&Contact> {
        Some(&self.members.get()?.get(rank as usize)?.contact)
    }
}

impl Inner {
    /// Does what a group's state machine wants done, on a few threads.
    pub(super) fn carry_out(self: &Arc<Self>, group: &Arc<Group>) {
        // What cannot be done for want of a thread may lead to more; each rank is tried once.
        loop {
            let takes_time = |action: &Action<_>| matches!(action, Action::Probe(_) | Action::Reparent(_));
            let (pending_actions, others): (Vec<_>, Vec<_>) =
                group.take_actions().into_iter().partition(takes_time);
            for action in others {
                if let Action::CheckExit(rank) = action {
                    group.drive(Input::ExitChecked { rank, is_exiting: self.is_exiting(group, rank) });
                }
            }
            if pending_actions.is_empty() {
                return;
            }
            for share in pending_actions.chunks(pending_actions.len().div_ceil(THREADS_MAX)) {
                let (inner, its_group, its_share) = (Arc::clone(self), Arc::downgrade(group), share.to_vec());
                let helper =
                    std::thread::Builder::new().name("weft-helper".to_owned()).stack_size(STACK_BYTES);
                let started = helper.spawn(move || {
                    for action in its_share {
                        let Some(group) = its_group.upgrade() else { return };
                        let result = match action {
                            Action::Probe(rank) => Some(Input::Probed(rank, inner.probe(&group, rank))),
                            Action::Reparent(rank) => inner.reparent(&group, rank),
                            _ => None,
                        };
                        result.into_iter().for_each(|result| group.drive(result));
                        inner.wake();
                    }
                });
                if started.is_err() {
                    for action in share {
                        group.drive(match action {
                            Action::Reparent(rank) => {
                                Input::NotReparented { rank: *rank, why: Probe::Silent, gone: None }
                            }
                            Action::Probe(rank) => Input::Probed(*rank, Probe::Silent),
                            _ => continue,
                        });
                    }
                }
            }
        }
    }

    /// Whether the process at the other end of a link whose connection has ended exits.
    fn is_exiting(&self, group: &Arc<Group>, rank: u32) -> bool {
        let its_group = Arc::downgrade(group);
        let state = self.state();
        let mut links = state.links.iter().filter(|(link, group)| {
            link.rank == rank && link.has_ended.load(Ordering::Relaxed) && Weak::ptr_eq(group, &its_group)
        });
        links.any(|(link, _)| link.process.as_ref().is_some_and(Process::is_exiting))
    }

    /// What answers where a rank is found.
    fn probe(&self, group: &Group, rank: u32) -> Probe {
        // One that nobody knows how to find has not been heard of since it came.
        let Some(contact) = group.contact(rank) else { return Probe::Refused };
        let deadline = Deadline::new(INQUIRY);
        match self.dial(contact, &Introduction::Probe, deadline) {
            // Its host is there, and nobody has its place.
            Err(Broken::Refused) => Probe::Refused,
            Ok(_) => Probe::Answered,
            Err(Broken::Late) => Probe::Silent,
            Err(_) if deadline.left().is_none() => Probe::Silent,
            // Another process at its place, or bytes that changed on their way, prove nothing.
            Err(_) => Probe::Unclear,
        }
    }

    /// What became of a rank whose connection has ended. A process that ends closes what it has one after the other, so it is
    /// asked again for a while.
    pub(super) fn inquire(&self, contact: &Contact) -> PeerStatus {
        let deadline = Deadline::new(INQUIRY);
        while deadline.left().is_some() {
            match self.dial(contact, &Introduction::Probe, deadline) {
                Err(Broken::Refused) => return PeerStatus::Dead,
                Ok(_) | Err(Broken::Late) => return PeerStatus::Lost,
                Err(_) => std::thread::sleep(INQUIRY_RETRY),
            }
        }
        PeerStatus::Lost
    }

    /// Links this rank to another, since the one above it has left. Returns why not, if it is not.
    fn reparent(self: &Arc<Self>, group: &Arc<Group>, rank: u32) -> Option<Input<BootstrapError>> {
        let orphan = Introduction::Orphan { group: group.id, from: group.rank };
        let failed = |why| Some(Input::NotReparented { rank, why, gone: None });
        let Some(contact) = group.contact(rank) else { return failed(Probe::Unclear) };
        let deadline = Deadline::new(REPARENT);
        let answer = self.dial(contact, &orphan, deadline).and_then(|channel| {
            let (answer, _) = channel.receive(deadline)?;
            Ok((channel, answer))
        });
        let channel = match answer {
            // From here on the other rank takes this one for its child.
            Ok((channel, Message::Accepted { .. })) => match channel.send(&accepted(), None, deadline) {
                Ok(()) => channel,
                Err(_) => return failed(Probe::Unclear),
            },
            Ok((_, Message::NotInGroup { gone })) => {
                // It may not have heard yet that the group stands.
                let why = if gone.is_some() { Probe::Answered } else { Probe::Unclear };
                return Some(Input::NotReparented { rank, why, gone });
            }
            Err(Broken::Refused) => return failed(Probe::Refused),
            Err(Broken::Late) => return failed(Probe::Silent),
            Ok(_) | Err(_) => return failed(Probe::Unclear),
        };
        let link = link(rank, channel);
        if group.adopt(&link) {
            self.watch(&link, group);
        }
        None
    }

    /// Takes in a rank whose parent has left, once it has confirmed: it may give up at any time before.
    pub(super) fn take_in(
        self: &Arc<Self>,
        group: &Arc<Group>,
        from: u32,
        channel: Channel,
        deadline: Deadline,
    ) {
        if group.members.get().is_none_or(|members| from as usize >= members.len()) {
            return;
        }
        let confirmed = channel.send(&accepted(), None, deadline).and_then(|()| channel.receive(deadline));
        if !matches!(confirmed, Ok((Message::Accepted { .. }, _))) {
            return;
        }
        let link = link(from, channel);
        if group.adopt(&link) {
            self.watch(&link, group);
        }
    }
}

fn accepted() -> Message {
    Message::Accepted { pid: std::process::id() }
}
