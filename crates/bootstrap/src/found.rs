//! New groups of ranks that know how to find each other: parts of a group, and what is left of one.
//!
//! *Splitting* needs nobody to decide: all ranks hear what all want, and each works out its own new group. *Shrinking* does,
//! because no rank knows for sure who is left. The lowest rank that is not known to be dead gathers the others: they come to
//! it, it waits for those who may still come, and tells everybody who is in. Whoever finds that rank dead goes to the next.
//! If one more dies on the way, all begin again, so it ends as long as somebody is left.
//!
//! A rank that does not come in time is out, even if it lives: it finds nobody who still talks to it, and nothing of the old
//! group, no memory and no connection, is used by the new one. Whether the others may go on without it is put to a vote
//! (`weftlink_membership::quorum`), unless it is proved dead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weftlink_membership::durations::{
    HELLO as STEP_LIMIT, MINORITY as MINORITY_LIMIT, PROBE as PROBE_PAUSE, REGROUP_RETRY_MAX as PAUSE_MAX,
    RETRY_MIN as PAUSE_MIN,
};
use weftlink_membership::quorum::may_continue;
use weftlink_membership::tree;
use weftlink_shm::poll_hook;

use super::broken::{Broken, Fate};
use super::channel::Channel;
use super::deadline::Deadline;
use super::endpoint::Endpoint;
use super::error::{Ask, BootstrapError};
use super::group::Group;
use super::meeting::await_children;
use super::message::{Contact, Event, Introduction, Member, Message};
use super::secret::random_number;
use super::waits::Watch;

/// Takes this rank's place in a group of ranks that all know who is in it. `elder` is the group that they are in, and what they
/// are called there; `over` tells why it will not come about.
pub(super) fn found(
    endpoint: &Endpoint,
    id: u64,
    rank: u32,
    contacts: Vec<Contact>,
    elder: (&Arc<Group>, &[u32]),
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
            let channel = dialed.map_err(|broken| match broken {
                Broken::Refused => died(parent, contact),
                Broken::Ended if endpoint.inquire(contact) == Fate::Dead => died(parent, contact),
                broken => broken.of((parent as usize, contact.pid), rank as usize, &ask.purpose, deadline),
            })?;
            Some(endpoint.link(parent, channel))
        }
    };
    // One that died before it came is noticed by nobody but who waits for it.
    let mut probed = Instant::now();
    let mut children = Vec::new();
    let mut watch = Watch::new(elder.0, PURPOSE);
    for child in tree::children(&parents, rank) {
        let there = |_: &[u32]| {
            over()?;
            watch.look(&[elder.1[child as usize]]);
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
            let _ = await_children(endpoint, id, &rest, &mut children, &ask, now, |_| Ok(()));
            Group::new(id, rank, parent, children).fail_for(&error);
            return Err(error);
        }
    }
    watch.over();
    let group = Group::new(id, rank, parent, children);
    group.set_elder(Some((Arc::downgrade(elder.0), elder.1.to_vec())));
    let members = contacts.into_iter().zip(hosts).map(|(contact, host)| Member { contact, host }).collect();
    group.set_members(members);
    endpoint.watch(&group);
    match group.sweep(0, &ask, Vec::new(), deadline, None) {
        Ok(_) => {
            group.set_elder(None);
            Ok(group)
        }
        Err(error) => {
            group.fail_for(&error);
            endpoint.unwatch(&group);
            Err(error)
        }
    }
}

const PURPOSE: &str = "a new group";

pub(super) fn died(rank: u32, contact: &Contact) -> BootstrapError {
    BootstrapError::Died { rank: rank as usize, host: contact.host.to_string(), pid: contact.pid }
}

/// What groups have in common that came out of one by shrinking: the number of the first, and the number that each of their
/// ranks had there. However often ranks shrink, and whichever of the groups on the way they have heard of, they look for
/// each other under these numbers, so nobody is left behind who missed one.
#[derive(Debug, Clone)]
pub(super) struct Lineage {
    pub(super) id: u64,
    pub(super) numbers: Vec<u32>,
}

impl Lineage {
    /// Of a group that came out of no other.
    pub(super) fn new(id: u64, size: usize) -> Lineage {
        Lineage { id, numbers: (0..size as u32).collect() }
    }

    /// Of some of the ranks, by the numbers they have now.
    pub(super) fn of(&self, ranks: &[u32]) -> Lineage {
        Lineage { id: self.id, numbers: ranks.iter().map(|&rank| self.numbers[rank as usize]).collect() }
    }

    /// The rank that has this number.
    fn rank(&self, number: u32) -> Option<u32> {
        Some(self.numbers.iter().position(|other| *other == number)? as u32)
    }
}

