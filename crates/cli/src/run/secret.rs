//! The secret and the ports of a job, new for every start.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

use anyhow::{Context, anyhow};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// 256 random bits, as text.
pub(super) fn random() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reserves a port: while this lives, the kernel assigns it to no other socket, but a listener may bind it. Sockets with
/// SO_REUSEADDR, as listeners of Rust, Python and torch have it, may share a port with a socket that does not listen.
pub(super) struct Port {
    pub(super) number: u16,
    _socket: OwnedFd,
}

impl Port {
    /// A port that is free on all addresses of this host.
    pub(super) fn reserve() -> anyhow::Result<Port> {
        let six = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);
        // Without IPv6, use IPv4.
        let socket = Self::bound(AddressFamily::INET6, |socket| bind(socket, &six)).or_else(|_| {
            let four = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
            Self::bound(AddressFamily::INET, |socket| bind(socket, &four))
        });
        let socket = socket.context("cannot find a free port")?;
        let address = getsockname(&socket).context("cannot read the number of the free port")?;
        let address =
            std::net::SocketAddr::try_from(address).map_err(|_| anyhow!("the free port has no address"))?;
        Ok(Port { number: address.port(), _socket: socket })
    }

    fn bound(
        family: AddressFamily,
        bind: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<OwnedFd> {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket)?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_can_be_listened_on() {
        let ports: Vec<Port> = (0..8).map(|_| Port::reserve().unwrap()).collect();
        for port in &ports {
            let listener = std::net::TcpListener::bind(("127.0.0.1", port.number)).unwrap();
            std::net::TcpStream::connect(("127.0.0.1", port.number)).unwrap();
            drop(listener);
        }
        let mut numbers: Vec<u16> = ports.iter().map(|port| port.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 8);
    }

    #[test]
    fn secrets_are_new() {
        let (one, two) = (random().unwrap(), random().unwrap());
        assert_eq!(one.len(), 64);
        assert_ne!(one, two);
    }
}
