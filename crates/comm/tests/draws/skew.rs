//! Ranks of other versions of Weft: they begin as all versions do, with a number that is not ours.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::draw::Draw;

/// How long one waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The version that the other speaks.
pub(crate) fn version(draw: &Draw) -> u32 {
    9 + (draw.way / 8 % 1000) as u32
}

fn greeting(draw: &Draw) -> Vec<u8> {
    [&b"weftlink"[..], &version(draw).to_le_bytes()].concat()
}

/// A rank of another version comes to where the ranks meet, as soon as somebody is there; and stays as long as it is let.
pub(crate) fn come(draw: &Draw, place: &str) {
    if !draw.way.is_multiple_of(3) {
        return;
    }
    let (greeting, place) = (greeting(draw), place.to_owned());
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        let began = std::time::Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(name) = place.strip_prefix('@') {
                let address = SocketAddr::from_abstract_name(name).unwrap();
                if let Ok(mut stream) = UnixStream::connect_addr(&address) {
                    let _ = (stream.write_all(&greeting), stream.read_to_end(&mut answer));
                    break;
                }
            } else if let Ok(mut stream) = UnixStream::connect(&place) {
                let _ = (stream.write_all(&greeting), stream.read_to_end(&mut answer));
                break;
            } else if let Ok(mut stream) = TcpStream::connect(&place) {
                let _ = (stream.write_all(&greeting), stream.read_to_end(&mut answer));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Rank 0 of another version listens somewhere. Returns where; it is gone when somebody has come.
pub(crate) fn listen(draw: &Draw, place: &str) -> String {
    let greeting = greeting(draw);
    if place.contains(':') {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = (stream.write_all(&greeting), stream.read(&mut [0; 100]));
        });
        return address;
    }
    let name = format!("{}-of-another-version", place.trim_start_matches('@').replace('/', "-"));
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = (stream.write_all(&greeting), stream.read(&mut [0; 100]));
    });
    format!("@{name}")
}
