//! Sockets that ranks listen on and call each other at, and by which interface a rank is found.
//!
//! A rank on another host is found at the address from which it reached rank 0, because that one is known to work; if some
//! other rank cannot reach it there, at its other addresses. The process that answers proves that it is the one that is meant, so a
//! wrong guess (two hosts with the same private address) costs a try and nothing else.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use weftlink_knobs::Interfaces;

use super::broken::Broken;
use super::deadline::Deadline;
use super::error::Refusal;
use super::peer::{self, canonical};

/// How long one address may take to answer before the next is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// The backlog of a listener; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// How often a port is looked for that is free on all addresses.
const ANY_PORT_TRIES: usize = 16;
/// How many are turned away before something else is looked at.
const TURNED_AWAY_MAX: usize = 64;

/// The addresses at which others may find this process, listening at `port`; the likeliest first.
pub(super) fn addresses(reached_from: IpAddr, port: u16, interfaces: &Interfaces) -> Vec<SocketAddr> {
    let first = SocketAddr::new(canonical(reached_from), port);
    if first.ip().is_loopback() {
        return vec![first];
    }
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    let is_first = |interface: &if_addrs::Interface| interface.ip() == first.ip();
    let first_is_fine =
        found.iter().filter(|one| is_first(one)).all(|interface| interfaces.allows(&interface.name));
    let others = found.iter().filter(|interface| {
        let link_local = matches!(interface.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        !interface.is_loopback() && !link_local && !is_first(interface) && interfaces.allows(&interface.name)
    });
    let first = first_is_fine.then_some(first);
    first.into_iter().chain(others.map(|interface| SocketAddr::new(interface.ip(), port))).collect()
}

/// The addresses of this process's own network.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    if_addrs::get_if_addrs().unwrap_or_default().iter().map(if_addrs::Interface::ip).collect()
}

