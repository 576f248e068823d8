//! Ports of the loopback at which tests let ranks meet.
//!
//! A port that is found free by binding a socket and closing it may be somebody else's when the ranks listen. A reserved one
//! stays bound to a socket that does not listen: the kernel gives it to nobody who asks for
//! any port, and a listener that names it may have it, because both allow their address to be reused. Rust's
//! `TcpListener` does, and so do Python's servers and torch's store.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port of 127.0.0.1 that nobody else gets while this lives.
pub struct Port {
    /// Its number.
    pub number: u16,
    _socket: OwnedFd,
}

/// Ports that are kept until this process ends.
static KEPT: Mutex<Vec<Port>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 that nobody else gets while this process lives.
///
/// # Panics
/// If there is none.
pub fn reserved() -> u16 {
    let port = Port::reserve();
    let number = port.number;
    KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(port);
    number
}

/// The same as a range of one port, which is how ranks are told where to meet.
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
    fn a_reserved_port_is_for_the_listener_that_names_it() {
        let port = reserved();
        let others: Vec<u16> = (0..200).map(|_| reserved()).collect();
        assert!(!others.contains(&port));
        for _ in 0..2 {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            TcpStream::connect(("127.0.0.1", port)).unwrap();
            assert!(TcpListener::bind(("127.0.0.1", port)).is_err(), "it is taken");
            drop(listener);
        }
    }
}
