//! How processes become a group: rank 0 listens at a place, the others come.
//!
//! A rank that comes proves that it knows the job's secret, says who it is and what it takes for granted. Rank 0 answers at
//! once: accepted, or refused and why; a refused one disturbs nobody, rank 0 goes on waiting for the right ones. When all are
//! there, each learns its place in a tree (`tree.rs`): whom to go to and who will come. From then on rank 0 is one of many;
//! who is who goes down the tree, and a first sweep tells all that everybody is in place. If the deadline passes first, those
//! who did come are told who did not.
//!
//! A rank whose connection ends before it was answered tries again until its deadline: the listener may have been
//! somebody else's, left over or just closing. A rank that came and ended may come again until all are there.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use weftlink_knobs::{Interfaces, Knobs};
use weftlink_membership::durations::{
    HELLO as ANSWER_LIMIT, HELLO as HELLO_LIMIT, JOIN_RETRY_MAX as PAUSE_MAX, OTHER_USER as OTHER_USER_LIMIT,
    RETRY_MIN as PAUSE_MIN, VERDICT as VERDICT_LIMIT, WARN_AFTER,
};
use weftlink_shm::poll_hook;

use super::address::{
    Listener, addresses, call_abstract, call_path, call_tcp, listen_abstract, listen_tcp, resolve,
};
use super::broken::{ANOTHER, Broken};
use super::channel::Channel;
use super::deadline::Deadline;
use super::endpoint::Endpoint;
use super::error::{Ask, BootstrapError, Refusal};
use super::group::{Group, Link};
use super::host::Host;
use super::message::{Contact, Hello, Introduction, Member, Message, Seat};
use super::roster::Roster;
use super::secret::{Token, random_number};
use super::stall::Stall;
use super::terms;

/// What the ranks of a job agree on before they meet.
#[derive(Debug, Clone)]
pub struct Meeting {
    /// Where.
    pub place: Place,
    /// How the ranks of this job know each other.
    pub token: Token,
    /// How many ranks there are, rank 0 included.
    pub size: usize,
    /// How long to wait for all to come.
    pub deadline: Duration,
    /// How to reach each other.
    pub network: Network,
}

/// How ranks reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The interfaces at which ranks of other hosts may look for this one.
    pub interfaces: Interfaces,
    /// The ports at which they may; any that is free if unset.
    pub ports: Option<RangeInclusive<u16>>,
    /// Whether ranks of one host share memory. If not they send through the network, as if each had a host of its own.
    pub shared_memory: bool,
    /// After how long a rank that waits for others to come logs a warning.
    pub warn_after: Duration,
    /// What else must be the same for all ranks, by name. Ranks that differ are refused, and told in what.
    pub terms: Vec<(String, String)>,
    /// Processes with different numbers are on different hosts, whatever the kernel says. For tests.
    #[doc(hidden)]
    pub pretended_host: Option<u64>,
    /// The port at which others are told to look for this process, where that is not the one it listens at: something stands
    /// between. For tests, which put something there that cuts connections and changes what they carry.
    #[doc(hidden)]
    pub announced_port: Option<u16>,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            interfaces: Interfaces::default(),
            ports: None,
            shared_memory: true,
            warn_after: WARN_AFTER,
            terms: Vec::new(),
            pretended_host: None,
            announced_port: None,
        }
    }
}

impl Network {
    /// As settings say.
    pub fn of(knobs: &Knobs) -> Network {
        Network {
            interfaces: knobs.interfaces.clone(),
            ports: knobs.ports.map(|ports| ports.first..=ports.last),
            shared_memory: knobs.shared_memory,
            warn_after: knobs.warn_after,
            terms: knobs.terms(),
            ..Network::default()
        }
    }

    /// Listens where others may find this process, which is reached from there.
    fn listen(&self, reached_from: IpAddr) -> io::Result<Vec<TcpListener>> {
        let ports = self.ports.as_ref();
        listen_tcp(reached_from, ports, &self.interfaces, None).map_err(|error| match ports {
            Some(ports) if error.kind() == io::ErrorKind::AddrInUse => {
                let (first, last) = (ports.start(), ports.end());
                let what = format!(
                    "no port of WEFT_PORTS={first}-{last} is free, and every rank of a host takes one"
                );
                io::Error::new(error.kind(), what)
            }
            _ => error,
        })
    }

    /// Where others may find this process, which is reached from there and listens at that port.
    fn addresses(&self, reached_from: IpAddr, port: u16) -> Vec<SocketAddr> {
        addresses(reached_from, self.announced_port.unwrap_or(port), &self.interfaces)
    }
}