/// What is left of a group: a new one, and the old rank of each of its ranks.
pub(super) fn shrink(
    old: &Arc<Group>,
    endpoint: &Endpoint,
    lineage: &Lineage,
    limit: Duration,
) -> Result<(Arc<Group>, Vec<u32>), BootstrapError> {
    let members = old.members.get().map_or(&[][..], Vec::as_slice);
    let deadline = Deadline::new(limit);
    let shrinking = Shrinking { old, members, endpoint, lineage, deadline };
    let mut out = Out::default();
    let mut pause = PAUSE_MIN;
    loop {
        shrinking.note(&mut out);
        let leader = (0..members.len() as u32).find(|rank| !out.has(*rank)).unwrap_or(old.rank);
        let gathered = match leader == old.rank {
            true => shrinking.gather(&mut out)?,
            false => shrinking.follow(leader, &mut out)?,
        };
        if let Some(gathered) = gathered {
            return Ok(gathered);
        }
        let Some(left) = deadline.left() else { break };
        // Those who are left may not have noticed yet what this rank has.
        std::thread::sleep(pause.min(left));
        poll_hook::poll();
        pause = (2 * pause).min(PAUSE_MAX);
    }
    if !out.unreachable.is_empty() {
        return Err(shrinking.minority(&[old.rank], &out));
    }
    let ranks = (0..members.len()).filter(|rank| !out.has(*rank as u32)).collect();
    Err(BootstrapError::Missing { ranks, purpose: SHRINKING.to_owned(), limit })
}

const SHRINKING: &str = "what is left of a group";

/// A group and its ranks' old numbers, or nothing if it is worth another try.
type Gathered = Option<(Arc<Group>, Vec<u32>)>;

/// Who is out, as far as one rank knows.
#[derive(Default)]
struct Out {
    /// Those who are proved dead.
    dead: BTreeSet<u32>,
    /// Those who cannot be reached, or did not come, and may live.
    unreachable: BTreeSet<u32>,
    /// Since when this rank knows that too few are here to go on.
    minority: Option<Instant>,
    /// Those whose connection has ended and who are there all the same: they gave a group up that did not come about.
    there: BTreeSet<u32>,
    /// Pairs that did not reach each other once, which may have been such a group. Of one that does not do so again the later is out.
    apart: BTreeSet<(Option<u32>, Option<u32>)>,
}

impl Out {
    fn has(&self, rank: u32) -> bool {
        self.dead.contains(&rank) || self.unreachable.contains(&rank)
    }
}

struct Shrinking<'a> {
    old: &'a Arc<Group>,
    members: &'a [Member],
    endpoint: &'a Endpoint,
    lineage: &'a Lineage,
    deadline: Deadline,
}

