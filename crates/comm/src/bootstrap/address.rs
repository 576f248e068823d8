//! Sockets that ranks listen on and call each other at, and by which interface a rank is found.
//!
//! A rank on another host is found at the address from which it reached rank 0, because that one is known to work; if some
//! other rank cannot reach it there, at its other addresses. Whoever answers proves that it is the one that is meant, so a
//! wrong guess (two hosts with the same private address) costs a try and nothing else.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::deadline::Deadline;
use crate::knobs::Interfaces;

/// How long one address may take to answer before the next is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How many may have come and not been let in; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

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

/// An IPv4 address that was wrapped into an IPv6 one, unwrapped.
fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Listens for those on other hosts: at the loopback if that is all this process is reached by, else at every address.
pub(super) fn listen_tcp(
    reached_from: IpAddr,
    ports: Option<&RangeInclusive<u16>>,
) -> io::Result<TcpListener> {
    let reached_from = canonical(reached_from);
    let anywhere = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let places = if reached_from.is_loopback() { vec![reached_from] } else { anywhere.to_vec() };
    let any = 0..=0;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for port in ports.unwrap_or(&any).clone() {
        for &place in &places {
            match TcpListener::bind(SocketAddr::new(place, port)) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// Calls somebody on another host.
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

/// Calls somebody on this host.
pub(super) fn call_abstract(name: &[u8], deadline: Deadline) -> Result<OwnedFd, Errno> {
    call_unix(&SocketAddrUnix::new_abstract_name(name)?, deadline)
}

/// Calls somebody on this host, at a path.
pub(super) fn call_path(path: &Path, deadline: Deadline) -> Result<OwnedFd, Errno> {
    call_unix(&SocketAddrUnix::new(path)?, deadline)
}

/// Made here because the standard library's waits for a busy listener without a bound.
fn call_unix(address: &SocketAddrUnix, deadline: Deadline) -> Result<OwnedFd, Errno> {
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(deadline.left().ok_or(Errno::AGAIN)?))?;
    connect(&socket, address)?;
    Ok(socket)
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    /// The path goes when this does.
    Path(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// Room for all ranks to come at once: those for whom there is none try again a second later.
    pub(super) fn with_room(self) -> Listener {
        let _ = rustix::net::listen(&self, BACKLOG);
        self
    }

    /// At a path, in place of a socket that somebody who was killed left there.
    pub(super) fn at_path(path: &Path) -> Result<Listener, String> {
        let listener = UnixListener::bind(path).or_else(|error| {
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
            if error.kind() == io::ErrorKind::AddrInUse && !is_socket {
                return Err("there is something else than a socket; choose another name".to_owned());
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
        Ok(Listener::Path(listener, path.to_owned()))
    }

    /// The next that has come, if one has.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) | Listener::Path(listener, _) => {
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

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) | Listener::Path(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Path(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_not_left() {
        let one = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(addresses(one, 7, &Interfaces::default()), [SocketAddr::new(one, 7)]);
        let wrapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(addresses(wrapped, 7, &Interfaces::default()), [SocketAddr::new(one, 7)]);
        let listener = listen_tcp(one, None).unwrap();
        assert!(listener.local_addr().unwrap().ip().is_loopback());
    }

    #[test]
    fn a_taken_port_is_passed_over() {
        let one = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let taken = weftlink_testkit::ports::reserved();
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).unwrap();
        assert!(listen_tcp(one, Some(&(taken..=taken))).is_err());
        drop(held);
        assert_eq!(listen_tcp(one, Some(&(taken..=taken))).unwrap().local_addr().unwrap().port(), taken);
    }
}
