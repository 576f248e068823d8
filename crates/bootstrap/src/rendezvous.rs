//! Where and how the ranks of a job find each other: what all of them are given before they start.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weftlink_knobs::{Interfaces, Knobs};
use weftlink_membership::durations::WARN_AFTER;
use weftlink_membership::rendezvous::Settings;

use super::address::{addresses, listen_tcp};
use super::deadline::Deadline;
use super::error::{BootstrapError, list};
use super::group::Group;
use super::host::Host;
use super::monitor::Monitor;
use super::rendezvous_address::RendezvousAddress;
use super::secret::{Token, random_number};
use super::terms;

const RANKS_MAX: usize = 4096;

/// What all ranks of a job are given to find each other.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// Where rank 0 listens.
    pub address: RendezvousAddress,
    /// The secret by which ranks of this job recognise each other.
    pub token: Token,
    /// The number of ranks, rank 0 included.
    pub size: usize,
    /// How long to wait for all ranks to join.
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
    /// Log a stall warning after this long.
    pub warn_after: Duration,
    /// What else must be the same for all ranks, by name. Rank 0 refuses ranks that differ, and says in what.
    pub terms: Vec<(String, String)>,
    /// Processes with different numbers are on different hosts, whatever the kernel says. For tests.
    #[doc(hidden)]
    pub pretended_host: Option<u64>,
    /// The port that other ranks connect to, where that is not the one that this process listens at. For tests, whose proxy there
    /// cuts connections and changes bytes.
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

impl Rendezvous {
    /// A rendezvous with the default network.
    pub fn new(address: RendezvousAddress, token: Token, size: usize, deadline: Duration) -> Rendezvous {
        Rendezvous { address, token, size, deadline, network: Network::default() }
    }

    pub(super) fn purpose(&self) -> String {
        format!("the rendezvous at {}", self.address)
    }

    pub(super) fn host(&self) -> Result<Host, BootstrapError> {
        let here = Host::here()?;
        let here = if let RendezvousAddress::Path(_) = self.address { here.at_a_path() } else { here };
        match (self.network.pretended_host, self.network.shared_memory) {
            (Some(number), _) => Ok(here.apart(number)),
            (None, true) => Ok(here),
            (None, false) => Ok(here.apart(random_number()? | 1)),
        }
    }

    pub(super) fn settings(&self, rank: u32, deadline: Deadline) -> Settings {
        let (size, warn_after) = (self.size as u32, self.network.warn_after);
        Settings { rank, size, deadline: Instant::now() + deadline.left().unwrap_or_default(), warn_after }
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

/// The monitor and the group of a rank that has joined.
pub(super) type Met = (Option<Monitor>, Arc<Group>);

/// What ranks that have found each other call what they are about. Where they did is not part of it: some know that place by
/// another name.
pub(super) const PURPOSE: &str = "the rendezvous";

pub(super) fn check(rendezvous: &Rendezvous, rank: usize) -> Result<(), BootstrapError> {
    match rendezvous.size {
        0 => Err(bad_call("a group has at least one rank".to_owned())),
        size if size > RANKS_MAX => Err(bad_call(format!("{size} ranks are more than {RANKS_MAX}"))),
        size if rank >= size => Err(bad_call(format!("rank {rank} is not one of {size} ranks"))),
        _ => Ok(()),
    }
}

/// Logs a stall warning of a rank that waits for others to join, before there is a group in which ranks announce their waits.
pub(super) fn log_stall(rank: usize, purpose: &str, waited: Duration, whom: &[u32]) {
    let whom: Vec<usize> = whom.iter().map(|&rank| rank as usize).collect();
    let (whom, seconds) = (list(&whom), waited.as_secs_f64());
    tracing::warn!(target: "weft::meet", rank, "{purpose} has waited {seconds:.1} s for {whom}");
}

pub(super) fn bad_call(what: String) -> BootstrapError {
    BootstrapError::BadCall { what }
}

pub(super) fn unusable(place: &RendezvousAddress, reason: impl Display) -> BootstrapError {
    BootstrapError::RendezvousAddress { place: place.to_string(), reason: reason.to_string() }
}