impl Shrinking<'_> {
    /// Takes in what the old group knows of its ranks.
    fn note(&self, out: &mut Out) {
        out.dead.extend(self.old.dead());
        for rank in self.old.cut_off() {
            if !out.has(rank) && !out.there.contains(&rank) {
                let deadline = Deadline::new(PROBE_PAUSE);
                let contact = &self.members[rank as usize].contact;
                let among = match self.endpoint.dial(contact, &Introduction::Probe, deadline) {
                    Ok(_) => &mut out.there,
                    Err(Broken::Refused) => &mut out.dead,
                    Err(_) => &mut out.unreachable,
                };
                among.insert(rank);
            }
        }
    }

    /// Those who are here are too few to go on without the others.
    fn minority(&self, here: &[u32], out: &Out) -> BootstrapError {
        let size = self.members.len();
        let is_missing = |rank: &u32| !here.contains(rank) && !out.dead.contains(rank);
        let others = (0..size as u32).filter(is_missing).map(|rank| rank as usize).collect();
        let here = here.iter().map(|&rank| rank as usize).collect();
        BootstrapError::Minority { here, others, size }
    }

    /// The rank that all come to.
    fn gather(&self, out: &mut Out) -> Result<Gathered, BootstrapError> {
        let Shrinking { old, members, endpoint, lineage, deadline } = *self;
        let mut come: Vec<(u32, Channel)> = Vec::new();
        let mut watch = Watch::new(old, SHRINKING);
        loop {
            come.retain(|(_, channel)| !channel.has_ended());
            self.note(out);
            // Whoever has come is there, whatever was said of it.
            let awaited = |rank: &u32| {
                *rank != old.rank && !out.has(*rank) && come.iter().all(|(other, _)| other != rank)
            };
            let missing: Vec<u32> = (0..members.len() as u32).filter(awaited).collect();
            // Those who have not come in time are out.
            if missing.is_empty() || deadline.left().is_none() {
                break;
            }
            watch.look(&missing);
            let survivor = |introduction: &Introduction| match introduction {
                Introduction::Survivor { group, from, dead } if *group == lineage.id => {
                    // Whoever was left out before stays out.
                    Some((lineage.rank(*from)?, dead.clone()))
                }
                _ => None,
            };
            let arrived = endpoint.expect(deadline.or_within(PROBE_PAUSE), survivor, || Ok(()))?;
            match arrived {
                Some(((from, known), channel)) => {
                    let known: Vec<u32> =
                        known.into_iter().filter_map(|number| lineage.rank(number)).collect();
                    tracing::info!(target: "weft::meet", rank = old.rank as usize,
                        "rank {from} shrinks too, and knows of the end of ranks {known:?}"
                    );
                    out.dead.extend(known);
                    come.retain(|(other, _)| *other != from);
                    come.push((from, channel));
                }
                None => out.dead.extend(
                    missing.into_iter().filter(|rank| is_gone(endpoint, &members[*rank as usize].contact)),
                ),
            }
        }
        watch.over();
        come.sort_unstable_by_key(|(rank, _)| *rank);
        let ranks: Vec<u32> = std::iter::once(old.rank).chain(come.iter().map(|(rank, _)| *rank)).collect();
        let all: Vec<u32> = (0..members.len() as u32).collect();
        if !may_continue(&all, &ranks.iter().copied().collect(), &out.dead) {
            let error = self.minority(&ranks, out);
            let since = *out.minority.get_or_insert_with(Instant::now);
            if deadline.left().is_none() || since.elapsed() >= MINORITY_LIMIT {
                come.iter().for_each(|(_, channel)| tell(channel, 0, &error));
                return Err(error);
            }
            // The others may only have been slow to answer.
            tracing::info!(target: "weft::meet", rank = old.rank as usize, "tries again to reach the others: {error}");
            come.iter().for_each(|(_, channel)| tell(channel, 0, &gave_up(0)));
            out.unreachable.clear();
            out.there.clear();
            return Ok(None);
        }
        let id = random_number()?;
        let numbers = lineage.of(&ranks).numbers;
        for (place, (_, channel)) in (1..).zip(&come) {
            let together = Message::Together { group: id, rank: place, ranks: numbers.clone() };
            let _ = channel.send(&together, None, Deadline::new(STEP_LIMIT));
        }
        let contacts: Vec<Contact> =
            ranks.iter().map(|&rank| members[rank as usize].contact.clone()).collect();
        // Whoever cannot go on says so, and comes again; whoever says nothing and is gone is dead.
        let all_are_there = || {
            for (place, (_, channel)) in (1..).zip(&come) {
                match channel.receive_ready() {
                    Ok(heard) if heard.is_empty() => {}
                    Err((heard, _)) if heard.is_empty() => {
                        let contact = &contacts[place as usize];
                        return Err(match endpoint.inquire(contact) {
                            Fate::Dead => died(place, contact),
                            Fate::Lost => gave_up(place),
                        });
                    }
                    Ok(mut heard) | Err((mut heard, _)) => {
                        return Err(match heard.pop() {
                            Some((Message::Event(Event::Failed { error, .. }), _)) => error,
                            _ => gave_up(place),
                        });
                    }
                }
            }
            Ok(())
        };
        let limit = deadline.or_within(STEP_LIMIT).later(STEP_LIMIT);
        match found(endpoint, id, 0, contacts.clone(), (old, &ranks), limit, all_are_there) {
            Ok(group) => Ok(Some((group, ranks))),
            Err(error) => {
                tracing::info!(target: "weft::meet", rank = old.rank as usize,
                    "ranks {ranks:?} do not come together, and try again: {error}"
                );
                come.iter().for_each(|(_, channel)| tell(channel, 0, &error));
                // Only what this rank finds decides who is in.
                let at = |place: usize| ranks.get(place).copied();
                let places = casualties(&error, |(one, other)| !out.apart.insert((at(one), at(other))));
                let is_death = matches!(error, BootstrapError::Died { .. });
                let among = if is_death { &mut out.dead } else { &mut out.unreachable };
                among.extend(places.into_iter().filter_map(at));
                Ok(None)
            }
        }
    }

    /// Any other.
    fn follow(&self, leader: u32, out: &mut Out) -> Result<Gathered, BootstrapError> {
        let Shrinking { old, members, endpoint, lineage, deadline } = *self;
        let number = |rank: u32| lineage.numbers[rank as usize];
        let survivor = Introduction::Survivor {
            group: lineage.id,
            from: number(old.rank),
            dead: old.state().core.dead().iter().map(|&rank| number(rank)).collect(),
        };
        let contact = &members[leader as usize].contact;
        // It answers when it has heard from all, or when the deadline it has is over.
        let late = deadline.later(STEP_LIMIT);
        let channel = match endpoint.dial(contact, &survivor, deadline.or_within(STEP_LIMIT)) {
            Ok(channel) => channel,
            // One that is stopped is not passed over: the others may be waiting there already.
            Err(Broken::Late) if deadline.left().is_some() => return Ok(None),
            Err(Broken::Late) => {
                let (rank, purpose, limit) = (leader as usize, SHRINKING.to_owned(), deadline.limit());
                return Err(BootstrapError::NoAnswer { rank, pid: contact.pid, purpose, limit });
            }
            Err(broken) => {
                tracing::info!(target: "weft::meet", rank = old.rank as usize, "rank {leader} cannot be reached ({broken:?})");
                let among = if broken == Broken::Refused { &mut out.dead } else { &mut out.unreachable };
                among.insert(leader);
                return Ok(None);
            }
        };
        let mut watch = Watch::new(old, SHRINKING);
        let received = loop {
            match channel.receive(late.or_within(PROBE_PAUSE)) {
                Err(Broken::Late) if late.left().is_some() => watch.look(&[leader]),
                received => break received,
            }
        };
        watch.over();
        let (id, rank, numbers) = match received {
            Ok((Message::Together { group, rank, ranks }, _)) => (group, rank, ranks),
            Ok((Message::Event(Event::Failed { error: error @ BootstrapError::Minority { .. }, .. }), _)) => {
                return Err(error);
            }
            Ok((Message::Event(_), _)) => return Ok(None),
            Ok((other, _)) => return Err(other.unexpected(leader as usize)),
            Err(Broken::Late) => {
                let (purpose, limit) = (SHRINKING.to_owned(), deadline.limit());
                let rank = leader as usize;
                return Err(BootstrapError::NoAnswer { rank, pid: contact.pid, purpose, limit });
            }
            Err(_) => {
                // It may have begun again.
                if endpoint.inquire(contact) == Fate::Dead {
                    tracing::info!(target: "weft::meet", rank = old.rank as usize, "rank {leader} died while it gathered the others");
                    out.dead.insert(leader);
                }
                return Ok(None);
            }
        };
        let ranks: Option<Vec<u32>> = numbers.iter().map(|number| lineage.rank(*number)).collect();
        let Some(ranks) = ranks.filter(|ranks| ranks.get(rank as usize) == Some(&old.rank)) else {
            let what = format!("it told of ranks {numbers:?}");
            return Err(BootstrapError::Protocol { rank: leader as usize, what });
        };
        let contacts = ranks.iter().map(|&rank| members[rank as usize].contact.clone()).collect();
        let over = || match channel.receive_ready() {
            Ok(heard) if heard.is_empty() => Ok(()),
            Err((heard, _)) if heard.is_empty() && endpoint.inquire(contact) == Fate::Dead => {
                Err(died(0, contact))
            }
            // One that says so and then goes is no casualty.
            Ok(_) | Err(_) => Err(gave_up(0)),
        };
        let limit = Deadline::new(STEP_LIMIT).later(STEP_LIMIT);
        match found(endpoint, id, rank, contacts, (old, &ranks), limit, over) {
            Ok(group) => Ok(Some((group, ranks))),
            Err(error) => {
                tracing::info!(target: "weft::meet", rank = old.rank as usize,
                    "ranks {ranks:?} do not come together, and try again: {error}"
                );
                tell(&channel, rank, &error);
                if let BootstrapError::Died { rank: place, .. } = &error {
                    out.dead.extend(ranks.get(*place));
                }
                Ok(None)
            }
        }
    }
}