impl Meeting {
    /// A meeting for ranks that reach each other as they can.
    pub fn new(place: Place, token: Token, size: usize, deadline: Duration) -> Meeting {
        Meeting { place, token, size, deadline, network: Network::default() }
    }

    pub(super) fn purpose(&self) -> String {
        format!("the meeting at {}", self.place)
    }

    fn host(&self) -> Result<Host, BootstrapError> {
        let here = Host::here()?;
        let here = if let Place::Path(_) = self.place { here.anywhere() } else { here };
        match (self.network.pretended_host, self.network.shared_memory) {
            (Some(number), _) => Ok(here.apart(number)),
            (None, true) => Ok(here),
            (None, false) => Ok(here.apart(random_number()? | 1)),
        }
    }

    /// Where ranks that met on one host, and do not share its memory, find each other.
    fn reached_here(&self) -> Option<IpAddr> {
        let are_apart = !self.network.shared_memory || self.network.pretended_host.is_some();
        are_apart.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    fn terms(&self) -> Vec<(String, String)> {
        terms::of_this_build().chain(self.network.terms.iter().cloned()).collect()
    }
}

/// Where ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A name in the kernel's table: nothing is left behind, however the ranks end. Seen by all processes of one
    /// network namespace, so not across containers.
    Abstract(String),
    /// A socket in the file system, which containers can share. A stale one is replaced.
    Path(PathBuf),
    /// A port of rank 0's host, the first that is free of a range. The others try all of them.
    Tcp {
        /// The host's name or address.
        host: String,
        /// The ports.
        ports: RangeInclusive<u16>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Abstract(name) => write!(f, "@{name}"),
            Place::Path(path) => write!(f, "{}", path.display()),
            Place::Tcp { host, ports } if host.contains(':') && !host.starts_with('[') => {
                write!(f, "[{host}]:{}", Ports(ports))
            }
            Place::Tcp { host, ports } => write!(f, "{host}:{}", Ports(ports)),
        }
    }
}

struct Ports<'a>(&'a RangeInclusive<u16>);

impl fmt::Display for Ports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

const RANKS_MAX: usize = 4096;

/// A rank that has met the others.
pub(super) type Met = (Option<Endpoint>, Arc<Group>);

/// What ranks that have found each other call what they are about. Where they did is not part of it: some know that place by
/// another name.
pub(super) const PURPOSE: &str = "the meeting";

/// Rank 0: waits for all others.
pub(super) fn listen(meeting: &Meeting) -> Result<Met, BootstrapError> {
    check(meeting, 0)?;
    let deadline = Deadline::new(meeting.deadline);
    if meeting.size == 1 {
        let contact = Contact {
            pid: std::process::id(),
            host: meeting.host()?,
            name: Vec::new(),
            addresses: Vec::new(),
        };
        return Ok((None, Group::alone(random_number()?, vec![contact])));
    }
    let endpoint = Endpoint::new(&meeting.token, meeting.host()?)?;
    let (listeners, reached_at) = listen_at(meeting)?;
    let found_at = match reached_at {
        Some(ip) => {
            let own = meeting.network.listen(ip).map_err(|error| unusable(&meeting.place, error))?;
            let port = endpoint.listen_tcp(own)?;
            meeting.network.addresses(ip, port)
        }
        None => Vec::new(),
    };
    let listeners: Vec<_> = listeners.into_iter().map(|listener| endpoint.listen(listener)).collect();
    let mut roster = Roster::new(meeting, endpoint.contact(found_at), meeting.terms());
    while !roster.is_complete() {
        let join = |introduction: &Introduction| match introduction {
            Introduction::Join(hello) => Some(hello.clone()),
            _ => None,
        };
        match endpoint.expect(deadline, join, || roster.keep_waiting())? {
            Some((hello, channel)) => roster.admit(hello, channel),
            None => return Err(roster.give_up(deadline.limit(), &endpoint.notes())),
        }
    }
    listeners.iter().for_each(|listener| endpoint.stop_listening(listener));
    drop(listeners);
    // What remains takes as long as messages do, unless somebody is stopped just now.
    let deadline = deadline.later(HELLO_LIMIT);
    let seated = roster.seat(&endpoint, random_number()?)?;
    let group = seated.take_place(&endpoint, deadline)?;
    Ok((Some(endpoint), group))
}

