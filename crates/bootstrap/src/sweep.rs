//! Sweeps: all ranks of a group exchange bytes.
//!
//! A sweep goes up the tree with the request and the bytes of each rank, and down with the bytes of all. So it is a barrier, and
//! a rank that requests something else than its children is found on the way.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use weftlink_membership::durations::{INQUIRY_RESULT, POLL, VERDICT};
use weftlink_shm::memory::{MemoryError, SharedMemory};

use super::broken::Broken;
use super::channel::Received;
use super::deadline::Deadline;
use super::error::{BootstrapError, Request};
use super::group::{Group, Link, State};
use super::message::{Member, Message};
use super::waits::Watch;

/// Ranks and their bytes, in any order.
type Said = Vec<(u32, Vec<u8>)>;

/// A descriptor that all ranks of a host get: the first creates it, the others open it.
pub(super) struct HostDescriptor<'a> {
    /// For the first of them.
    pub(super) make: &'a mut dyn FnMut() -> Result<OwnedFd, BootstrapError>,
    /// For the others.
    pub(super) take: &'a mut dyn FnMut(&OwnedFd) -> Result<(), BootstrapError>,
}

impl Group {
    /// All ranks contribute bytes and get those of all, by rank. With `host_descriptor`, all ranks of a host get the descriptor that
    /// the first of them makes.
    pub(super) fn sweep(
        &self,
        number: u32,
        ask: &Request,
        mine: Vec<u8>,
        deadline: Deadline,
        host_descriptor: Option<HostDescriptor<'_>>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut said = vec![(self.rank, mine)];
        self.gather(number, ask, &mut said, deadline)?;
        let mut descriptor = None;
        if let Some(parent) = &self.parent {
            let up = Message::Up { number, ask: ask.clone(), said };
            self.say(parent, &up, None, ask, deadline)?;
            (said, descriptor) = self.await_verdict(number, parent, ask, deadline)?;
        }
        let made = match (host_descriptor, descriptor) {
            (Some(HostDescriptor { make, .. }), None) => Some(make()?),
            (Some(HostDescriptor { take, .. }), Some(descriptor)) => {
                take(&descriptor)?;
                Some(descriptor)
            }
            (None, _) => None,
        };
        let down = Message::Down { number, said };
        for child in &self.children {
            let made = made.as_ref().filter(|_| child.is_local);
            self.say(child, &down, made, ask, deadline)?;
        }
        let Message::Down { mut said, .. } = down else { unreachable!("made above") };
        said.sort_unstable_by_key(|(rank, _)| *rank);
        Ok(said.into_iter().map(|(_, said)| said).collect())
    }

    /// Collects the bytes of all children.
    fn gather(
        &self,
        number: u32,
        ask: &Request,
        said: &mut Said,
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let mut reported = Vec::new();
        let mut watch = Watch::new(self, &ask.purpose);
        let mut state = self.state();
        loop {
            let silent: Vec<u32> =
                self.children.iter().map(|child| child.rank).filter(|rank| !state.has(*rank)).collect();
            if silent.is_empty() {
                break;
            }
            let missing = state.missing(number, &silent);
            let late = || Err(self.missing(&missing, ask, deadline));
            let over = state.check(self, &silent, ask);
            if let Err(error) = over.and_then(|()| deadline.left().map_or_else(late, |_| Ok(()))) {
                drop(state);
                watch.note(&missing);
                return Err(error);
            }
            if deadline.waited() >= POLL && missing != reported {
                reported.clone_from(&missing);
                if let Some(parent) = &self.parent {
                    let waiting = Message::Waiting { number, ranks: reported.clone() };
                    drop(state);
                    let _ = parent.channel.post(&waiting);
                    state = self.state();
                    continue;
                }
            }
            if watch.is_due() {
                drop(state);
                watch.look(&missing);
                state = self.state();
                continue;
            }
            state = self.wait(state, deadline);
        }
        let heard: Vec<Received> =
            self.children.iter().filter_map(|child| state.inbox.get_mut(&child.rank)?.pop_front()).collect();
        drop(state);
        watch.over();
        for (child, (message, _)) in self.children.iter().zip(heard) {
            match message {
                Message::Up { number: theirs, ask: other, said: more } if theirs == number => {
                    let differs = other.purpose != ask.purpose || child.is_local && other.bytes != ask.bytes;
                    let differs = differs && !mutant!("asks-not-compared");
                    if differs {
                        return Err(BootstrapError::Mismatch { one: ask.clone(), other });
                    }
                    said.extend(more);
                }
                other => return Err(other.unexpected(child.rank as usize)),
            }
        }
        Ok(())
    }

