//! New groups of ranks that know how to find each other: parts of a group, and what is left of one.
//!
//! *Splitting* needs nobody to decide: all ranks hear what all want, and each works out its own new group. *Shrinking* does,
//! because no rank knows for sure who is left. The lowest rank that is not known to be dead gathers the others: they come to
//! it, it waits for those who may still come, and tells everybody who is in. Whoever finds that rank dead goes to the next.
//! If one more dies on the way, all begin again, so it ends as long as somebody is left.
//!
//! A rank that does not come in time is out, even if it lives: it finds nobody who still talks to it, and nothing of the old
//! group, no memory and no connection, is used by the new one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::{Broken, Channel};
use super::deadline::Deadline;
use super::endpoint::{Endpoint, HELLO_LIMIT};
use super::error::{Ask, BootstrapError};
use super::group::Group;
use super::meeting::await_children;
use super::message::{Contact, Introduction, Member, Message, News};
use super::secret::random_number;
use super::tree;

/// How often the rank that gathers the others looks whether those who have not come are still there.
const PROBE_PAUSE: Duration = Duration::from_millis(250);
/// How long anything may take that needs no other rank to call something.
const STEP_LIMIT: Duration = HELLO_LIMIT;

/// Takes this rank's place in a group of ranks that all know who is in it. `over` tells why it will not come about.
pub(super) fn found(
    endpoint: &Endpoint,
    id: u64,
    rank: u32,
    contacts: Vec<Contact>,
    deadline: Deadline,
    mut over: impl FnMut() -> Result<(), BootstrapError>,
) -> Result<Arc<Group>, BootstrapError> {
    let hosts = tree::number_hosts(&contacts, |one, other| one.host.is_same(&other.host));
    let parents = tree::parents(&hosts);
    let ask = Ask { rank: rank as usize, purpose: PURPOSE.to_owned(), bytes: 0 };
    let parent = match parents[rank as usize] {
        None => None,
        Some(parent) => {
            let contact = &contacts[parent as usize];
            let link = Introduction::Link { group: id, from: rank };
            let dialed = endpoint.dial(contact, &link, deadline.or_within(STEP_LIMIT));
            let channel = dialed.map_err(|_| died(parent, contact))?;
            Some(endpoint.link(parent, channel))
        }
    };
    // One that died before it came is noticed by nobody but who waits for it.
    let mut probed = Instant::now();
    let mut children = Vec::new();
    for child in tree::children(&parents, rank) {
        let there = || {
            over()?;
            if probed.elapsed() >= PROBE_PAUSE {
                probed = Instant::now();
                let contact = &contacts[child as usize];
                return if is_gone(endpoint, contact) { Err(died(child, contact)) } else { Ok(()) };
            }
            Ok(())
        };
        if let Err(error) = await_children(endpoint, id, &[child], &mut children, &ask, deadline, there) {
            // Else those who are linked already would take this rank for dead when it goes. Those who have come, too.
            let all = tree::children(&parents, rank);
            let rest: Vec<u32> =
                all.into_iter().filter(|rank| children.iter().all(|link| link.rank != *rank)).collect();
            let now = Deadline::new(Duration::ZERO);
            let _ = await_children(endpoint, id, &rest, &mut children, &ask, now, || Ok(()));
            Group::new(id, rank, parent, children).fail(super::NO_MEMORY, rank, &error);
            return Err(error);
        }
    }
    let group = Group::new(id, rank, parent, children);
    let members = contacts.into_iter().zip(hosts).map(|(contact, host)| Member { contact, host }).collect();
    let _ = group.members.set(members);
    endpoint.watch(&group);
    match group.sweep(0, &ask, Vec::new(), deadline, None) {
        Ok(_) => Ok(group),
        Err(error) => {
            group.fail(super::NO_MEMORY, rank, &error);
            endpoint.unwatch(&group);
            Err(error)
        }
    }
}

const PURPOSE: &str = "a group of ranks that know each other";

fn died(rank: u32, contact: &Contact) -> BootstrapError {
    BootstrapError::Died { rank: rank as usize, host: contact.host.to_string(), pid: contact.pid }
}

/// What is left of a group: a new one, and the old rank of each of its ranks.
pub(super) fn shrink(
    old: &Group,
    endpoint: &Endpoint,
    limit: Duration,
) -> Result<(Arc<Group>, Vec<u32>), BootstrapError> {
    let members = old.members.get().map_or(&[][..], Vec::as_slice);
    let deadline = Deadline::new(limit);
    let mut dead: BTreeSet<u32> = BTreeSet::new();
    // Each round but the last finds somebody dead.
    for _ in 0..2 * members.len() {
        dead.extend(old.dead());
        let leader = (0..members.len() as u32).find(|rank| !dead.contains(rank)).unwrap_or(old.rank);
        let gathered = match leader == old.rank {
            true => gather(old, endpoint, &mut dead, deadline)?,
            false => follow(old, endpoint, leader, &mut dead, deadline)?,
        };
        if let Some(gathered) = gathered {
            return Ok(gathered);
        }
        if deadline.left().is_none() {
            break;
        }
    }
    let ranks = (0..members.len()).filter(|rank| !dead.contains(&(*rank as u32))).collect();
    Err(BootstrapError::Missing { ranks, purpose: "what is left of a group".to_owned(), limit })
}

/// A group and its ranks' old numbers, or nothing if it is worth another try.
type Gathered = Option<(Arc<Group>, Vec<u32>)>;

