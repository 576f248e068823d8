//! Where the ranks of an identifier learn the address of rank 0.
//!
//! `ncclGetUniqueId` may be called by any process, before anybody knows which process rank 0 is. So that process answers questions on a thread:
//! rank 0 says where it will listen and how many ranks there are, the others ask for it, and the thread ends when all have their answer.
//!
//! Everybody shows a hash of the secret of the identifier, and strangers get no answer. Who overhears a conversation learns an address, not the
//! secret, which ranks prove to know when they meet there.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use blake2::{Blake2s256, Digest};

use crate::failure::Failure;
use crate::settings::knobs;

/// The bytes of the secret of an identifier.
pub(crate) const SECRET_BYTES: usize = 32;
/// The ports from which rank 0 takes the first that is free.
pub(crate) const PORTS: u16 = 8;
/// How long a client may take to say what it wants.
const CLIENT: Duration = Duration::from_secs(5);
/// How often a rank tries to reach the directory again.
const AGAIN: Duration = Duration::from_millis(50);
/// A proof, the number of ranks or 0, a port, and an address.
const REQUEST_BYTES: usize = 32 + 4 + 2;
/// An address with its port, as text after its length.
const ANSWER_BYTES: usize = 64;
/// Ranks that wait for an answer at the same time.
const WAITING_MAX: usize = 4096;

/// The thread that answers.
pub(crate) struct Directory {
    listener: TcpListener,
    proof: [u8; 32],
    waiting: Vec<TcpStream>,
    /// Where rank 0 is, and how many others have not heard it.
    rank_0: Option<(SocketAddr, u32)>,
}

impl Directory {
    /// Starts to answer, and returns where.
    pub(crate) fn start(at: IpAddr, secret: [u8; SECRET_BYTES]) -> Result<SocketAddr, Failure> {
        let refused = |error: io::Error| Failure::system(format!("cannot listen at {at}: {error}"));
        let listener = TcpListener::bind((at, 0)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let mut directory = Directory { listener, proof: proof(&secret), waiting: Vec::new(), rank_0: None };
        let work = move || while directory.serve() {};
        let started = thread::Builder::new().name("weft id".to_owned()).spawn(work);
        started.map_err(|error| Failure::system(format!("cannot start a thread: {error}")))?;
        Ok(address)
    }

    /// Serves one client. Returns whether there may be more.
    fn serve(&mut self) -> bool {
        let client = match self.listener.accept() {
            Ok((client, _)) => client,
            Err(error) => return is_passing(&error),
        };
        let Ok((ranks, port)) = self.question(&client) else { return true };
        match ranks {
            0 if self.waiting.len() < WAITING_MAX => self.waiting.push(client),
            0 => {}
            ranks => {
                if let Ok(from) = client.peer_addr() {
                    self.rank_0 = Some((SocketAddr::new(from.ip(), port), ranks - 1));
                }
                let _ = (&client).write_all(&[1]);
            }
        }
        let Some((address, left)) = &mut self.rank_0 else { return true };
        for client in self.waiting.drain(..) {
            // One that is gone, and takes nothing, asks again.
            let took = (&client).write_all(&written(*address)).and_then(|()| (&client).read_exact(&mut [0]));
            if took.is_ok() {
                *left = left.saturating_sub(1);
            }
        }
        *left > 0
    }

    fn question(&self, client: &TcpStream) -> io::Result<(u32, u16)> {
        client.set_read_timeout(Some(CLIENT))?;
        client.set_write_timeout(Some(CLIENT))?;
        let mut request = [0; REQUEST_BYTES];
        { client }.read_exact(&mut request)?;
        let (proof, rest) = request.split_at(32);
        // Compared as a whole: how long it takes says nothing about it.
        let differs = proof.iter().zip(&self.proof).fold(0, |all, (one, other)| all | (one ^ other));
        if differs != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let ranks = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        Ok((ranks, u16::from_le_bytes([rest[4], rest[5]])))
    }
}

/// Whether a listener can be used again after an error.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if [ConnectionAborted, ConnectionReset, Interrupted].contains(&error.kind()) {
        return true;
    }
    // Too many open files, for a while.
    let is_full = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if is_full {
        thread::sleep(AGAIN);
    }
    is_full
}