    fn await_verdict(
        &self,
        number: u32,
        parent: &Link,
        ask: &Request,
        deadline: Deadline,
    ) -> Result<(Said, Option<OwnedFd>), BootstrapError> {
        let late = deadline.later(VERDICT * (1 + self.generation()));
        let mut watch = Watch::new(self, &ask.purpose);
        let mut state = self.state();
        loop {
            if let Some((message, descriptor)) =
                state.inbox.get_mut(&parent.rank).and_then(VecDeque::pop_front)
            {
                drop(state);
                watch.over();
                return match message {
                    Message::Down { number: theirs, said } if theirs == number => Ok((said, descriptor)),
                    other => Err(other.unexpected(parent.rank as usize)),
                };
            }
            let too_late = || {
                let (rank, limit) = (parent.rank as usize, deadline.limit());
                let (pid, purpose) = (self.pid(parent.rank), ask.purpose.clone());
                Err(BootstrapError::NoAnswer { rank, pid, purpose, limit })
            };
            let over = state.check(self, &[parent.rank], ask);
            if let Err(error) = over.and_then(|()| late.left().map_or_else(too_late, |_| Ok(()))) {
                drop(state);
                watch.note(&[parent.rank]);
                return Err(error);
            }
            if watch.is_due() {
                drop(state);
                watch.look(&[parent.rank]);
                state = self.state();
                continue;
            }
            state = self.wait(state, late);
        }
    }

    /// Takes the first message of a parent: the members of the group.
    pub(super) fn await_members(
        &self,
        ask: &Request,
        deadline: Deadline,
    ) -> Result<Vec<Member>, BootstrapError> {
        let Some(parent) = &self.parent else { return Ok(Vec::new()) };
        let mut watch = Watch::new(self, &ask.purpose);
        let mut state = self.state();
        loop {
            if let Some((message, _)) = state.inbox.get_mut(&parent.rank).and_then(VecDeque::pop_front) {
                drop(state);
                watch.over();
                return match message {
                    Message::Members(members) => Ok(members),
                    other => Err(other.unexpected(parent.rank as usize)),
                };
            }
            state.check(self, &[parent.rank], ask)?;
            if deadline.left().is_none() {
                drop(state);
                return Err(self.missing(&[parent.rank], ask, deadline));
            }
            if watch.is_due() {
                drop(state);
                watch.look(&[parent.rank]);
                state = self.state();
                continue;
            }
            state = self.wait(state, deadline);
        }
    }

    /// Sends the members to the children.
    pub(super) fn send_members(
        &self,
        members: &[Member],
        ask: &Request,
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let message = Message::Members(members.to_vec());
        self.children.iter().try_for_each(|child| self.say(child, &message, None, ask, deadline))
    }

    fn say(
        &self,
        link: &Link,
        message: &Message,
        descriptor: Option<&OwnedFd>,
        ask: &Request,
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let late = deadline.later(VERDICT);
        let queued = link.channel.queue(message, descriptor.map(AsFd::as_fd));
        let written = queued.and_then(|ticket| {
            loop {
                match link.channel.await_written(ticket, late.or_within(POLL)) {
                    // A neighbour that does not read is waited for only as long as the group has not failed.
                    Err(Broken::Late) if late.left().is_some() && self.verdict().is_none() => {}
                    written => break written,
                }
            }
        });
        written.map_err(|broken| {
            // Why it is gone is found out soon, if it is not known already.
            self.found_out(link.rank, ask).unwrap_or_else(|| match broken {
                Broken::Ended => self.died(link.rank),
                broken => {
                    let (peer, by) = ((link.rank as usize, self.pid(link.rank)), self.rank as usize);
                    broken.of(peer, by, &ask.purpose, deadline)
                }
            })
        })
    }

    /// What became of a rank that cannot be written to, as the monitor thread finds out.
    fn found_out(&self, rank: u32, ask: &Request) -> Option<BootstrapError> {
        let deadline = Deadline::new(INQUIRY_RESULT);
        let mut state = self.state();
        loop {
            if let Err(error) = state.check(self, &[rank], ask) {
                return Some(error);
            }
            deadline.left()?;
            state = self.wait(state, deadline);
        }
    }

