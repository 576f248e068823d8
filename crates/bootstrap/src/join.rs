//! The part of every other rank: it finds rank 0, is admitted, and takes its slot in the tree.
//!
//! A rank whose connection ends before rank 0 has answered retries until its deadline: the listener may have belonged to another
//! job, or may have been about to close.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use weftlink_membership::durations::{HELLO, JOIN_RETRY_MAX, OTHER_USER, RETRY_MIN, VERDICT};
use weftlink_shm::poll_hook;

use super::address::{call_abstract, call_path, call_tcp, resolve};
use super::broken::{ANOTHER, Broken};
use super::channel::Channel;
use super::deadline::Deadline;
use super::error::{Ask, BootstrapError, Refusal};
use super::group::Group;
use super::message::{Hello, Introduction, Message, Slot};
use super::monitor::Monitor;
use super::reason::error_in;
use super::rendezvous::{Meeting, Met, PURPOSE, Place, bad_call, check, unusable};
use super::slots::{await_children, in_place};
use super::stall::Stall;

/// Any other rank: finds rank 0 and waits until all are there.
pub(super) fn join(meeting: &Meeting, rank: usize) -> Result<Met, BootstrapError> {
    check(meeting, rank)?;
    if rank == 0 {
        return Err(bad_call("rank 0 listens, only the others join".to_owned()));
    }
    let deadline = Deadline::new(meeting.deadline);
    let monitor = Monitor::new(&meeting.token, meeting.host()?)?;
    let mut stall = Stall::new(rank, meeting.purpose(), meeting.network.warn_after);
    let mut found_at = None;
    let mut pause = RETRY_MIN;
    let (channel, root_pid) = loop {
        let last = match introduce(meeting, rank, &monitor, &mut found_at, &mut stall, deadline)? {
            Ok(accepted) => break accepted,
            Err(last) => last,
        };
        stall.look(&[0]);
        // One that would only be late is not tried: its error would hide this one.
        let Some(left) = deadline.left().filter(|left| *left > pause) else {
            let (place, limit) = (meeting.place.to_string(), deadline.limit());
            return Err(BootstrapError::NobodyListens { place, last, limit });
        };
        std::thread::sleep(pause.min(left));
        poll_hook::poll();
        pause = (pause * 2).min(JOIN_RETRY_MAX);
    };
    // Rank 0 knows who is missing, and says so a little after its deadline.
    let verdict = deadline.later(HELLO);
    let root = |broken: Broken| broken.of((0, root_pid), rank, &meeting.purpose(), deadline);
    // It says from time to time who is missing. If it does not, it is itself the one that is waited for.
    let silence = meeting.network.warn_after.saturating_mul(2).saturating_add(VERDICT);
    let slot = loop {
        let heard = match channel.receive(verdict.or_within(silence)) {
            Err(Broken::Late) if verdict.left().is_some() => {
                stall.look(&[0]);
                continue;
            }
            heard => heard.map_err(root)?.0,
        };
        match heard {
            Message::Slot(slot) => break *slot,
            Message::Waiting { ranks, .. } => drop(stall.look(&ranks)),
            Message::Event(news) => return Err(error_in(news)),
            other => return Err(other.unexpected(0)),
        }
    };
    let group = take_slot(&monitor, rank as u32, slot, channel, stall, verdict)?;
    Ok((Some(monitor), group))
}

/// Goes to the parent, waits for the children, learns who is who, and that all are in place.
fn take_slot(
    monitor: &Monitor,
    rank: u32,
    slot: Slot,
    root: Channel,
    mut stall: Stall,
    deadline: Deadline,
) -> Result<Arc<Group>, BootstrapError> {
    let ask = Ask { rank: rank as usize, purpose: PURPOSE.to_owned(), bytes: 0 };
    let Slot { group: id, parent, children } = slot;
    let (parent, root) = match parent {
        None => (monitor.link(0, root), None),
        Some((rank_of_parent, contact)) => {
            let link = Introduction::Link { group: id, from: rank };
            let dialed = loop {
                match monitor.dial(&contact, &link, deadline.or_within(stall.slice(HELLO))) {
                    Err(Broken::Late) if deadline.left().is_some() => drop(stall.look(&[rank_of_parent])),
                    dialed => break dialed,
                }
            };
            let dialed = dialed.map_err(|broken| {
                // Rank 0 may know more, and is just saying so.
                let (parent, by) = ((rank_of_parent as usize, contact.pid), rank as usize);
                final_error(&root).unwrap_or_else(|| broken.of(parent, by, &ask.purpose, deadline))
            });
            (monitor.link(rank_of_parent, dialed?), Some(root))
        }
    };
    let over = |missing: &[u32]| {
        stall.look(missing);
        let (heard, ended) = match root.as_ref().map(Channel::receive_ready) {
            None => return Ok(()),
            Some(Ok(heard)) => (heard, None),
            Some(Err((heard, broken))) => (heard, Some(broken)),
        };
        // What it said before it went counts.
        heard.into_iter().try_for_each(|(message, _)| match message {
            Message::Event(news) => Err(error_in(news)),
            _ => Ok(()),
        })?;
        ended.map_or(Ok(()), |broken| Err(broken.of((0, 0), rank as usize, &ask.purpose, deadline)))
    };
    // Who is next to one that does not come gives up first, because it knows best who that is.
    let soon = deadline.sooner(HELLO / 2);
    let mut links = Vec::new();
    let come = await_children(monitor, id, &children, &mut links, &ask, soon, over);
    let group = Group::new(id, rank, Some(parent), links);
    group.set_warn_after(stall.warn_after());
    // Else those who are linked already would take this rank for dead when it goes.
    come.inspect_err(|error| group.fail_for(error))?;
    monitor.watch(&group);
    in_place(&group, None, &ask, deadline)
        .map_err(|error| root.as_ref().and_then(final_error).unwrap_or(error))?;
    Ok(group)
}