/// Says why it did not come about this time.
fn tell(channel: &Channel, rank: u32, error: &BootstrapError) {
    let news = super::gives_up(rank, error);
    let _ = channel.send(&Message::Event(news), None, Deadline::new(STEP_LIMIT));
}

fn gave_up(rank: u32) -> BootstrapError {
    BootstrapError::GaveUp { rank: rank as usize, cause: "somebody died".to_owned(), blamed: Vec::new() }
}

/// Who is out, if that is what went wrong, by its place in the new group: the dead, those who did not come in time, and of two
/// who cannot reach each other, again, the later one.
fn casualties(error: &BootstrapError, mut again: impl FnMut((usize, usize)) -> bool) -> Vec<usize> {
    match error {
        BootstrapError::Died { rank, .. } => vec![*rank],
        &BootstrapError::Lost { rank, by, .. } => {
            let (one, other) = (rank.min(by), rank.max(by));
            if again((one, other)) { vec![other] } else { Vec::new() }
        }
        BootstrapError::Missing { .. } | BootstrapError::Late { .. } => {
            let places = error.blamed().into_iter().map(|blame| blame.rank as usize);
            places.filter(|place| *place > 0).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether nobody is where a rank was to be found. One that is stopped still is.
fn is_gone(endpoint: &Endpoint, contact: &Contact) -> bool {
    let deadline = Deadline::new(PROBE_PAUSE);
    matches!(endpoint.dial(contact, &Introduction::Probe, deadline), Err(Broken::Refused))
}
