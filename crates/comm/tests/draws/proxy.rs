//! A TCP proxy between the ranks of a draw: it knows the two ranks of each connection, and can close connections, stall, flip a bit, and
//! record traffic.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sockets;

/// How many bytes a connection begins with until both have proved who they are: a greeting of 12 each way, to which whoever answers adds a
/// challenge of 16, then 48, to which
/// whoever answers adds its name.
const HANDSHAKE_OF_WHO_COMES: usize = 12 + 48;
const HANDSHAKE_OF_WHO_ANSWERS: usize = 12 + 16 + 48 + 37;

/// Where connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Where ranks meet.
    Meeting(u16),
    /// A rank's own listener.
    Rank(usize),
}

/// What is done to connections from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// They end, and no new one is made.
    End,
    /// They stay, but nothing comes through.
    Silence,
}

#[derive(Default)]
struct State {
    pids: Vec<u32>,
    /// The port at which the ranks meet.
    meeting: u16,
    /// Ranks at the ends, and the sockets.
    connections: Vec<(Ends, TcpStream, TcpStream)>,
    harmed: Option<(Vec<Ends>, Harm)>,
    /// Between whom the next byte that passes is changed, and which bit.
    corrupt: Option<(usize, u64)>,
    /// Between whom one was.
    corrupted: Option<Ends>,
    /// Whether that was before both had proved who they are.
    in_handshake: bool,
    /// What was said first on some connection.
    recording: Vec<u8>,
}

/// The ranks at the ends of a connection, the lower one first.
pub(crate) type Ends = (usize, usize);

pub(crate) struct Proxy {
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    pub(crate) meeting_port: u16,
    pub(crate) ports: Vec<u16>,
}

impl Proxy {
    /// Stands before rank 0's meeting and every rank's own listener.
    pub(crate) fn new(size: usize, meeting: u16) -> Proxy {
        let state = Arc::new(Mutex::new(State { meeting, ..State::default() }));
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
        let meeting_port = listen(Target::Meeting(meeting));
        Proxy { state, over, meeting_port, ports }
    }

    /// Who the ranks are.
    pub(crate) fn know(&self, pids: Vec<u32>) {
        self.state.lock().unwrap().pids = pids;
    }

    /// Does something to all connections between such pairs of ranks.
    pub(crate) fn harm(&self, pairs: Vec<Ends>, harm: Harm) {
        let mut state = self.state.lock().unwrap();
        if harm == Harm::End {
            for (ends, one, other) in &state.connections {
                if pairs.contains(ends) {
                    let _ = (one.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
                }
            }
        }
        state.harmed = Some((pairs, harm));
    }

    /// Changes one bit of what passes next to or from a rank.
    pub(crate) fn corrupt(&self, rank: usize, random: u64) {
        self.state.lock().unwrap().corrupt = Some((rank, random));
    }

    /// Between whom a bit was changed.
    pub(crate) fn corrupted(&self) -> Option<Ends> {
        self.state.lock().unwrap().corrupted
    }

    /// Whether it was changed before both had proved who they are: whoever comes then comes again.
    pub(crate) fn was_in_handshake(&self) -> bool {
        self.state.lock().unwrap().in_handshake
    }

    /// What one said first that came.
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

/// What the kernel tells of sockets may leave some out while others come and go.
fn surely<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
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
    let from = surely(|| sockets::owner(peer, here, &pids))?;
    let (to, port) = match target {
        Target::Meeting(port) => (0, port),
        Target::Rank(rank) => {
            let meeting = state.lock().unwrap().meeting;
            let is_own = |port: &u16| *port != meeting;
            (rank, surely(|| sockets::listening(pids[rank]).into_iter().find(is_own))?)
        }
    };
    let goes = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let ends = (from.min(to), from.max(to));
    let (_, _) = (came.set_nodelay(true), goes.set_nodelay(true));
    let pumps = {
        let mut state = state.lock().unwrap();
        if state.harmed.as_ref().is_some_and(|(pairs, harm)| pairs.contains(&ends) && *harm == Harm::End) {
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
            let silence = |(pairs, harm): &(Vec<Ends>, Harm)| pairs.contains(&ends) && *harm == Harm::Silence;
            state.harmed.as_ref().is_some_and(silence)
        };
        while is_silent() && !over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut known = state.lock().unwrap();
        if let Some((_, random)) = known.corrupt.filter(|(rank, _)| ends.0 == *rank || ends.1 == *rank) {
            let bit = random as usize % (got * 8);
            buffer[bit / 8] ^= 1 << (bit % 8);
            (known.corrupt, known.corrupted) = (None, Some(ends));
            let handshake = if is_first { HANDSHAKE_OF_WHO_COMES } else { HANDSHAKE_OF_WHO_ANSWERS };
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
