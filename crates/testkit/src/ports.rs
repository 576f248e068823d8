//! Loopback ports for the rendezvous of tests.
//!
//! A port that was found by binding and closing a socket may be taken by the time the ranks listen. A reserved port stays bound to a socket
//! that does not listen: the kernel does not hand it out for port 0, and a listener can bind it, because both sockets set `SO_REUSEADDR`.
//! Rust's `TcpListener`, Python's servers and torch's store do.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port of 127.0.0.1, reserved until this is dropped.
pub struct Port {
    /// Its number.
    pub number: u16,
    _socket: OwnedFd,
}

/// Ports that are reserved until this process ends.
static KEPT: Mutex<Vec<Port>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1, reserved until this process ends.
///
/// # Panics
/// If no port is free.
pub fn reserved() -> u16 {
    let port = Port::reserve();
    let number = port.number;
    KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(port);
    number
}

/// The same as a range of one port, which is what a rendezvous address takes.
pub fn reserved_range() -> RangeInclusive<u16> {
    let port = reserved();
    port..=port
}

impl Port {
    /// # Panics
    /// If no port is free.
    pub fn reserve() -> Port {
        Port::bound().unwrap_or_else(|error| panic!("no port of 127.0.0.1 is free: {error}"))
    }

    fn bound() -> rustix::io::Result<Port> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Port { number: address.port(), _socket: socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_listener_can_bind_a_reserved_port() {
        let port = reserved();
        let others: Vec<u16> = (0..200).map(|_| reserved()).collect();
        assert!(!others.contains(&port));
        for _ in 0..2 {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            TcpStream::connect(("127.0.0.1", port)).unwrap();
            assert!(TcpListener::bind(("127.0.0.1", port)).is_err(), "it is in use");
            drop(listener);
        }
    }
}
