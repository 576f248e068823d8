//! Identifiers: what `ncclGetUniqueId` returns and the program gives to all ranks.
//!
//! An identifier holds the address of a [directory](crate::directory), which a thread of the process that made it serves, and a secret. The process
//! need not be that of a rank. With `NCCL_COMM_ID`, it holds the address of rank 0 instead, and no directory is needed.

// Writes an identifier to the program's memory.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use weftlink::bootstrap::{RendezvousAddress, Secret, Token};
use weftlink::knobs::Interfaces;

use crate::abi::{ID_BYTES, UniqueId};
use crate::directory::{self, Directory, SECRET_BYTES};
use crate::failure::Failure;
use crate::settings::{given, knobs};

const MAGIC: &[u8; 8] = b"weft-id\x01";
const SECRET_AT: usize = MAGIC.len();
const KIND_AT: usize = SECRET_AT + SECRET_BYTES;
const TEXT_AT: usize = KIND_AT + 2;

/// What an identifier says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    /// Ask there where rank 0 is.
    Directory { at: SocketAddr, secret: [u8; SECRET_BYTES] },
    /// Rank 0 listens there: `NCCL_COMM_ID`.
    Fixed { host: String, port: u16 },
}

impl Id {
    /// A new identifier, with its directory.
    pub(crate) fn new() -> Result<Id, Failure> {
        if let Some(place) = given("NCCL_COMM_ID") {
            return fixed(&place);
        }
        Id::of_directory()
    }

    /// The same, also with `NCCL_COMM_ID`: for ranks that meet again.
    pub(crate) fn of_directory() -> Result<Id, Failure> {
        let mut secret = [0; SECRET_BYTES];
        random(&mut secret)?;
        let settings = knobs().map_err(|error| Failure::argument(error.to_string()))?;
        let directory = Directory::start(own_address(&settings.interfaces), secret)?;
        Ok(Id::Directory { at: directory, secret })
    }

    pub(crate) fn to_bytes(&self) -> UniqueId {
        let mut bytes = [0; ID_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        let (kind, text) = match self {
            Id::Directory { at, secret } => {
                bytes[SECRET_AT..KIND_AT].copy_from_slice(secret);
                (1, at.to_string())
            }
            Id::Fixed { host, port } => (2, format!("{host}:{port}")),
        };
        let length = text.len().min(ID_BYTES - TEXT_AT);
        bytes[KIND_AT..TEXT_AT].copy_from_slice(&[kind, length as u8]);
        bytes[TEXT_AT..TEXT_AT + length].copy_from_slice(&text.as_bytes()[..length]);
        UniqueId { bytes }
    }

    pub(crate) fn from_bytes(id: &UniqueId) -> Result<Id, Failure> {
        let foreign = || {
            Failure::argument(
                "the identifier was not made by Weft: the rank that called ncclGetUniqueId loads another NCCL, or the identifier was changed",
            )
        };
        let bytes = &id.bytes;
        let length = usize::from(bytes[KIND_AT + 1]);
        let text = bytes.get(TEXT_AT..TEXT_AT + length).and_then(|text| std::str::from_utf8(text).ok());
        let text = text.filter(|_| bytes.starts_with(MAGIC)).ok_or_else(foreign)?;
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&bytes[SECRET_AT..KIND_AT]);
        match bytes[KIND_AT] {
            1 => text.parse().map(|at| Id::Directory { at, secret }).map_err(|_| foreign()),
            2 => fixed(text),
            _ => Err(foreign()),
        }
    }

    /// Where rank 0 listens, and the secret of the ranks. Rank 0 is told where to listen; the others wait until it is.
    pub(crate) fn place(&self, rank: usize, size: usize) -> Result<(RendezvousAddress, Token), Failure> {
        match self {
            Id::Directory { at, secret } => {
                let address = match rank {
                    0 => directory::register(*at, secret, size)?,
                    _ => directory::find(*at, secret)?,
                };
                let ports = address.port()..=address.port().saturating_add(directory::PORTS - 1);
                Ok((RendezvousAddress::Tcp { host: address.ip().to_string(), ports }, Token::new(secret)?))
            }
            Id::Fixed { host, port } => {
                let given =
                    Secret::of_this_process().map_err(|error| Failure::argument(error.to_string()))?;
                let token = match given {
                    Some(secret) => Token::new(secret.bytes())?,
                    None => Token::new(format!("NCCL_COMM_ID={host}:{port}"))?,
                };
                Ok((RendezvousAddress::Tcp { host: host.clone(), ports: *port..=*port }, token))
            }
        }
    }
}

fn fixed(place: &str) -> Result<Id, Failure> {
    let parts = place.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parts else {
        return Err(Failure::argument(format!("NCCL_COMM_ID={place}: it takes host:port")));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Id::Fixed { host, port })
}

pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Failure> {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&weftlink::bootstrap::random_number()?.to_le_bytes()[..chunk.len()]);
    }
    Ok(())
}

/// Where other ranks find this process: the first interface that is allowed and not a bridge of containers, or this host alone.
fn own_address(interfaces: &Interfaces) -> IpAddr {
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    let is_usual = |name: &str| {
        !interfaces.are_all()
            || !["docker", "virbr", "br-", "veth"].iter().any(|bridge| name.starts_with(bridge))
    };
    let is_loopback_wanted = !interfaces.are_all();
    let mut usable: Vec<IpAddr> = found
        .iter()
        .filter(|one| interfaces.allows(&one.name) && is_usual(&one.name))
        .filter(|one| is_loopback_wanted || !one.is_loopback())
        .map(if_addrs::Interface::ip)
        .filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
        .collect();
    usable.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    usable.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

nccl! {
    fn ncclGetUniqueId(id: *mut UniqueId) {
        if id.is_null() {
            return Err(Failure::argument("the place for the identifier is NULL"));
        }
        let made = Id::new()?.to_bytes();
        // SAFETY: the program's place for an identifier.
        unsafe { id.write_unaligned(made) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_read_as_they_were_written() {
        let at = "[2001:0db8:1111:2222:3333:4444:5555:6666]:65535".parse().unwrap();
        for id in [
            Id::Directory { at, secret: [7; SECRET_BYTES] },
            Id::Directory { at: "127.0.0.1:1".parse().unwrap(), secret: [0; SECRET_BYTES] },
            Id::Fixed { host: "node-17.cluster".to_owned(), port: 4242 },
        ] {
            assert_eq!(Id::from_bytes(&id.to_bytes()).unwrap(), id);
        }
        for bytes in [[0; ID_BYTES], [255; ID_BYTES], [b'w'; ID_BYTES]] {
            let refused = Id::from_bytes(&UniqueId { bytes }).unwrap_err();
            assert!(refused.text.starts_with("the identifier was not made by Weft"), "{}", refused.text);
        }
        assert!(fixed("nowhere").is_err() && fixed("host:x").is_err());
        assert_eq!(fixed("[::1]:5").unwrap(), Id::Fixed { host: "::1".to_owned(), port: 5 });
    }
}
