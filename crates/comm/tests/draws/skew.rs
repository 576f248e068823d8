//! Ranks of other versions of Weft: they send the greeting of all versions, with another number.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::draw::Draw;

/// How long to retry the connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The version of the other rank.
pub(crate) fn version(draw: &Draw) -> u32 {
    10 + (draw.way / 8 % 1000) as u32
}

fn greeting(draw: &Draw) -> Vec<u8> {
    [&b"weftlink"[..], &version(draw).to_le_bytes()].concat()
}

/// Joins as a rank of another version, as soon as rank 0 listens, and reads until the connection is closed.
pub(crate) fn join(draw: &Draw, address: &str) {
    if !draw.way.is_multiple_of(3) {
        return;
    }
    let (greeting, address) = (greeting(draw), address.to_owned());
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        let began = std::time::Instant::now();
        while began.elapsed() < TIMEOUT {
            if let Some(name) = address.strip_prefix('@') {
                let address = SocketAddr::from_abstract_name(name).unwrap();
                if let Ok(mut stream) = UnixStream::connect_addr(&address) {
                    let _ = (stream.write_all(&greeting), stream.read_to_end(&mut answer));
                    break;
                }
            } else if let Ok(mut stream) = UnixStream::connect(&address) {
                let _ = (stream.write_all(&greeting), stream.read_to_end(&mut answer));
                break;
            } else if let Ok(mut stream) = TcpStream::connect(&address) {
                let _ = (stream.write_all(&greeting), stream.read_to_end(&mut answer));
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Listens as rank 0 of another version, for one connection. Returns the address.
pub(crate) fn listen(draw: &Draw, address: &str) -> String {
    let greeting = greeting(draw);
    if address.contains(':') {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = (stream.write_all(&greeting), stream.read(&mut [0; 100]));
        });
        return address;
    }
    let name = format!("{}-of-another-version", address.trim_start_matches('@').replace('/', "-"));
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = (stream.write_all(&greeting), stream.read(&mut [0; 100]));
    });
    format!("@{name}")
}