/// Listens for those on other hosts, at one port: on the loopback if that is all this process is reached by, else at every address, or
/// at those of the interfaces that may be used and at `place`, if that is one of this host.
pub(super) fn listen_tcp(
    reached_from: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
    interfaces: &Interfaces,
    place: Option<IpAddr>,
) -> io::Result<Vec<TcpListener>> {
    let reached_from = canonical(reached_from);
    // The first choice that works is taken, with all its addresses.
    let choices: Vec<Vec<IpAddr>> = if reached_from.is_loopback() {
        vec![vec![reached_from]]
    } else if interfaces.are_all() {
        vec![vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)], vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)]]
    } else {
        vec![allowed(interfaces, place.map(canonical))?]
    };
    let any = [0; ANY_PORT_TRIES];
    let ports: Box<dyn Iterator<Item = u16>> = match ports {
        Some(ports) => Box::new(ports.clone()),
        None => Box::new(any.into_iter()),
    };
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for port in ports {
        for choice in &choices {
            match listen_at_all(choice, port) {
                Ok(listeners) => return Ok(listeners),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// The addresses of interfaces that may be used, and `place` if it is an address of this host.
fn allowed(interfaces: &Interfaces, place: Option<IpAddr>) -> io::Result<Vec<IpAddr>> {
    let found = if_addrs::get_if_addrs()?;
    let is_usable = |interface: &&if_addrs::Interface| {
        let link_local = matches!(interface.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        !link_local && (interfaces.allows(&interface.name) || Some(interface.ip()) == place)
    };
    let mut ips: Vec<IpAddr> = found.iter().filter(is_usable).map(if_addrs::Interface::ip).collect();
    ips.sort_unstable();
    ips.dedup();
    if ips.is_empty() {
        let mut names: Vec<&str> = found.iter().map(|interface| interface.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        return Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!(
                "no interface that WEFT_INTERFACE allows has an address on this host; its interfaces are {}",
                names.join(", ")
            ),
        ));
    }
    Ok(ips)
}

/// Listens at one port of several addresses; at one that is free on the first if the port is 0.
fn listen_at_all(ips: &[IpAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut port = port;
    for &ip in ips {
        let listener = TcpListener::bind(SocketAddr::new(ip, port))?;
        port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Connects to another host.
pub(super) fn call_tcp(address: SocketAddr, deadline: Deadline) -> io::Result<TcpStream> {
    let left = deadline.left().ok_or(io::ErrorKind::TimedOut)?;
    let stream = TcpStream::connect_timeout(&address, left.min(CONNECT_LIMIT))?;
    // Small messages wait for nothing.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The addresses that a name stands for.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port).to_socket_addrs()?.collect())
}

/// Listens at a name that only this network namespace knows, and that is gone with the last who has it open.
pub(super) fn listen_abstract(name: &[u8]) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)
}

/// Connects to a process of this host.
pub(super) fn call_abstract(name: &[u8], deadline: Deadline) -> Result<OwnedFd, Errno> {
    call_unix(&SocketAddrUnix::new_abstract_name(name)?, deadline)
}

/// Connects to a process of this host at a path.
pub(super) fn call_path(path: &Path, deadline: Deadline) -> Result<OwnedFd, Errno> {
    call_unix(&SocketAddrUnix::new(path)?, deadline)
}

/// Made here because the standard library's waits for a busy listener without a bound.
fn call_unix(address: &SocketAddrUnix, deadline: Deadline) -> Result<OwnedFd, Errno> {
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // An attempt at the deadline still finds out whether anybody listens.
    let left = deadline.left().unwrap_or(Duration::from_millis(1));
    set_socket_timeout(&socket, Timeout::Send, Some(left))?;
    connect(&socket, address)?;
    Ok(socket)
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    /// The path goes when this does, if it is still the socket that this made: its device and number.
    Path(UnixListener, PathBuf, Option<(u64, u64)>),
    Tcp(TcpListener),
}

impl Listener {
    /// Sets a backlog that all ranks fit in. A rank that does not fit retries a second later.
    pub(super) fn with_backlog(self) -> Listener {
        let _ = rustix::net::listen(&self, BACKLOG);
        self
    }

    /// Listens at a path. Replaces a socket that a killed process left there.
    pub(super) fn at_path(path: &Path) -> Result<Listener, String> {
        let listener = UnixListener::bind(path).or_else(|error| {
            let found = std::fs::symlink_metadata(path).ok();
            if error.kind() == io::ErrorKind::AddrInUse {
                if !found.as_ref().is_some_and(|found| found.file_type().is_socket()) {
                    return Err("there is something else than a socket; choose another name".to_owned());
                }
                let ours = geteuid().as_raw();
                if let Some(owner) = found.map(|found| found.uid()).filter(|owner| *owner != ours) {
                    return Err(format!(
                        "there is a socket of user {owner}, and this process runs as user {ours}; choose another name"
                    ));
                }
            }
            let soon = Deadline::new(CONNECT_LIMIT);
            if error.kind() == io::ErrorKind::AddrInUse
                && call_path(path, soon).err() == Some(Errno::CONNREFUSED)
            {
                let _ = std::fs::remove_file(path);
                return UnixListener::bind(path).map_err(|error| error.to_string());
            }
            Err(error.to_string())
        })?;
        Ok(Listener::Path(listener, path.to_owned(), identity(path)))
    }

    /// Accepts the next connection, if there is one. Closes those of other users.
    pub(super) fn accept(&self, secret_is_guessable: bool) -> io::Result<OwnedFd> {
        for _ in 0..TURNED_AWAY_MAX {
            let socket = self.accept_any()?;
            match peer::check(&socket, peer::Side::Accepted, secret_is_guessable) {
                Ok(()) => return Ok(socket),
                Err(Broken::Stranger(Refusal::User { theirs, .. })) => log_other_user(theirs),
                Err(_) => {}
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn accept_any(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) | Listener::Path(listener, ..) => {
                listener.set_nonblocking(true)?;
                Ok(listener.accept()?.0.into())
            }
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
        }
    }
}

/// Warns once that a process of another user tried to connect.
fn log_other_user(user: u32) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(target: "weft::meet", "a process of user {user} tried to connect to this rank and was turned away");
    });
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) | Listener::Path(listener, ..) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Path(_, path, made) = self
            && made.is_some()
            && identity(path) == *made
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The device and number of the socket at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(ip: IpAddr, ports: Option<&RangeInclusive<u16>>) -> io::Result<Vec<TcpListener>> {
        listen_tcp(ip, ports, &Interfaces::default(), None)
    }

    #[test]
    fn loopback_listeners_stay_on_loopback() {
        let one = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(addresses(one, 7, &Interfaces::default()), [SocketAddr::new(one, 7)]);
        let wrapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(addresses(wrapped, 7, &Interfaces::default()), [SocketAddr::new(one, 7)]);
        let listeners = listen(one, None).unwrap();
        assert!(listeners[0].local_addr().unwrap().ip().is_loopback());
    }

    #[test]
    fn used_ports_are_skipped() {
        let one = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let taken = weftlink_testkit::ports::reserved();
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).unwrap();
        assert!(listen(one, Some(&(taken..=taken))).is_err());
        drop(held);
        assert_eq!(listen(one, Some(&(taken..=taken))).unwrap()[0].local_addr().unwrap().port(), taken);
    }
}
