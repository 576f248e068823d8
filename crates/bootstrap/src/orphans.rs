//! What a steward does when the tree of a group comes apart: finds out what became of a neighbour whose connection has ended,
//! and links ranks again that were linked through one that has left.
//!
//! *Links again.* A rank that leaves in good order passes on nothing any more. Those whose news went up to it, its
//! *orphans*, go to the next rank above it that is there, or if there is none to the lowest rank that is. They always go to a lower
//! rank, so no circle comes about. Both sides then tell each other all that matters of what they heard, because news may
//! have passed in between. It is done a moment later, since ranks mostly leave together. An orphan that dies before it has
//! gone anywhere is linked to nobody; so whoever it should have gone to looks for it.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weftlink_shm::limits::STACK_BYTES;

use super::broken::Broken;
use super::channel::Channel;
use super::deadline::Deadline;
use super::endpoint::{Inner, link};
use super::group::{Group, Link};
use super::message::{Contact, Introduction, Message, News};
use super::tree;

/// How long it may take to find out whether a process has ended whose connection has.
const INQUIRY_LIMIT: Duration = Duration::from_millis(500);
const INQUIRY_PAUSE: Duration = Duration::from_millis(10);
/// How long after a rank has left its orphans go elsewhere, and how long after that they are missed.
const ORPHAN_PAUSE: Duration = Duration::from_millis(100);
const MISSED_AFTER: Duration = Duration::from_millis(700);
/// How long it may take to be linked again, with one rank.
const LINK_LIMIT: Duration = Duration::from_secs(1);
/// To how many ranks an orphan goes.
const TRIES_MAX: usize = 16;

/// What is said of a connection that ended though both ends live, as far as is known.
pub(super) const WAS_LOST: &str = "was lost";

/// What became of a rank whose connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its process has ended.
    Dead,
    /// It lives, or cannot be reached.
    Lost,
}

/// What is to be done because a rank has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departed {
    /// To go to another.
    Orphaned,
    /// To look for the orphans of this rank.
    Orphans(u32),
}

impl Departed {
    pub(super) fn pause(self) -> Duration {
        match self {
            Departed::Orphaned => ORPHAN_PAUSE,
            Departed::Orphans(_) => ORPHAN_PAUSE + MISSED_AFTER,
        }
    }
}

impl Group {
    /// What there is to do about ranks that have left since this was last asked.
    pub(super) fn newly_departed(&self) -> Vec<Departed> {
        let mut state = self.state();
        let gone = std::mem::take(&mut state.departed);
        let is_orphaned = state.up.is_some_and(|up| state.left.contains(&up));
        if is_orphaned {
            state.up = None;
        }
        let orphaned = is_orphaned.then_some(Departed::Orphaned);
        orphaned.into_iter().chain(gone.into_iter().map(Departed::Orphans)).collect()
    }

    /// To whom a rank goes whose parent has left, the best first: ranks above it, then the lowest. Nobody, if it is itself
    /// the lowest.
    fn heirs(&self, orphan: u32) -> Vec<u32> {
        let parents = self.parents();
        let above =
            std::iter::successors(Some(orphan), |rank| parents.get(*rank as usize).copied().flatten());
        let state = self.state();
        let heirs: Vec<u32> = above.skip(1).chain(0..orphan).filter(|rank| !state.is_gone(*rank)).collect();
        let mut seen = BTreeSet::new();
        heirs.into_iter().filter(|rank| seen.insert(*rank)).take(TRIES_MAX).collect()
    }

    /// Orphans of a rank that should have come to this one and have not.
    fn missed_orphans(&self, left: u32) -> Vec<u32> {
        let links: BTreeSet<u32> = self.links().iter().map(|link| link.rank).collect();
        let is_missed = |orphan: &u32| {
            !links.contains(orphan)
                && !self.state().is_gone(*orphan)
                && self.heirs(*orphan).first() == Some(&self.rank)
        };
        tree::children(&self.parents(), left).into_iter().filter(is_missed).collect()
    }

    fn parents(&self) -> Vec<Option<u32>> {
        let hosts: Vec<u32> = self.members.get().into_iter().flatten().map(|member| member.host).collect();
        tree::parents(&hosts)
    }

    fn contact(&self, rank: u32) -> Option<&Contact> {
        Some(&self.members.get()?.get(rank as usize)?.contact)
    }

    /// Takes up a link to a rank, unless this one has left. Either way the other hears all that matters.
    fn adopt(&self, link: &Arc<Link>, greeting: Option<&Message>) -> bool {
        // Whatever is told from now on goes over the link, and whatever was told before is told again.
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let (has_left, grave) = {
            let state = self.state();
            (state.left.contains(&self.rank), state.grave.clone())
        };
        let mut messages = greeting.cloned().into_iter().chain(grave.into_iter().map(Message::News));
        let is_told = messages.try_for_each(|message| link.channel.post(&message)).is_ok();
        if is_told && !has_left {
            let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
            later.retain(|other| other.rank != link.rank);
            later.push(Arc::clone(link));
        }
        drop(telling);
        is_told && !has_left
    }
}