/// Rank 0: says where it will listen, and how many ranks there are.
pub(crate) fn register(
    at: SocketAddr,
    secret: &[u8; SECRET_BYTES],
    ranks: usize,
) -> Result<SocketAddr, Failure> {
    let deadline = deadline()?;
    let stream = connect(at, deadline)?;
    let failed = |error: io::Error| lost(at, &error);
    let own = stream.local_addr().map_err(failed)?.ip();
    // The address by which the directory is reached: others can use it, too.
    let port = free_port(own).map_err(failed)?;
    let mut answer = [0; 1];
    ask(&stream, secret, ranks as u32, port, &mut answer, deadline).map_err(failed)?;
    Ok(SocketAddr::new(own, port))
}

/// Another rank: where rank 0 listens, once it has said so.
pub(crate) fn find(at: SocketAddr, secret: &[u8; SECRET_BYTES]) -> Result<SocketAddr, Failure> {
    let deadline = deadline()?;
    loop {
        let stream = connect(at, deadline)?;
        let mut answer = [0; ANSWER_BYTES];
        match ask(&stream, secret, 0, 0, &mut answer, deadline) {
            Ok(()) => {
                // The directory ends when all have taken their answer.
                let _ = (&stream).write_all(&[1]);
                let text = answer.get(1..1 + usize::from(answer[0])).unwrap_or_default();
                let address = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                return address.ok_or_else(|| Failure::system(format!("{at} gave an unreadable answer")));
            }
            Err(error) if Instant::now() >= deadline => return Err(lost(at, &error)),
            // It had too many clients, or ended.
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

fn deadline() -> Result<Instant, Failure> {
    let settings = knobs().map_err(|error| Failure::argument(error.to_string()))?;
    Ok(Instant::now() + settings.deadline)
}

fn connect(at: SocketAddr, deadline: Instant) -> Result<TcpStream, Failure> {
    loop {
        match TcpStream::connect_timeout(&at, CLIENT) {
            Ok(stream) => return Ok(stream),
            // The process that made the identifier has ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(lost(at, &error)),
            Err(error) if Instant::now() >= deadline => return Err(lost(at, &error)),
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

fn ask(
    mut stream: &TcpStream,
    secret: &[u8; SECRET_BYTES],
    ranks: u32,
    port: u16,
    answer: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    let mut request = proof(secret).to_vec();
    request.extend(ranks.to_le_bytes());
    request.extend(port.to_le_bytes());
    stream.write_all(&request)?;
    let left = deadline.saturating_duration_since(Instant::now()).max(AGAIN);
    stream.set_read_timeout(Some(left))?;
    stream.read_exact(answer)
}

/// A port after which others are likely to be free, too.
fn free_port(own: IpAddr) -> io::Result<u16> {
    loop {
        let port = TcpListener::bind((own, 0))?.local_addr()?.port();
        if port <= u16::MAX - PORTS {
            return Ok(port);
        }
    }
}

fn written(address: SocketAddr) -> [u8; ANSWER_BYTES] {
    let mut answer = [0; ANSWER_BYTES];
    let text = address.to_string();
    answer[0] = text.len() as u8;
    answer[1..1 + text.len()].copy_from_slice(text.as_bytes());
    answer
}

fn proof(secret: &[u8; SECRET_BYTES]) -> [u8; 32] {
    Blake2s256::new()
        .chain_update("weft: the directory of an identifier\0")
        .chain_update(secret)
        .finalize()
        .into()
}

fn lost(at: SocketAddr, error: &io::Error) -> Failure {
    Failure::system(format!(
        "cannot ask {at} where rank 0 is: {error}. The process that called ncclGetUniqueId must live until all ranks have joined, and be reached \
         from here (NCCL_SOCKET_IFNAME)"
    ))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn ranks_learn_where_rank_0_is() {
        let secret = [3; SECRET_BYTES];
        let at = Directory::start(IpAddr::V4(Ipv4Addr::LOCALHOST), secret).unwrap();
        let others: Vec<_> = (0..3).map(|_| thread::spawn(move || find(at, &secret).unwrap())).collect();
        let stranger = TcpStream::connect(at).unwrap();
        let refused = ask(&stranger, &[4; SECRET_BYTES], 0, 0, &mut [0; 1], Instant::now() + CLIENT);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let address = register(at, &secret, 4).unwrap();
        for other in others {
            assert_eq!(other.join().unwrap(), address);
        }
    }
}
