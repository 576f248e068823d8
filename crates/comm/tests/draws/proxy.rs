//! A TCP proxy between the ranks of a draw: it knows the two ranks of each connection, and can close connections, stall, flip a bit, and
//! record traffic.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sockets;

/// The bytes of a handshake in each direction: a greeting of 12, to which the server adds a challenge of 16, then 48, to which the server
/// adds its name.
const CLIENT_HANDSHAKE: usize = 12 + 48;
const SERVER_HANDSHAKE: usize = 12 + 16 + 48 + 37;

/// The destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The rendezvous port of rank 0.
    Rendezvous(u16),
    /// A rank's own listener.
    Rank(usize),
}

/// A fault of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFault {
    /// Connections are closed, and new ones are refused.
    Close,
    /// Connections stay open, but no data passes.
    Stall,
}

#[derive(Default)]
struct State {
    pids: Vec<u32>,
    /// The rendezvous port.
    rendezvous: u16,
    /// The endpoints of each connection, and its sockets.
    connections: Vec<(Ends, TcpStream, TcpStream)>,
    faulty: Option<(Vec<Ends>, LinkFault)>,
    /// A rank, and random bits: flip a bit of the next data to or from it.
    corrupt: Option<(usize, u64)>,
    /// The connection on which a bit was flipped.
    corrupted: Option<Ends>,
    /// Whether that bit was part of the handshake.
    in_handshake: bool,
    /// The first bytes that a client sent.
    recording: Vec<u8>,
}

/// The ranks of a connection, the lower one first.
pub(crate) type Ends = (usize, usize);

pub(crate) struct Proxy {
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    pub(crate) rendezvous_port: u16,
    pub(crate) ports: Vec<u16>,
}

impl Proxy {
    /// Proxies rank 0's rendezvous port and every rank's listener.
    pub(crate) fn new(size: usize, rendezvous: u16) -> Proxy {
        let state = Arc::new(Mutex::new(State { rendezvous, ..State::default() }));
        let over = Arc::new(AtomicBool::new(false));
        let listen = |target: Target| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            listener.set_nonblocking(true).unwrap();
            let (state, over) = (Arc::clone(&state), Arc::clone(&over));
            std::thread::spawn(move || accept(&listener, target, &state, &over));
            port
        };
        let ports = (0..size).map(|rank| listen(Target::Rank(rank))).collect();
        let rendezvous_port = listen(Target::Rendezvous(rendezvous));
        Proxy { state, over, rendezvous_port, ports }
    }

    /// Sets the pids of the ranks.
    pub(crate) fn set_pids(&self, pids: Vec<u32>) {
        self.state.lock().unwrap().pids = pids;
    }

    /// Injects a fault into the links between these pairs of ranks.
    pub(crate) fn inject(&self, pairs: Vec<Ends>, fault: LinkFault) {
        let mut state = self.state.lock().unwrap();
        if fault == LinkFault::Close {
            for (ends, one, other) in &state.connections {
                if pairs.contains(ends) {
                    let _ = (one.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
                }
            }
        }
        state.faulty = Some((pairs, fault));
    }

    /// Flips one bit of the next data to or from a rank.
    pub(crate) fn corrupt(&self, rank: usize, random: u64) {
        self.state.lock().unwrap().corrupt = Some((rank, random));
    }

    /// The connection on which a bit was flipped.
    pub(crate) fn corrupted(&self) -> Option<Ends> {
        self.state.lock().unwrap().corrupted
    }

    /// Whether the flipped bit was part of the handshake, which the client retries.
    pub(crate) fn was_in_handshake(&self) -> bool {
        self.state.lock().unwrap().in_handshake
    }

    /// The first bytes that a client sent.
    pub(crate) fn recording(&self) -> Vec<u8> {
        self.state.lock().unwrap().recording.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for (_, one, other) in &self.state.lock().unwrap().connections {
            let _ = (one.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
        }
    }
}

fn accept(listener: &TcpListener, target: Target, state: &Arc<Mutex<State>>, over: &Arc<AtomicBool>) {
    while !over.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                let (state, over) = (Arc::clone(state), Arc::clone(over));
                std::thread::spawn(move || carry(stream, target, &state, &over));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Retries a lookup in the kernel's socket tables, which may miss entries while sockets open and close.
fn retry_lookup<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    (0..20).find_map(|_| {
        let found = look();
        if found.is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        found
    })
}

/// One connection, until it ends.
fn carry(came: TcpStream, target: Target, state: &Arc<Mutex<State>>, over: &Arc<AtomicBool>) -> Option<()> {
    came.set_nonblocking(false).ok()?;
    let pids = state.lock().unwrap().pids.clone();
    let (peer, here) = (came.peer_addr().ok()?.port(), came.local_addr().ok()?.port());
    let from = retry_lookup(|| sockets::owner(peer, here, &pids))?;
    let (to, port) = match target {
        Target::Rendezvous(port) => (0, port),
        Target::Rank(rank) => {
            let rendezvous = state.lock().unwrap().rendezvous;
            let is_own = |port: &u16| *port != rendezvous;
            (rank, retry_lookup(|| sockets::listening(pids[rank]).into_iter().find(is_own))?)
        }
    };
    let goes = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let ends = (from.min(to), from.max(to));
    let (_, _) = (came.set_nodelay(true), goes.set_nodelay(true));
    let pumps = {
        let mut state = state.lock().unwrap();
        if state
            .faulty
            .as_ref()
            .is_some_and(|(pairs, fault)| pairs.contains(&ends) && *fault == LinkFault::Close)
        {
            return None;
        }
        state.connections.push((ends, came.try_clone().ok()?, goes.try_clone().ok()?));
        [(came.try_clone().ok()?, goes.try_clone().ok()?, true), (goes, came, false)]
    };
    for (from, to, is_first) in pumps {
        let (state, over) = (Arc::clone(state), Arc::clone(over));
        std::thread::spawn(move || pump(from, to, ends, is_first, &state, &over));
    }
    Some(())
}

/// One direction of a connection.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    ends: Ends,
    is_first: bool,
    state: &Mutex<State>,
    over: &AtomicBool,
) {
    let mut buffer = vec![0; 64 << 10];
    let (mut is_new, mut carried) = (true, 0);
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let is_silent = || {
            let state = state.lock().unwrap();
            let silence =
                |(pairs, fault): &(Vec<Ends>, LinkFault)| pairs.contains(&ends) && *fault == LinkFault::Stall;
            state.faulty.as_ref().is_some_and(silence)
        };
        while is_silent() && !over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut known = state.lock().unwrap();
        if let Some((_, random)) = known.corrupt.filter(|(rank, _)| ends.0 == *rank || ends.1 == *rank) {
            let bit = random as usize % (got * 8);
            buffer[bit / 8] ^= 1 << (bit % 8);
            (known.corrupt, known.corrupted) = (None, Some(ends));
            let handshake = if is_first { CLIENT_HANDSHAKE } else { SERVER_HANDSHAKE };
            known.in_handshake = carried + bit / 8 < handshake;
        }
        if is_first && known.recording.len() < 200 && (is_new || !known.recording.is_empty()) {
            known.recording.extend_from_slice(&buffer[..got.min(200)]);
        }
        is_new = false;
        carried += got;
        drop(known);
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
