//! Splitting a group: all ranks announce which part they want, and each works out its new group without further agreement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weftlink_membership::durations::{HELLO as STEP_LIMIT, PROBE};
use weftlink_membership::tree;

use super::broken::{Broken, PeerStatus};
use super::deadline::Deadline;
use super::error::{BootstrapError, Request};
use super::group::Group;
use super::message::{Contact, Introduction, Member};
use super::monitor::Monitor;
use super::slots::await_children;
use super::waits::Watch;

/// Connects this rank to its neighbours in the tree of a new group, whose members all ranks know. `elder` is the group that they
/// are in, with their ranks there; `over` returns an error if the new group can no longer form.
pub(super) fn form(
    monitor: &Monitor,
    id: u64,
    rank: u32,
    contacts: Vec<Contact>,
    elder: (&Arc<Group>, &[u32]),
    deadline: Deadline,
    over: impl FnMut() -> Result<(), BootstrapError>,
) -> Result<Arc<Group>, BootstrapError> {
    let formed = connect(monitor, id, rank, contacts, elder, deadline, over);
    // Children that come later must not wait for a rank that has given up.
    formed.inspect_err(|_| monitor.refuse_children(id))
}

fn connect(
    monitor: &Monitor,
    id: u64,
    rank: u32,
    contacts: Vec<Contact>,
    elder: (&Arc<Group>, &[u32]),
    deadline: Deadline,
    mut over: impl FnMut() -> Result<(), BootstrapError>,
) -> Result<Arc<Group>, BootstrapError> {
    over()?;
    let hosts = tree::number_hosts(&contacts, |one, other| one.host.is_same(&other.host));
    let parents = tree::parents(&hosts);
    let ask = Request { rank: rank as usize, purpose: PURPOSE.to_owned(), bytes: 0 };
    let parent = match parents[rank as usize] {
        None => None,
        Some(parent) => {
            let contact = &contacts[parent as usize];
            let link = Introduction::Link { group: id, from: rank };
            let dialed = monitor.dial(contact, &link, deadline.or_within(STEP_LIMIT));
            let channel = dialed.map_err(|broken| match broken {
                Broken::Refused => contact.died(parent),
                Broken::Ended if monitor.inquire(contact) == PeerStatus::Dead => contact.died(parent),
                broken => broken.of((parent as usize, contact.pid), rank as usize, &ask.purpose, deadline),
            })?;
            Some(monitor.link(parent, channel))
        }
    };
    // What ended the whole group is said in its numbers, which ranks of the part would take for their own.
    let said = |error: &BootstrapError| match elder.0.verdict() {
        None => error.clone(),
        Some(verdict) => {
            BootstrapError::GaveUp { rank: rank as usize, cause: verdict.to_string(), blamed: Vec::new() }
        }
    };
    // No rank watches a child that dies before it connects, so its parent probes it.
    let mut probed = Instant::now();
    let mut children = Vec::new();
    let mut watch = Watch::new(elder.0, PURPOSE);
    for child in tree::children(&parents, rank) {
        let there = |_: &[u32]| {
            over()?;
            watch.look(&[elder.1[child as usize]]);
            if probed.elapsed() >= PROBE {
                probed = Instant::now();
                let contact = &contacts[child as usize];
                let dialed = monitor.dial(contact, &Introduction::Probe, Deadline::new(PROBE));
                return match dialed {
                    Err(Broken::Refused) => Err(contact.died(child)),
                    _ => Ok(()),
                };
            }
            Ok(())
        };
        if let Err(error) = await_children(monitor, id, &[child], &mut children, &ask, deadline, there) {
            // Children that are connected, or about to be, must hear why; otherwise they would take this rank for dead.
            let all = tree::children(&parents, rank);
            let rest: Vec<u32> =
                all.into_iter().filter(|rank| children.iter().all(|link| link.rank != *rank)).collect();
            let now = Deadline::new(Duration::ZERO);
            let _ = await_children(monitor, id, &rest, &mut children, &ask, now, |_| Ok(()));
            Group::new(id, rank, parent, children).fail_for(&said(&error));
            return Err(error);
        }
    }
    watch.over();
    let group = Group::new(id, rank, parent, children);
    group.set_elder(Some((Arc::downgrade(elder.0), elder.1.to_vec())));
    let members = contacts.into_iter().zip(hosts).map(|(contact, host)| Member { contact, host }).collect();
    group.set_members(members, tree::Shape::Binomial);
    monitor.watch(&group);
    match group.sweep(0, &ask, Vec::new(), deadline, None) {
        Ok(_) => {
            group.set_elder(None);
            Ok(group)
        }
        Err(error) => {
            group.fail_for(&said(&error));
            monitor.unwatch(&group);
            Err(error)
        }
    }
}

const PURPOSE: &str = "a new group";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::mpsc;

    use super::*;
    use crate::message::{Event, Message};
    use crate::monitor::tests::{AMPLE, monitor};

    /// Ranks 0, 2 and 3 of a group become one, and rank 1 dies meanwhile. Rank 1 of the new group, which is rank 2, lives.
    #[test]
    fn a_death_outside_a_part_is_not_said_in_numbers_of_the_part() {
        for connected in [1, 2] {
            let monitors = [monitor(), monitor(), monitor()];
            let contacts = monitors.each_ref().map(|monitor| monitor.contact(Vec::new()));
            let elder = Group::new(1, 0, None, Vec::new());
            let dial = |rank: u32| {
                let link = Introduction::Link { group: 2, from: rank };
                monitors[rank as usize].dial(&contacts[0], &link, Deadline::new(AMPLE)).unwrap()
            };
            let children: Vec<_> = (1..=connected).map(dial).collect();
            let (begin, begun) = mpsc::channel();
            let over = || {
                let _ = begin.send(());
                elder.verdict().map_or(Ok(()), Err)
            };
            let error = std::thread::scope(|scope| {
                let whole = Arc::clone(&elder);
                scope.spawn(move || {
                    begun.recv().unwrap();
                    // Then it waits for a child, or for the first exchange in the part.
                    std::thread::sleep(Duration::from_millis(50));
                    whole.learn(Event::Died { rank: 1 });
                });
                let (elder, deadline) = ((&elder, &[0, 2, 3][..]), Deadline::new(AMPLE));
                form(&monitors[0], 2, 0, contacts.to_vec(), elder, deadline, over).unwrap_err()
            });
            assert!(matches!(error, BootstrapError::Died { rank: 1, .. }), "{error}");
            for child in children {
                let event = std::iter::from_fn(|| Some(child.receive(Deadline::new(AMPLE)).unwrap().0))
                    .find_map(|message| if let Message::Event(event) = message { Some(event) } else { None });
                let Some(Event::Failed { rank: 0, culprit, error, .. }) = event else {
                    unreachable!("{event:?}")
                };
                assert!(matches!(&error, BootstrapError::GaveUp { rank: 0, .. }), "{error}");
                assert_eq!(culprit, 0, "{error}");
            }
        }
    }
}
