//! Which process and which user is at the other end of a connection of this host, as the kernel knows it.
//!
//! Ranks of one host run as one user. The kernel records the user at both ends of a Unix socket, so a rank compares it before it
//! sends or reads a byte, whether it connects or accepts. A job with a secret accepts a TCP connection from a process that proves to know the secret.
//! A job without one looks up the user of a TCP connection within this host in the kernel's table of sockets; of
//! connections from other hosts nothing is known, which is why such a job prints a warning.

#![allow(unsafe_code)] // A socket option that the kernel writes into a structure.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SocketAddrAny, getpeername, getsockname};
use rustix::process::{Pid, geteuid};

use super::broken::Broken;
use super::error::Refusal;

/// Which side of a connection this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Connected,
    Accepted,
}

/// The process and user at the other end of a Unix socket, of the moment when it connected or began to listen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// Unknown where the process has no number in this PID namespace: the kernel says 0 then, which rustix's type for this cannot hold, so its
    /// function must not be used.
    pub(super) pid: Option<Pid>,
    pub(super) user: u32,
}

impl Peer {
    /// Nothing if this is not a Unix socket.
    pub(super) fn of(socket: &impl AsFd) -> Option<Peer> {
        if socket_domain(socket) != Ok(AddressFamily::UNIX) {
            return None;
        }
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes into the structure, whose fields may have any value.
        let asked = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut bytes,
            )
        };
        (asked == 0).then(|| Peer { pid: Pid::from_raw(found.pid), user: found.uid })
    }
}

/// Checks that the other end runs as the same user, as far as the kernel knows. TCP connections are checked where the secret is guessable.
pub(super) fn check(socket: &impl AsFd, side: Side, secret_is_guessable: bool) -> Result<(), Broken> {
    let ours = geteuid().as_raw();
    let theirs = match socket_domain(socket) {
        Ok(AddressFamily::UNIX) => {
            let unknown = || Broken::Strange("the kernel does not say who is at the other end".to_owned());
            Some(Peer::of(socket).ok_or_else(unknown)?.user)
        }
        Ok(_) if secret_is_guessable => user_of_tcp(socket, side)?,
        _ => None,
    };
    match theirs {
        Some(theirs) if theirs != ours => Err(Broken::Stranger(Refusal::User { theirs, ours })),
        _ => Ok(()),
    }
}

/// The user at the other end of a TCP connection within this host; nothing if the other end is on another host.
fn user_of_tcp(socket: &impl AsFd, side: Side) -> Result<Option<u32>, Broken> {
    let address = |found: SocketAddrAny| {
        let found = SocketAddr::try_from(found)?;
        Ok::<_, Errno>(SocketAddr::new(canonical(found.ip()), found.port()))
    };
    let local = address(getsockname(socket)?)?;
    let remote = address(getpeername(socket)?.ok_or(Errno::NOTCONN)?)?;
    let is_here = remote.ip().is_loopback() || remote.ip() == local.ip();
    let Some(table) = table() else {
        let unknown =
            "the user at the other end is unknown, because /proc/net/tcp cannot be read. Set WEFT_SECRET";
        return if is_here { Err(Broken::Strange(unknown.to_owned())) } else { Ok(None) };
    };
    let lines = table.lines().filter_map(Line::read);
    let users: Vec<u32> = match side {
        Side::Accepted => {
            let is_it = |line: &Line| (line.local, line.remote, line.state) == (remote, local, ESTABLISHED);
            lines.filter(is_it).map(|line| line.user).collect()
        }
        // A connection that nobody has accepted yet belongs to nobody, but its listener does.
        Side::Connected if is_here => {
            let is_it = |line: &Line| {
                let ip = line.local.ip();
                line.state == LISTENS
                    && line.local.port() == remote.port()
                    && (ip == remote.ip() || ip.is_unspecified())
            };
            lines.filter(is_it).map(|line| line.user).collect()
        }
        Side::Connected => return Ok(None),
    };
    let ours = geteuid().as_raw();
    match users.iter().find(|user| **user != ours).or(users.first()) {
        Some(user) => Ok(Some(*user)),
        // It may have just gone, or the table changed while it was read.
        None if is_here => Err(Broken::Ended),
        None => Ok(None),
    }
}

const ESTABLISHED: u8 = 1;
const LISTENS: u8 = 10;

/// The kernel's TCP sockets of this network namespace, if it lists them.
fn table() -> Option<String> {
    let four = std::fs::read_to_string("/proc/net/tcp").ok()?;
    // Where there is no IPv6 there is no such file.
    Some(four + &std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default())
}

/// A socket in that table.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    user: u32,
}

impl Line {
    fn read(line: &str) -> Option<Line> {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        Some(Line { local, remote, state, user: fields.nth(3)?.parse().ok()? })
    }
}

/// An address as the table has it: words of 32 bits in this machine's order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            canonical(IpAddr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// An IPv4 address that was wrapped into an IPv6 one, unwrapped.
pub(super) fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn sockets_of_one_process_have_the_same_user() {
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(Peer::of(&one).unwrap().pid, Some(rustix::process::getpid()));
        for place in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(place) else { continue };
            let port = listener.local_addr().unwrap().port();
            let caller = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (called, _) = listener.accept().unwrap();
            assert!(Peer::of(&caller).is_none());
            let ours = Some(geteuid().as_raw());
            assert_eq!(user_of_tcp(&caller, Side::Connected), Ok(ours));
            assert_eq!(user_of_tcp(&called, Side::Accepted), Ok(ours));
            assert_eq!(check(&called, Side::Accepted, true), Ok(()));
        }
        assert_eq!(check(&other, Side::Accepted, false), Ok(()));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn table_lines_are_parsed() {
        let line = "   1: 0100007F:1F90 0100007F:A3C2 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1";
        let read = Line::read(line).unwrap();
        assert_eq!(
            (read.local, read.remote),
            ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:41922".parse().unwrap())
        );
        assert_eq!((read.state, read.user), (ESTABLISHED, 1000));
        let mapped = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(address(mapped), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(
            Line::read("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"),
            None
        );
    }
}
