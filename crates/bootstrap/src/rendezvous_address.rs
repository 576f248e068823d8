//! The address at which rank 0 listens.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Where rank 0 listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousAddress {
    /// A name in the kernel's table: nothing is left behind, however the ranks end. Seen by all processes of one
    /// network namespace, so not across containers.
    Abstract(String),
    /// A socket in the file system, which containers can share. A stale one is replaced. Ranks in different network namespaces cannot
    /// shrink or split their group, because they reach each other through rank 0 only.
    Path(PathBuf),
    /// A port of rank 0's host, the first that is free of a range. The others try all of them.
    Tcp {
        /// The host's name or address.
        host: String,
        /// The ports.
        ports: RangeInclusive<u16>,
    },
}

impl fmt::Display for RendezvousAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RendezvousAddress::Abstract(name) => write!(f, "@{name}"),
            RendezvousAddress::Path(path) => write!(f, "{}", path.display()),
            RendezvousAddress::Tcp { host, ports } if host.contains(':') && !host.starts_with('[') => {
                write!(f, "[{host}]:{}", Ports(ports))
            }
            RendezvousAddress::Tcp { host, ports } => write!(f, "{host}:{}", Ports(ports)),
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