/// Any other rank: finds rank 0 and waits until all are there.
pub(super) fn join(meeting: &Meeting, rank: usize) -> Result<Met, BootstrapError> {
    check(meeting, rank)?;
    if rank == 0 {
        return Err(bad_call("rank 0 listens, only the others join".to_owned()));
    }
    let deadline = Deadline::new(meeting.deadline);
    let endpoint = Endpoint::new(&meeting.token, meeting.host()?)?;
    let mut stall = Stall::new(rank, meeting.purpose(), meeting.network.warn_after);
    let mut found_at = None;
    let mut pause = PAUSE_MIN;
    let (channel, root_pid) = loop {
        let last = match introduce(meeting, rank, &endpoint, &mut found_at, &mut stall, deadline)? {
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
        pause = (pause * 2).min(PAUSE_MAX);
    };
    // Rank 0 knows who is missing, and says so a little after its deadline.
    let verdict = deadline.later(HELLO_LIMIT);
    let root = |broken: Broken| broken.of((0, root_pid), rank, &meeting.purpose(), deadline);
    // It says from time to time who is missing. If it does not, it is itself the one that is waited for.
    let silence = meeting.network.warn_after.saturating_mul(2).saturating_add(VERDICT_LIMIT);
    let seat = loop {
        let heard = match channel.receive(verdict.or_within(silence)) {
            Err(Broken::Late) if verdict.left().is_some() => {
                stall.look(&[0]);
                continue;
            }
            heard => heard.map_err(root)?.0,
        };
        match heard {
            Message::Seat(seat) => break *seat,
            Message::Waiting { ranks, .. } => drop(stall.look(&ranks)),
            Message::Event(news) => return Err(super::error_of(news)),
            other => return Err(other.unexpected(0)),
        }
    };
    let group = take_seat(&endpoint, rank as u32, seat, channel, stall, verdict)?;
    Ok((Some(endpoint), group))
}

/// Goes to the parent, waits for the children, learns who is who, and that all are in place.
fn take_seat(
    endpoint: &Endpoint,
    rank: u32,
    seat: Seat,
    root: Channel,
    mut stall: Stall,
    deadline: Deadline,
) -> Result<Arc<Group>, BootstrapError> {
    let ask = Ask { rank: rank as usize, purpose: PURPOSE.to_owned(), bytes: 0 };
    let Seat { group: id, parent, children } = seat;
    let (parent, root) = match parent {
        None => (endpoint.link(0, root), None),
        Some((rank_of_parent, contact)) => {
            let link = Introduction::Link { group: id, from: rank };
            let dialed = loop {
                match endpoint.dial(&contact, &link, deadline.or_within(stall.slice(ANSWER_LIMIT))) {
                    Err(Broken::Late) if deadline.left().is_some() => drop(stall.look(&[rank_of_parent])),
                    dialed => break dialed,
                }
            };
            let dialed = dialed.map_err(|broken| {
                // Rank 0 may know more, and is just saying so.
                let (parent, by) = ((rank_of_parent as usize, contact.pid), rank as usize);
                last_word(&root).unwrap_or_else(|| broken.of(parent, by, &ask.purpose, deadline))
            });
            (endpoint.link(rank_of_parent, dialed?), Some(root))
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
            Message::Event(news) => Err(super::error_of(news)),
            _ => Ok(()),
        })?;
        ended.map_or(Ok(()), |broken| Err(broken.of((0, 0), rank as usize, &ask.purpose, deadline)))
    };
    // Who is next to one that does not come gives up first, because it knows best who that is.
    let soon = deadline.sooner(HELLO_LIMIT / 2);
    let mut links = Vec::new();
    let come = await_children(endpoint, id, &children, &mut links, &ask, soon, over);
    let group = Group::new(id, rank, Some(parent), links);
    group.set_warn_after(stall.warn_after());
    // Else those who are linked already would take this rank for dead when it goes.
    come.inspect_err(|error| group.fail_for(error))?;
    endpoint.watch(&group);
    in_place(&group, None, &ask, deadline)
        .map_err(|error| root.as_ref().and_then(last_word).unwrap_or(error))?;
    Ok(group)
}

/// What rank 0 says when it gives up, if it just does.
fn last_word(root: &Channel) -> Option<BootstrapError> {
    match root.receive(Deadline::new(VERDICT_LIMIT)).ok()?.0 {
        Message::Event(news) => Some(super::error_of(news)),
        _ => None,
    }
}

