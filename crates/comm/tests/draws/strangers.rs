//! Connections that do not belong to the job: port scanners, other protocols, replayed traffic, a rank of another job, and many idle
//! connections.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, Token};

use crate::draw::{Draw, Random};
use crate::rank::parse_address;
use crate::sockets;

/// The greeting of the protocol.
pub(crate) const GREETING: &[u8; 12] = b"weftlink\x05\0\0\0";
/// The timeout of reads and writes.
const TIMEOUT: Duration = Duration::from_millis(100);
/// The number of idle connections.
const SILENT: usize = 20;

trait Connection: Read + Write + Send {
    /// Whether the peer has closed the connection. Discards received data, and makes the socket non-blocking.
    fn is_closed(&mut self) -> bool {
        self.set_nonblocking_mode();
        match self.read(&mut [0; 1000]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    fn set_nonblocking_mode(&self);
}

impl Connection for TcpStream {
    fn set_nonblocking_mode(&self) {
        let _ = self.set_nonblocking(true);
    }
}

impl Connection for UnixStream {
    fn set_nonblocking_mode(&self) {
        let _ = self.set_nonblocking(true);
    }
}

/// Connects to every listener of these processes. The returned value keeps connections open.
pub(crate) fn intrude(draw: &Draw, pids: &[u32], rendezvous: &str, recording: &[u8]) -> Box<dyn Send> {
    let mut random = Random(draw.way);
    let all = || listeners(pids).iter().filter_map(connect).collect::<Vec<_>>();
    match draw.way % 6 {
        0 => (0..3).for_each(|_| drop(all())),
        1 => {
            for mut one in all() {
                let length = 1 + random.below(70_000);
                let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                let _ = one.write_all(&bytes);
            }
        }
        2 if recording.len() > GREETING.len() => {
            for mut one in all() {
                let _ = (one.write_all(recording), one.read(&mut [0; 200]));
            }
        }
        3 => {
            let (token, limit) = (Token::new("that of another job").unwrap(), Duration::from_millis(300));
            let other = Rendezvous::new(parse_address(rendezvous), token, draw.size, limit);
            let came = Bootstrap::join(&other, 1);
            assert!(came.is_err(), "a rank of another job was admitted");
        }
        4 => {
            let mut silent: Vec<_> = all().into_iter().take(SILENT).collect();
            for byte in &GREETING[..6] {
                for one in &mut silent {
                    let _ = one.write_all(&[*byte]);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            return Box::new(silent);
        }
        _ => {
            // A valid greeting, then random bytes.
            for mut one in all() {
                let mut bytes = GREETING.to_vec();
                bytes.extend((0..48).map(|_| random.next() as u8));
                let _ = (one.write_all(&bytes), one.read(&mut [0; 200]));
            }
        }
    }
    Box::new(())
}

/// An address on which a process listens.
enum Listener {
    Tcp(u16),
    Unix(String),
}

/// Every listener of these processes.
fn listeners(pids: &[u32]) -> Vec<Listener> {
    let tcp = pids.iter().flat_map(|&pid| sockets::listening(pid)).map(Listener::Tcp);
    let unix = pids.iter().flat_map(|&pid| sockets::abstract_names(pid)).map(Listener::Unix);
    tcp.chain(unix).collect()
}

fn connect(address: &Listener) -> Option<Box<dyn Connection>> {
    match address {
        Listener::Tcp(port) => {
            let stream = TcpStream::connect(("127.0.0.1", *port)).ok()?;
            stream.set_read_timeout(Some(TIMEOUT)).ok()?;
            stream.set_write_timeout(Some(TIMEOUT)).ok()?;
            Some(Box::new(stream))
        }
        Listener::Unix(name) => {
            let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
            stream.set_read_timeout(Some(TIMEOUT)).ok()?;
            stream.set_write_timeout(Some(TIMEOUT)).ok()?;
            Some(Box::new(stream))
        }
    }
}

/// Connections of a flood to each listener: more than the descriptors of a process in a `Descriptors` draw.
const FLOOD: usize = 150;
/// The interval at which a flood reopens closed connections.
const FLOOD_PAUSE: Duration = Duration::from_millis(200);
/// The length of a handshake's first message.
const FIRST_MESSAGE: usize = GREETING.len() + 48;

/// Connections that are reopened when the peer closes them, until this is dropped.
struct Flood(Arc<AtomicBool>);

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Opens many connections to every listener of these processes and keeps them open. Each sends the recorded first message of a rank, or half
/// a greeting if there is no recording. Returns when all were opened once.
pub(crate) fn flood(pids: &[u32], recording: &[u8]) -> Box<dyn Send> {
    let greeting = match recording.len() {
        0 => GREETING[..6].to_vec(),
        length => recording[..length.min(FIRST_MESSAGE)].to_vec(),
    };
    let over = Arc::new(AtomicBool::new(false));
    let (flood, listeners, (came, all_came)) = (Flood(Arc::clone(&over)), listeners(pids), channel());
    std::thread::spawn(move || {
        let mut stayed: Vec<Option<Box<dyn Connection>>> = Vec::new();
        stayed.resize_with(listeners.len() * FLOOD, || None);
        while !over.load(Ordering::SeqCst) {
            for (number, one) in stayed.iter_mut().enumerate() {
                if one.as_mut().is_none_or(|one| one.is_closed()) {
                    *one = connect(&listeners[number % listeners.len()]);
                    let _ = one.as_mut().map(|one| one.write_all(&greeting));
                }
            }
            // The receiver waits for the first message only.
            let _ = came.send(());
            std::thread::sleep(FLOOD_PAUSE);
        }
    });
    let _ = all_came.recv();
    Box::new(flood)
}