/// The rank that all come to.
fn gather(
    old: &Group,
    endpoint: &Endpoint,
    dead: &mut BTreeSet<u32>,
    deadline: Deadline,
) -> Result<Gathered, BootstrapError> {
    let members = old.members.get().map_or(&[][..], Vec::as_slice);
    let mut come: Vec<(u32, Channel)> = Vec::new();
    loop {
        come.retain(|(_, channel)| !channel.has_ended());
        dead.extend(old.dead());
        let awaited = |rank: &u32| {
            *rank != old.rank && !dead.contains(rank) && come.iter().all(|(other, _)| other != rank)
        };
        let missing: Vec<u32> = (0..members.len() as u32).filter(awaited).collect();
        // Those who have not come in time are out.
        if missing.is_empty() || deadline.left().is_none() {
            break;
        }
        let survivor = |introduction: &Introduction| match introduction {
            Introduction::Survivor { group, from, dead } if *group == old.id => Some((*from, dead.clone())),
            _ => None,
        };
        let arrived = endpoint.expect(deadline.or_within(PROBE_PAUSE), survivor, || Ok(()))?;
        match arrived {
            Some(((from, known), channel)) => {
                dead.extend(known);
                come.retain(|(other, _)| *other != from);
                come.push((from, channel));
            }
            None => dead.extend(
                missing.into_iter().filter(|rank| is_gone(endpoint, &members[*rank as usize].contact)),
            ),
        }
    }
    come.sort_unstable_by_key(|(rank, _)| *rank);
    let ranks: Vec<u32> = std::iter::once(old.rank).chain(come.iter().map(|(rank, _)| *rank)).collect();
    let id = random_number()?;
    for (place, (_, channel)) in (1..).zip(&come) {
        let together = Message::Together { group: id, rank: place, ranks: ranks.clone() };
        let _ = channel.send(&together, None, Deadline::new(STEP_LIMIT));
    }
    let contacts: Vec<Contact> = ranks.iter().map(|&rank| members[rank as usize].contact.clone()).collect();
    let all_are_there = || match come.iter().position(|(_, channel)| channel.has_ended()) {
        Some(place) => Err(died(place as u32 + 1, &contacts[place + 1])),
        None => Ok(()),
    };
    let limit = deadline.or_within(STEP_LIMIT).later(STEP_LIMIT);
    match found(endpoint, id, 0, contacts.clone(), limit, all_are_there) {
        Ok(group) => Ok(Some((group, ranks))),
        Err(error) => {
            let news = News::Failed { rank: 0, reason: super::NO_MEMORY, culprit: 0, error: error.clone() };
            for (_, channel) in &come {
                let _ = channel.send(&Message::News(news.clone()), None, Deadline::new(STEP_LIMIT));
            }
            dead.extend(casualty(&error, &ranks));
            Ok(None)
        }
    }
}

/// Any other.
fn follow(
    old: &Group,
    endpoint: &Endpoint,
    leader: u32,
    dead: &mut BTreeSet<u32>,
    deadline: Deadline,
) -> Result<Gathered, BootstrapError> {
    let members = old.members.get().map_or(&[][..], Vec::as_slice);
    let survivor =
        Introduction::Survivor { group: old.id, from: old.rank, dead: dead.iter().copied().collect() };
    let contact = &members[leader as usize].contact;
    // It answers when it has heard from all, or when the deadline it has is over.
    let late = deadline.later(STEP_LIMIT);
    let channel = match endpoint.dial(contact, &survivor, deadline.or_within(STEP_LIMIT)) {
        Ok(channel) => channel,
        Err(_) => {
            dead.insert(leader);
            return Ok(None);
        }
    };
    let (id, rank, ranks) = match channel.receive(late) {
        Ok((Message::Together { group, rank, ranks }, _)) => (group, rank, ranks),
        Ok((Message::News(_), _)) => return Ok(None),
        Ok((other, _)) => return Err(other.unexpected(leader as usize)),
        Err(Broken::Late) => {
            let (purpose, limit) = ("what is left of a group".to_owned(), deadline.limit());
            let rank = leader as usize;
            return Err(BootstrapError::NoAnswer { rank, pid: contact.pid, purpose, limit });
        }
        Err(_) => {
            dead.insert(leader);
            return Ok(None);
        }
    };
    let known = |rank: &u32| members.get(*rank as usize).map(|member| member.contact.clone());
    let contacts: Option<Vec<Contact>> = ranks.iter().map(known).collect();
    let Some(contacts) = contacts.filter(|contacts| (rank as usize) < contacts.len()) else {
        let what = format!("it told of ranks {ranks:?}");
        return Err(BootstrapError::Protocol { rank: leader as usize, what });
    };
    let over = || match channel.receive_ready() {
        Ok(heard) if heard.is_empty() => Ok(()),
        // One that says so and then goes is no casualty.
        Err((heard, _)) if heard.is_empty() => Err(died(0, contact)),
        Ok(_) | Err(_) => Err(BootstrapError::GaveUp { rank: 0, cause: "somebody died".to_owned() }),
    };
    let limit = Deadline::new(STEP_LIMIT).later(STEP_LIMIT);
    match found(endpoint, id, rank, contacts, limit, over) {
        Ok(group) => Ok(Some((group, ranks))),
        Err(error) => {
            dead.extend(casualty(&error, &ranks));
            Ok(None)
        }
    }
}

/// Who died, by its old number, if that is what went wrong.
fn casualty(error: &BootstrapError, ranks: &[u32]) -> Option<u32> {
    match error {
        BootstrapError::Died { rank, .. } => ranks.get(*rank).copied(),
        _ => None,
    }
}

/// Whether nobody is where a rank was to be found. One that is stopped still is.
fn is_gone(endpoint: &Endpoint, contact: &Contact) -> bool {
    let deadline = Deadline::new(PROBE_PAUSE);
    matches!(endpoint.dial(contact, &Introduction::Probe, deadline), Err(Broken::Refused))
}
