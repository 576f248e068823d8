//! What is new for every start of a job: its secret, and ports that nobody else has.

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

/// A port that the kernel gives to nobody else while this lives, but that a listener may take: sockets that allow their
/// address to be reused, as listeners of Rust, Python and torch do, may share one with a socket that does not listen.
pub(super) struct Port {
    pub(super) number: u16,
    _socket: OwnedFd,
}

impl Port {
    /// A port that is free on all addresses of this host.
    pub(super) fn reserve() -> anyhow::Result<Port> {
        let six = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);
        // Where there is no IPv6, IPv4 is all.
        let socket = Self::bound(AddressFamily::INET6, |socket| bind(socket, &six)).or_else(|_| {
            let four = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
            Self::bound(AddressFamily::INET, |socket| bind(socket, &four))
        });
        let socket = socket.context("cannot find a free port")?;
        let address = getsockname(&socket).context("cannot tell which port is free")?;
        let address =
            std::net::SocketAddr::try_from(address).map_err(|_| anyhow!("a port without an address"))?;
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