impl Inner {
    /// Finds out, on a thread of its own, what became of a neighbour whose connection has ended, and tells.
    pub(super) fn find_out(self: &Arc<Self>, link: &Arc<Link>, group: &Arc<Group>) {
        if group.state().left.contains(&link.rank) {
            return;
        }
        let Some(contact) = group.contact(link.rank).cloned() else {
            return group.lose(link, None);
        };
        let (inner, its_link, its_group) = (Arc::clone(self), Arc::clone(link), Arc::downgrade(group));
        let inquiry = std::thread::Builder::new()
            .name("weft-helper".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let fate = inner.inquire(&contact, Some(&its_link));
                if let Some(group) = its_group.upgrade() {
                    group.lose(&its_link, (fate == Fate::Lost).then(|| WAS_LOST.to_owned()));
                }
            });
        if inquiry.is_err() {
            group.lose(link, Some(WAS_LOST.to_owned()));
        }
    }

    /// What became of a rank whose connection has ended. A process that ends closes what it has one after the other, so it is
    /// asked again for a while.
    pub(super) fn inquire(&self, contact: &Contact, link: Option<&Link>) -> Fate {
        let deadline = Deadline::new(INQUIRY_LIMIT);
        while let Some(left) = deadline.left() {
            if let Some(process) = link.and_then(|link| link.process.as_ref()) {
                let mut watched = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
                let time = Timespec::try_from(left).ok();
                if poll(&mut watched, time.as_ref()).is_ok_and(|ready| ready > 0) {
                    return if mutant!("dead-count-as-lost") { Fate::Lost } else { Fate::Dead };
                }
                continue;
            }
            match self.dial(contact, &Introduction::Probe, deadline) {
                // Its host is there, and nobody has its place.
                Err(Broken::Refused) => return Fate::Dead,
                Ok(_) | Err(Broken::Late) => return Fate::Lost,
                // Another process at its place, or bytes that changed on their way, prove nothing.
                Err(
                    Broken::Ended
                    | Broken::Another
                    | Broken::Stranger(_)
                    | Broken::Strange(_)
                    | Broken::Forged(_),
                ) => {
                    std::thread::sleep(INQUIRY_PAUSE);
                }
            }
        }
        Fate::Lost
    }

    /// Does what is due about ranks that have left, on a thread of its own.
    pub(super) fn see_to_departures(self: &Arc<Self>) {
        let now = Instant::now();
        let mut state = self.state();
        let (due, later) =
            std::mem::take(&mut state.departures).into_iter().partition(|(when, ..)| *when <= now);
        state.departures = later;
        drop(state);
        let due: Vec<(Instant, _, Departed)> = due;
        for (_, group, departed) in due {
            // Mostly this rank has left too by now.
            let is_ours = group.upgrade().is_some_and(|group| match departed {
                Departed::Orphaned => true,
                Departed::Orphans(rank) => !group.missed_orphans(rank).is_empty(),
            });
            if !is_ours {
                continue;
            }
            let inner = Arc::clone(self);
            let helper = std::thread::Builder::new().name("weft-helper".to_owned()).stack_size(STACK_BYTES);
            let _ = helper.spawn(move || {
                if let Some(group) = group.upgrade() {
                    match departed {
                        Departed::Orphaned => inner.go_elsewhere(&group),
                        Departed::Orphans(rank) => inner.look_for_orphans(&group, rank),
                    }
                }
            });
        }
    }

    /// Links this rank to another, since the one above it has left.
    fn go_elsewhere(self: &Arc<Self>, group: &Arc<Group>) {
        let orphan = Introduction::Orphan { group: group.id, from: group.rank };
        for heir in group.heirs(group.rank).into_iter().filter(|_| !mutant!("orphans-stay")) {
            let Some(contact) = group.contact(heir) else { continue };
            let deadline = Deadline::new(LINK_LIMIT);
            let welcomed = self.dial(contact, &orphan, deadline).and_then(|channel| {
                let (answer, _) = channel.receive(deadline)?;
                Ok((channel, matches!(answer, Message::Accepted { .. })))
            });
            let Ok((channel, true)) = welcomed else { continue };
            let link = link(heir, channel);
            group.state().up = Some(heir);
            if group.adopt(&link, None) {
                self.watch(&link, group);
                self.wake();
            }
            return;
        }
    }

    /// Takes in a rank whose parent has left.
    pub(super) fn take_in(self: &Arc<Self>, group: &Arc<Group>, from: u32, channel: Channel) {
        let is_member = group.members.get().is_some_and(|members| (from as usize) < members.len());
        let link = link(from, channel);
        if is_member && group.adopt(&link, Some(&Message::Accepted { pid: std::process::id() })) {
            self.watch(&link, group);
            self.wake();
        }
    }

    /// Tells of those who should have come since a rank has left, and cannot because they are dead.
    fn look_for_orphans(&self, group: &Arc<Group>, left: u32) {
        for orphan in group.missed_orphans(left) {
            let Some(contact) = group.contact(orphan) else { continue };
            let probed = self.dial(contact, &Introduction::Probe, Deadline::new(INQUIRY_LIMIT));
            if probed.is_err_and(|broken| broken == Broken::Refused) {
                group.learn(News::Died { rank: orphan }, None);
            }
        }
    }
}
