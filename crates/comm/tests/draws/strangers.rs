//! Those who do not belong to a job and come to it: scanners, talkers of other protocols, one that repeats what it has heard,
//! one of another job, and many that say nothing and stay.

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
use crate::rank::place;
use crate::sockets;

/// How they begin who speak the protocol.
pub(crate) const GREETING: &[u8; 12] = b"weftlink\x05\0\0\0";
/// How long any of them waits for an answer.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many come to say nothing.
const SILENT: usize = 20;

trait Conversation: Read + Write + Send {
    /// Whether the other side has ended it. What it says is thrown away, and nothing waits from now on.
    fn has_ended(&mut self) -> bool {
        self.wait_for_nothing();
        match self.read(&mut [0; 1000]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    fn wait_for_nothing(&self);
}

impl Conversation for TcpStream {
    fn wait_for_nothing(&self) {
        let _ = self.set_nonblocking(true);
    }
}

impl Conversation for UnixStream {
    fn wait_for_nothing(&self) {
        let _ = self.set_nonblocking(true);
    }
}

/// Comes to every place at which these processes listen. What it returns stays connected.
pub(crate) fn come(draw: &Draw, pids: &[u32], meeting: &str, recording: &[u8]) -> Box<dyn Send> {
    let mut random = Random(draw.way);
    let all = || places(pids).iter().filter_map(connect).collect::<Vec<_>>();
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
            let other = Rendezvous::new(place(meeting), token, draw.size, limit);
            let came = Bootstrap::join(&other, 1);
            assert!(came.is_err(), "one of another job was let in");
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
            // Knows how to begin, and not what to say then.
            for mut one in all() {
                let mut bytes = GREETING.to_vec();
                bytes.extend((0..48).map(|_| random.next() as u8));
                let _ = (one.write_all(&bytes), one.read(&mut [0; 200]));
            }
        }
    }
    Box::new(())
}

/// A place at which a process listens.
enum Listens {
    Tcp(u16),
    Unix(String),
}

/// Every place at which these processes listen.
fn places(pids: &[u32]) -> Vec<Listens> {
    let tcp = pids.iter().flat_map(|&pid| sockets::listening(pid)).map(Listens::Tcp);
    let unix = pids.iter().flat_map(|&pid| sockets::abstract_names(pid)).map(Listens::Unix);
    tcp.chain(unix).collect()
}

fn connect(place: &Listens) -> Option<Box<dyn Conversation>> {
    match place {
        Listens::Tcp(port) => {
            let stream = TcpStream::connect(("127.0.0.1", *port)).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            stream.set_write_timeout(Some(PATIENCE)).ok()?;
            Some(Box::new(stream))
        }
        Listens::Unix(name) => {
            let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            stream.set_write_timeout(Some(PATIENCE)).ok()?;
            Some(Box::new(stream))
        }
    }
}

/// How many connections a flood has to each place. More than a process of few descriptors can have.
const FLOOD: usize = 150;
/// How often a flood comes again where its connections were ended.
const FLOOD_PAUSE: Duration = Duration::from_millis(200);
/// What of a recording is the first message of a handshake.
const FIRST_MESSAGE: usize = GREETING.len() + 48;

/// Connections that come again as soon as they are ended, for as long as this is there.
struct Flood(Arc<AtomicBool>);

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Comes many times to every place at which these processes listen, and stays: with the first message that a rank once sent, or
/// if there is none with half a greeting and silence. Returns when all have come once.
pub(crate) fn flood(pids: &[u32], recording: &[u8]) -> Box<dyn Send> {
    let said = match recording.len() {
        0 => GREETING[..6].to_vec(),
        length => recording[..length.min(FIRST_MESSAGE)].to_vec(),
    };
    let over = Arc::new(AtomicBool::new(false));
    let (flood, places, (came, all_came)) = (Flood(Arc::clone(&over)), places(pids), channel());
    std::thread::spawn(move || {
        let mut stayed: Vec<Option<Box<dyn Conversation>>> = Vec::new();
        stayed.resize_with(places.len() * FLOOD, || None);
        while !over.load(Ordering::SeqCst) {
            for (number, one) in stayed.iter_mut().enumerate() {
                if one.as_mut().is_none_or(|one| one.has_ended()) {
                    *one = connect(&places[number % places.len()]);
                    let _ = one.as_mut().map(|one| one.write_all(&said));
                }
            }
            // Nobody listens any more but for the first time.
            let _ = came.send(());
            std::thread::sleep(FLOOD_PAUSE);
        }
    });
    let _ = all_came.recv();
    Box::new(flood)
}
