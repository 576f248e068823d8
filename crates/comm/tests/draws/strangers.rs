//! Those who do not belong to a job and come to it: scanners, talkers of other protocols, one that repeats what it has heard,
//! one of another job, and many that say nothing and stay.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Meeting, Token};

use crate::draw::{Draw, Random};
use crate::rank::place;
use crate::sockets;

/// How they begin who speak the protocol.
pub(crate) const GREETING: &[u8; 12] = b"weftlink\x05\0\0\0";
/// How long any of them waits for an answer.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many come to say nothing.
const SILENT: usize = 20;

trait Conversation: Read + Write + Send {}
impl<T: Read + Write + Send> Conversation for T {}

/// Comes to every place at which these processes listen. What it returns stays connected.
pub(crate) fn come(draw: &Draw, pids: &[u32], meeting: &str, recording: &[u8]) -> Box<dyn Send> {
    let mut random = Random(draw.way);
    let all = || {
        let tcp = pids.iter().flat_map(|&pid| sockets::listening(pid)).filter_map(|port| {
            let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            stream.set_write_timeout(Some(PATIENCE)).ok()?;
            Some(Box::new(stream) as Box<dyn Conversation>)
        });
        let unix = pids.iter().flat_map(|&pid| sockets::abstract_names(pid)).filter_map(|name| {
            let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            stream.set_write_timeout(Some(PATIENCE)).ok()?;
            Some(Box::new(stream) as Box<dyn Conversation>)
        });
        tcp.chain(unix).collect::<Vec<_>>()
    };
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
            let other = Meeting::new(place(meeting), token, draw.size, limit);
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
