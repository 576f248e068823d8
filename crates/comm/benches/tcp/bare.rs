//! The same bytes over plain sockets: two threads, blocking calls, no bound, no order, no credits.

use std::io::{IoSlice, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// The longest message of plans.
const PIECE_BYTES: usize = 64 << 10;

/// One side's connections.
pub(crate) struct Side {
    streams: Vec<TcpStream>,
    /// The data to send or receive, always in the same memory.
    buffer: Vec<u8>,
}

/// Two sides and the connections between them.
pub(crate) fn connected(streams: usize, bytes_max: usize) -> Result<[Side; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sides =
        [(); 2].map(|()| Side { streams: Vec::new(), buffer: vec![1; bytes_max.max(PIECE_BYTES)] });
    for _ in 0..streams {
        let there = TcpStream::connect(listener.local_addr()?)?;
        let here = listener.accept()?.0;
        for (side, stream) in sides.iter_mut().zip([here, there]) {
            stream.set_nodelay(true)?;
            side.streams.push(stream);
        }
    }
    Ok(sides)
}

impl Side {
    /// Round trips of eight bytes; nanoseconds of each on the side that starts.
    pub(crate) fn there_and_back(&mut self, is_first: bool, polls: bool, times: usize) -> Result<f64> {
        let Side { streams, buffer } = self;
        let stream = &mut streams[0];
        stream.set_nonblocking(polls)?;
        let began = Instant::now();
        for _ in 0..times {
            if is_first {
                stream.write_all(&buffer[..8])?;
            }
            receive(stream, &mut buffer[..8])?;
            if !is_first {
                stream.write_all(&buffer[..8])?;
            }
        }
        let ns = began.elapsed().as_nanos() as f64 / times as f64;
        stream.set_nonblocking(false)?;
        Ok(ns)
    }

    /// Transfers one way, each answered by a byte; nanoseconds of each on the side that sends.
    pub(crate) fn stream(&mut self, sends: bool, checks: bool, bytes: usize, times: usize) -> Result<f64> {
        let Side { streams, buffer } = self;
        let began = Instant::now();
        let mut pieces = 0;
        for _ in 0..times {
            for piece in buffer[..bytes].chunks_mut(PIECE_BYTES) {
                let turn = pieces % streams.len();
                let stream = &mut streams[turn];
                pieces += 1;
                if sends {
                    let sum = if checks { crc32c::crc32c(piece) } else { 0 };
                    write_both(stream, &sum.to_le_bytes(), piece)?;
                } else {
                    let mut sum = [0; 4];
                    stream.read_exact(&mut sum)?;
                    stream.read_exact(piece)?;
                    assert!(!checks || crc32c::crc32c(piece) == u32::from_le_bytes(sum));
                }
            }
        }
        if sends {
            streams[0].read_exact(&mut buffer[..1])?;
        } else {
            streams[0].write_all(&[1])?;
        }
        Ok(began.elapsed().as_nanos() as f64 / times as f64)
    }
}

/// Writes both with one system call, if the socket accepts them.
fn write_both(stream: &mut TcpStream, head: &[u8], piece: &[u8]) -> Result<()> {
    let sent = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(piece)])?;
    stream.write_all(&head[sent.min(head.len())..])?;
    stream.write_all(&piece[sent.saturating_sub(head.len())..])
}

fn receive(stream: &mut TcpStream, into: &mut [u8]) -> Result<()> {
    loop {
        match stream.read_exact(into) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            other => return other,
        }
    }
}