    fn missing(&self, ranks: &[u32], ask: &Request, deadline: Deadline) -> BootstrapError {
        let ranks = ranks.iter().map(|&rank| rank as usize).collect();
        BootstrapError::Missing { ranks, purpose: ask.purpose.clone(), limit: deadline.limit() }
    }

    /// How many ranks are between this one and the root, at most.
    fn generation(&self) -> u32 {
        let Some(parents) = self.parents.get() else { return u32::BITS - self.rank.leading_zeros() };
        let above = |rank: &u32| parents.get(*rank as usize).copied().flatten();
        std::iter::successors(Some(self.rank), above).count() as u32 - 1
    }
}

impl State {
    fn has(&self, rank: u32) -> bool {
        self.inbox.get(&rank).is_some_and(|inbox| !inbox.is_empty())
    }

    /// The ranks that a rank waits for which waits for these: they themselves, or those that they announced.
    fn missing(&self, number: u32, silent: &[u32]) -> Vec<u32> {
        let of = |rank: &u32| match self.waiting.get(rank) {
            Some((theirs, ranks))
                if *theirs == number && !ranks.is_empty() && !mutant!("parent-blames-its-child") =>
            {
                ranks.clone()
            }
            _ => vec![*rank],
        };
        let mut missing: Vec<u32> = silent.iter().flat_map(of).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Whether there is any point in waiting for these.
    fn check(&self, group: &Group, awaited: &[u32], ask: &Request) -> Result<(), BootstrapError> {
        // What ends the group that a new one is made of ends the new one, too.
        let elder = self.elder.as_ref().and_then(|(elder, _)| elder.upgrade());
        let of_elder = || elder.and_then(|elder| elder.verdict());
        if let Some(verdict) = group.verdict_of(self).or_else(of_elder) {
            return Err(verdict);
        }
        match awaited.iter().find(|rank| self.core.left().contains(rank)) {
            Some(&rank) => {
                let (pid, purpose) = (group.pid(rank), ask.purpose.clone());
                Err(BootstrapError::Left { rank: rank as usize, pid, purpose })
            }
            None => Ok(()),
        }
    }
}

/// Two sweeps: all want the same, and the first rank of each host hands the memory to the others there; all have it.
pub(super) fn share(
    group: &Group,
    number: u32,
    ask: &Request,
    deadline: Deadline,
) -> Result<SharedMemory, BootstrapError> {
    let rank = ask.rank;
    let failed = |error: MemoryError| BootstrapError::Memory { rank, reason: error.to_string() };
    let memory = Cell::new(None);
    let mut make = || {
        let (made, descriptor) = SharedMemory::create(&ask.purpose, ask.bytes).map_err(failed)?;
        memory.set(Some(made));
        Ok(descriptor)
    };
    let mut take = |descriptor: &_| {
        memory.set(Some(SharedMemory::from_fd(descriptor, ask.bytes).map_err(failed)?));
        Ok(())
    };
    let host_descriptor = HostDescriptor { make: &mut make, take: &mut take };
    group.sweep(number, ask, Vec::new(), deadline, Some(host_descriptor))?;
    group.sweep(number.wrapping_add(1), ask, Vec::new(), deadline, None)?;
    memory.take().ok_or_else(|| BootstrapError::Protocol { rank, what: "no memory".to_owned() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::message::Event;

    #[test]
    fn a_wait_in_a_new_group_ends_with_the_group_that_is_split() {
        let (elder, part) = (Group::new(1, 0, None, Vec::new()), Group::new(2, 1, None, Vec::new()));
        part.set_elder(Some((Arc::downgrade(&elder), vec![2, 0])));
        let ask = Request { rank: 1, purpose: "a new group".to_owned(), bytes: 0 };
        assert_eq!(part.state().check(&part, &[0], &ask), Ok(()));
        elder.learn(Event::Died { rank: 1 });
        let ended = part.state().check(&part, &[0], &ask);
        assert!(matches!(ended, Err(BootstrapError::Died { rank: 1, .. })), "{ended:?}");
        part.set_elder(None);
        assert_eq!(part.state().check(&part, &[0], &ask), Ok(()));
    }
}