/// Waits for those who are to come, and adds them to the links: those who did come must hear it if others do not. `over` is
/// told who is missing and tells why they will not come.
pub(super) fn await_children(
    endpoint: &Endpoint,
    group: u64,
    children: &[u32],
    links: &mut Vec<Arc<Link>>,
    ask: &Ask,
    deadline: Deadline,
    mut over: impl FnMut(&[u32]) -> Result<(), BootstrapError>,
) -> Result<(), BootstrapError> {
    let mut missing = children.to_vec();
    while !missing.is_empty() {
        let wanted = |introduction: &Introduction| match introduction {
            Introduction::Link { group: theirs, from } if *theirs == group => {
                missing.contains(from).then_some(*from)
            }
            _ => None,
        };
        let Some((child, channel)) = endpoint.expect(deadline, wanted, || over(&missing))? else {
            let (purpose, limit) = (ask.purpose.clone(), deadline.limit());
            let ranks = missing.into_iter().map(|child| child as usize).collect();
            return Err(BootstrapError::Missing { ranks, purpose, limit });
        };
        missing.retain(|other| *other != child);
        links.push(endpoint.link(child, channel));
    }
    links.sort_by_key(|link| link.rank);
    Ok(())
}

/// Tells who is who down the tree, and waits until all are in place.
pub(super) fn in_place(
    group: &Group,
    members: Option<Vec<Member>>,
    ask: &Ask,
    deadline: Deadline,
) -> Result<(), BootstrapError> {
    let settle = || {
        let members = match members {
            Some(members) => members,
            None => group.await_members(ask, deadline)?,
        };
        group.tell_members(&members, ask, deadline)?;
        group.set_members(members);
        group.sweep(0, ask, Vec::new(), deadline, None).map(|_| ())
    };
    settle().inspect_err(|error| group.fail_for(error))
}

/// One try: the channel on which rank 0 has accepted us and its process, or why it is worth trying again.
fn introduce(
    meeting: &Meeting,
    rank: usize,
    endpoint: &Endpoint,
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
            let port = endpoint.listen_tcp(own)?;
            *found_at = Some(meeting.network.addresses(ip, port));
        }
        let contact = endpoint.contact(found_at.clone().unwrap_or_default());
        let hello = Hello { rank, size: meeting.size, contact, terms: meeting.terms() };
        let answer = || -> Result<Result<(Channel, u32), Refusal>, Broken> {
            let soon = deadline.or_within(stall.slice(ANSWER_LIMIT));
            let channel = Channel::dial(socket, &meeting.token, None, soon)?;
            let _ = channel.send(&Message::Introduction(Introduction::Join(hello)), None, deadline);
            let answer = loop {
                match channel.receive(deadline.or_within(stall.slice(ANSWER_LIMIT))) {
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
                if deadline.waited() < OTHER_USER_LIMIT && deadline.left().is_some() =>
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

/// The sockets at which rank 0 is found, and the address that leads to it, if it is one of the network.
fn listen_at(meeting: &Meeting) -> Result<(Vec<Listener>, Option<IpAddr>), BootstrapError> {
    let place = &meeting.place;
    match place {
        Place::Abstract(name) => {
            let listener = listen_abstract(name.as_bytes()).map_err(|error| unusable(place, error))?;
            Ok((vec![Listener::Unix(listener)], meeting.reached_here()))
        }
        Place::Path(path) => {
            let listener = Listener::at_path(path).map_err(|reason| unusable(place, reason))?;
            Ok((vec![listener], meeting.reached_here()))
        }
        Place::Tcp { host, ports } => {
            let first = resolve(host, *ports.start()).map_err(|error| unusable(place, error))?;
            let ip = first.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
            let listeners = listen_tcp(ip, Some(ports), &meeting.network.interfaces, Some(ip));
            let listeners = listeners.map_err(|error| unusable(place, error))?;
            Ok((listeners.into_iter().map(Listener::Tcp).collect(), Some(ip)))
        }
    }
}

fn check(meeting: &Meeting, rank: usize) -> Result<(), BootstrapError> {
    match meeting.size {
        0 => Err(bad_call("a group has at least one rank".to_owned())),
        size if size > RANKS_MAX => Err(bad_call(format!("{size} ranks are more than {RANKS_MAX}"))),
        size if rank >= size => Err(bad_call(format!("rank {rank} is not one of {size} ranks"))),
        _ => Ok(()),
    }
}

fn bad_call(what: String) -> BootstrapError {
    BootstrapError::BadCall { what }
}

fn unusable(place: &Place, reason: impl fmt::Display) -> BootstrapError {
    BootstrapError::Place { place: place.to_string(), reason: reason.to_string() }
}