/// What rank 0 says when it gives up, if it just does.
fn final_error(root: &Channel) -> Option<BootstrapError> {
    match root.receive(Deadline::new(VERDICT)).ok()?.0 {
        Message::Event(news) => Some(error_in(news)),
        _ => None,
    }
}

/// One try: the channel on which rank 0 has accepted us and its process, or why it is worth trying again.
fn introduce(
    meeting: &Meeting,
    rank: usize,
    monitor: &Monitor,
    found_at: &mut Option<Vec<SocketAddr>>,
    stall: &mut Stall,
    deadline: Deadline,
) -> Result<Result<(Channel, u32), String>, BootstrapError> {
    let refused = |reason| BootstrapError::Refused { rank, place: meeting.place.to_string(), reason };
    let mut last = "nothing was tried".to_owned();
    let is_only_one = !matches!(&meeting.place, Place::Tcp { ports, .. } if ports.start() != ports.end());
    for socket in reach(&meeting.place, deadline)? {
        let (socket, local) = match socket {
            Ok(socket) => socket,
            Err(why) => {
                last = why;
                continue;
            }
        };
        if let (Some(ip), None) = (local.or_else(|| meeting.reached_here()), &found_at) {
            let own = meeting.network.listen(ip).map_err(|error| unusable(&meeting.place, error))?;
            let port = monitor.listen_tcp(own)?;
            *found_at = Some(meeting.network.addresses(ip, port));
        }
        let contact = monitor.contact(found_at.clone().unwrap_or_default());
        let hello = Hello { rank, size: meeting.size, contact, terms: meeting.terms() };
        let answer = || -> Result<Result<(Channel, u32), Refusal>, Broken> {
            let soon = deadline.or_within(stall.slice(HELLO));
            let channel = Channel::dial(socket, &meeting.token, None, soon)?;
            let _ = channel.send(&Message::Introduction(Introduction::Join(hello)), None, deadline);
            let answer = loop {
                match channel.receive(deadline.or_within(stall.slice(HELLO))) {
                    Err(Broken::Late) if deadline.left().is_some() => drop(stall.look(&[0])),
                    answer => break answer?.0,
                }
            };
            match answer {
                Message::Accepted { pid } => Ok(Ok((channel, pid))),
                Message::Refused(reason) => Ok(Err(reason)),
                other => Err(Broken::Strange(format!("it said {other:?}"))),
            }
        };
        last = match answer() {
            Ok(Ok(accepted)) => return Ok(Ok(accepted)),
            // Another job may have one of several ports.
            Err(Broken::Stranger(reason)) if !is_only_one => reason.to_string(),
            // Another user may be at the place before rank 0 is; it does not have to stay there.
            Err(Broken::Stranger(reason @ Refusal::User { .. }))
                if deadline.waited() < OTHER_USER && deadline.left().is_some() =>
            {
                reason.to_string()
            }
            Ok(Err(reason)) | Err(Broken::Stranger(reason)) => return Err(refused(reason)),
            Err(Broken::Ended | Broken::Refused) => "whoever listened went away without an answer".to_owned(),
            Err(Broken::Late) => "it did not answer".to_owned(),
            // Whatever was changed on its way comes through another time.
            Err(Broken::Unreachable(what) | Broken::Strange(what) | Broken::Forged(what)) => what,
            Err(Broken::Another) => ANOTHER.to_owned(),
        };
    }
    Ok(Err(last))
}

/// A connection to where rank 0 may be, with the address from which it was made; or why there is none.
type Reached = Result<(OwnedFd, Option<IpAddr>), String>;

/// Connections to all places where rank 0 may be, as far as they can be made now.
fn reach(
    place: &Place,
    deadline: Deadline,
) -> Result<Box<dyn Iterator<Item = Reached> + '_>, BootstrapError> {
    let unix = |called: Result<OwnedFd, Errno>| match called {
        Ok(socket) => Ok(Box::new(std::iter::once(Ok((socket, None)))) as Box<dyn Iterator<Item = Reached>>),
        Err(error @ (Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR | Errno::INPROGRESS)) => {
            Ok(Box::new(std::iter::once(Err(error.to_string()))) as _)
        }
        Err(error) => Err(unusable(place, error)),
    };
    match place {
        Place::Abstract(name) => unix(call_abstract(name.as_bytes(), deadline)),
        Place::Path(path) => unix(call_path(path, deadline)),
        Place::Tcp { host, ports } => Ok(Box::new(ports.clone().flat_map(move |port| {
            // A name that is not known yet may be soon, as those of containers are.
            let found = resolve(host, port).map_err(|error| format!("{host}: {error}"));
            let found =
                found.map_or_else(|error| vec![Err(error)], |found| found.into_iter().map(Ok).collect());
            found.into_iter().map(move |address| {
                let address = address?;
                let stream = call_tcp(address, deadline).map_err(|error| format!("{address}: {error}"))?;
                let local = stream.local_addr().map_err(|error| error.to_string())?.ip();
                Ok((OwnedFd::from(stream), Some(local)))
            })
        }))),
    }
}
