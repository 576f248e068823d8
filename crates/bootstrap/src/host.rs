//! Which host a process is on, as its kernel says: never guessed from names or the environment, which are the same in
//! cloned machines and different in containers of one.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::BootstrapError;
use super::secret::random_number;

/// A host, as far as processes can share memory: one running kernel, and one network namespace, because sockets by
/// which memory is handed over are found in that, or one path of the file system at which they meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// For messages.
    name: String,
    /// The kernel's own number, fresh at every boot.
    boot: String,
    /// The namespaces this process is in, by number.
    network: u64,
    /// Whether ranks meet at a path of the file system, so that they can share memory whatever their networks.
    is_at_path: bool,
    processes: u64,
    /// Tells this process's host from that of any other although it may be the same; 0 if it should not.
    apart: u64,
}

impl Host {
    /// The host of this process. Where the kernel does not say which that is, no other process is on it.
    pub(super) fn here() -> Result<Host, BootstrapError> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim().to_owned();
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let apart = if boot.is_empty() { random_number()? | 1 } else { 0 };
        Ok(Host {
            name,
            boot,
            network: namespace("net"),
            is_at_path: false,
            processes: namespace("pid"),
            apart,
        })
    }

    /// The same, but on its own: what is there can only be reached through the network.
    pub(super) fn apart(self, number: u64) -> Host {
        Host { apart: number, ..self }
    }

    /// Whether processes on both can share memory.
    pub(super) fn is_same(&self, other: &Host) -> bool {
        let finds_sockets = self.network == other.network || self.is_at_path && other.is_at_path;
        finds_sockets && (&self.boot, self.apart) == (&other.boot, other.apart)
    }

    /// Whether both have the same network interfaces and abstract socket names.
    pub(super) fn shares_network_with(&self, other: &Host) -> bool {
        self.boot == other.boot && self.network == other.network
    }

    /// Whether both call a process by the same number.
    pub(super) fn knows_pids_of(&self, other: &Host) -> bool {
        self.boot == other.boot && self.processes == other.processes
    }

    /// The same host for ranks that share a socket path, whatever their networks.
    pub(super) fn at_a_path(self) -> Host {
        Host { is_at_path: true, ..self }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The number of a namespace of this process, from a link such as `net:[4026531840]`; 0 if it cannot be read.
fn namespace(kind: &str) -> u64 {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_recognizes_its_host() {
        let here = Host::here().unwrap();
        assert!(here.is_same(&Host::here().unwrap()));
        assert!(here.knows_pids_of(&here) && here.network != 0);
        let apart = here.clone().apart(7);
        assert!(!here.is_same(&apart) && apart.is_same(&apart) && here.knows_pids_of(&apart));
        assert!(!here.is_same(&Host { boot: "another".into(), ..here.clone() }));
        assert!(
            !here.is_same(&Host { network: 1, ..here.clone() }),
            "sockets of other networks are not found"
        );
        let (there, here_too) = (Host { network: 1, ..here.clone() }.at_a_path(), here.clone().at_a_path());
        assert!(here_too.is_same(&there) && !here_too.shares_network_with(&there) && !here.is_same(&there));
        assert!(here.is_same(&Host { processes: 1, ..here.clone() }), "memory is shared all the same");
    }
}
