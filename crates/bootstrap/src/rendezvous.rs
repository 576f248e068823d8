//! Where and how the ranks of a job find each other: what all of them are given before they start.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weftlink_knobs::{Interfaces, Knobs};
use weftlink_membership::durations::WARN_AFTER;

use super::address::{addresses, listen_tcp};
use super::error::BootstrapError;
use super::group::Group;
use super::host::Host;
use super::monitor::Monitor;
use super::secret::{Token, random_number};
use super::terms;

const RANKS_MAX: usize = 4096;

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
    pub(super) fn listen(&self, reached_from: IpAddr) -> io::Result<Vec<TcpListener>> {
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
    pub(super) fn addresses(&self, reached_from: IpAddr, port: u16) -> Vec<SocketAddr> {
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

    pub(super) fn host(&self) -> Result<Host, BootstrapError> {
        let here = Host::here()?;
        let here = if let Place::Path(_) = self.place { here.anywhere() } else { here };
        match (self.network.pretended_host, self.network.shared_memory) {
            (Some(number), _) => Ok(here.apart(number)),
            (None, true) => Ok(here),
            (None, false) => Ok(here.apart(random_number()? | 1)),
        }
    }

    /// Where ranks that met on one host, and do not share its memory, find each other.
    pub(super) fn reached_here(&self) -> Option<IpAddr> {
        let are_apart = !self.network.shared_memory || self.network.pretended_host.is_some();
        are_apart.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    pub(super) fn terms(&self) -> Vec<(String, String)> {
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

/// A rank that has met the others.
pub(super) type Met = (Option<Monitor>, Arc<Group>);

/// What ranks that have found each other call what they are about. Where they did is not part of it: some know that place by
/// another name.
pub(super) const PURPOSE: &str = "the meeting";

pub(super) fn check(meeting: &Meeting, rank: usize) -> Result<(), BootstrapError> {
    match meeting.size {
        0 => Err(bad_call("a group has at least one rank".to_owned())),
        size if size > RANKS_MAX => Err(bad_call(format!("{size} ranks are more than {RANKS_MAX}"))),
        size if rank >= size => Err(bad_call(format!("rank {rank} is not one of {size} ranks"))),
        _ => Ok(()),
    }
}

pub(super) fn bad_call(what: String) -> BootstrapError {
    BootstrapError::BadCall { what }
}

pub(super) fn unusable(place: &Place, reason: impl fmt::Display) -> BootstrapError {
    BootstrapError::Place { place: place.to_string(), reason: reason.to_string() }
}
