//! Puts and signals on host memory. The rank that is written to makes no call: its endpoint receives at any time, on a thread that waits in the
//! endpoint, or else on the endpoint's own.
//!
//! A signal is a message with a header. With bytes, they follow as a second message, which the owner of the window receives right where they
//! belong; then it counts the signal. So signals of a rank arrive in their order, each after its bytes. From each rank, one header is awaited at a
//! time.
//!
//! A receive that is under way writes to the window. So the end of a window, or of the communicator, waits for it: the program may free the memory next.

// Passes addresses of the program on.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weftlink::{Endpoint, Error};

use crate::abi::ResultCode;
use crate::failure::Failure;
use crate::lock::lock;
use crate::messages::{LOOK, Messages, tag};

/// Headers may come at any time.
const FOREVER: Duration = Duration::MAX;
const HEADER_BYTES: usize = 3 * size_of::<u64>();

/// The signals of a rank.
pub(crate) struct Signals {
    endpoint: Endpoint,
    state: Mutex<State>,
    /// Held while a header and its bytes are posted, so that they arrive in the same order.
    posting: Mutex<()>,
}

struct State {
    is_listening: bool,
    /// Puts to this rank are received no more.
    is_closed: bool,
    /// Signals of each rank that have arrived, and that were waited for.
    arrived: Vec<u64>,
    awaited: Vec<u64>,
    /// Why no more arrive from a rank.
    ended: Vec<Option<Failure>>,
    /// Address and length of this rank's windows, by handle.
    windows: HashMap<u64, (u64, u64)>,
    /// The window that a put of each rank is being received into.
    filled: Vec<Option<u64>>,
}

/// Bytes for a window: its handle at its owner, and where they belong in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) window: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Header {
    /// Of a signal without bytes.
    const NONE: Header = Header { window: 0, offset: 0, bytes: 0 };

    fn to_bytes(self) -> Vec<u8> {
        [self.window, self.offset, self.bytes].map(u64::to_le_bytes).concat()
    }

    fn from_bytes(bytes: &[u8]) -> Header {
        let mut words = bytes.chunks_exact(size_of::<u64>()).map(|word| {
            let mut bytes = [0; size_of::<u64>()];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let mut next = || words.next().unwrap_or_default();
        Header { window: next(), offset: next(), bytes: next() }
    }
}

impl Signals {
    pub(crate) fn new(endpoint: Endpoint) -> Arc<Signals> {
        let size = endpoint.size();
        let state = State {
            is_listening: false,
            is_closed: false,
            arrived: vec![0; size],
            awaited: vec![0; size],
            ended: vec![None; size],
            windows: HashMap::new(),
            filled: vec![None; size],
        };
        Arc::new(Signals { endpoint, state: Mutex::new(state), posting: Mutex::new(()) })
    }

    /// Lets others write to a window.
    pub(crate) fn add(self: &Arc<Signals>, number: u64, address: u64, bytes: u64) {
        lock(&self.state).windows.insert(number, (address, bytes));
        self.listen();
    }

    /// Puts to a window are dropped from now on. Waits for those that are being received.
    pub(crate) fn remove(&self, number: u64, timeout: Duration) -> Result<(), Failure> {
        lock(&self.state).windows.remove(&number);
        self.await_end(|window| window == number, timeout)
    }

    /// Puts to any window are received no more, and their ranks hear that this one is gone. Waits for those that are being received.
    pub(crate) fn close(&self, timeout: Duration) -> Result<(), Failure> {
        lock(&self.state).is_closed = true;
        self.await_end(|_| true, timeout)
    }

    fn await_end(&self, is_meant: impl Fn(u64) -> bool, timeout: Duration) -> Result<(), Failure> {
        let is_filled_by =
            || lock(&self.state).filled.iter().position(|window| window.is_some_and(&is_meant));
        let since = Instant::now();
        while !self.endpoint.wait_until(|| is_filled_by().is_none(), LOOK) {
            if let Some(peer) = is_filled_by().filter(|_| since.elapsed() >= timeout) {
                let seconds = timeout.as_secs();
                let text =
                    format!("timed out after {seconds} s waiting for a put of rank {peer} that is under way");
                return Err(Failure { code: ResultCode::Timeout, text });
            }
        }
        Ok(())
    }

    /// Signals a rank, after bytes for its window if there are some. Returns when they may be changed.
    pub(crate) fn send(
        self: &Arc<Signals>,
        peer: usize,
        put: Option<(Header, u64)>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        if peer == self.endpoint.rank() {
            return self.send_to_itself(peer, put);
        }
        // Otherwise ranks that signal each other often, and wait later, would wait for room.
        self.listen();
        let messages = Messages::new(1 + usize::from(put.is_some()));
        let header = put.map_or(Header::NONE, |(header, _)| header).to_bytes();
        let posting = lock(&self.posting);
        let sent = Arc::clone(&messages);
        let address = header.as_ptr();
        let done = move |ended| {
            drop(header);
            sent.done(ended);
        };
        // SAFETY: the header is dropped when it was sent.
        unsafe { self.endpoint.start_send(peer, tag::HEADERS, address, HEADER_BYTES, timeout, done) };
        if let Some((header, from)) = put {
            let (sent, bytes) = (Arc::clone(&messages), header.bytes as usize);
            let done = move |ended| sent.done(ended);
            // SAFETY: the program does not touch the memory until the function returns, which is after `done`.
            unsafe { self.endpoint.start_send(peer, tag::CONTENTS, from as *const u8, bytes, timeout, done) };
        }
        drop(posting);
        messages.wait(&self.endpoint)
    }

    fn send_to_itself(&self, own: usize, put: Option<(Header, u64)>) -> Result<(), Failure> {
        if let Some((header, from)) = put {
            let into = lock(&self.state).place(header).ok_or_else(|| gone(own, header))?;
            // SAFETY: the program's buffers of this length, which may overlap.
            unsafe { std::ptr::copy(from as *const u8, into as *mut u8, header.bytes as usize) };
        }
        lock(&self.state).arrived[own] += 1;
        Ok(())
    }

    /// Waits until each of these ranks has sent this many signals since the last wait, or there is a failure.
    pub(crate) fn wait(
        self: &Arc<Signals>,
        signals: &[(usize, u32)],
        failure: impl Fn() -> Option<Failure>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        self.listen();
        let since = Instant::now();
        for (peer, count) in signals.iter().copied() {
            let wanted = {
                let mut state = lock(&self.state);
                state.awaited[peer] += u64::from(count);
                state.awaited[peer]
            };
            let is_over = || {
                let state = lock(&self.state);
                state.arrived[peer] >= wanted || state.ended[peer].is_some()
            };
            while !self.endpoint.wait_until(is_over, LOOK) {
                if let Some(failure) = failure() {
                    return Err(failure);
                }
                if since.elapsed() >= timeout {
                    let (arrived, seconds) = (lock(&self.state).arrived[peer], timeout.as_secs());
                    let text = format!(
                        "timed out after {seconds} s waiting for signal {wanted} of rank {peer}, which has sent {arrived}"
                    );
                    return Err(Failure { code: ResultCode::Timeout, text });
                }
            }
            let state = lock(&self.state);
            match &state.ended[peer] {
                Some(failure) if state.arrived[peer] < wanted => return Err(failure.clone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Begins to receive, once.
    fn listen(self: &Arc<Signals>) {
        let was_listening = std::mem::replace(&mut lock(&self.state).is_listening, true);
        if !was_listening {
            let own = self.endpoint.rank();
            (0..self.endpoint.size()).filter(|peer| *peer != own).for_each(|peer| self.listen_to(peer));
        }
    }

    /// Receives the next header of a rank.
    fn listen_to(self: &Arc<Signals>, peer: usize) {
        let mut header = vec![0; HEADER_BYTES];
        let (signals, address) = (Arc::clone(self), header.as_mut_ptr());
        let done = move |ended: Result<usize, Error>| match ended {
            Ok(_) => signals.receive(peer, Header::from_bytes(&header)),
            Err(error) => signals.end(peer, error.into()),
        };
        // SAFETY: the closure keeps the memory until it is called.
        unsafe {
            self.endpoint.start_receive(Some(peer), tag::HEADERS, address, HEADER_BYTES, FOREVER, done)
        };
    }

    /// Receives the bytes after a header into the window.
    fn receive(self: Arc<Signals>, peer: usize, header: Header) {
        if header.bytes == 0 {
            return self.count(peer);
        }
        let bytes = header.bytes as usize;
        // The bytes for a window that is gone are dropped: their sender waits until they are received.
        let place = {
            let mut state = lock(&self.state);
            if state.is_closed {
                return;
            }
            let place = state.place(header);
            state.filled[peer] = place.map(|_| header.window);
            place
        };
        let mut dropped = if place.is_some() { Vec::new() } else { vec![0; bytes] };
        let into = place.map_or(dropped.as_mut_ptr(), |address| address as *mut u8);
        let endpoint = self.endpoint.clone();
        let done = move |ended: Result<usize, Error>| {
            let is_dropped = !dropped.is_empty();
            lock(&self.state).filled[peer] = None;
            match ended {
                Ok(_) if is_dropped => self.end(peer, gone(peer, header)),
                Ok(_) => self.count(peer),
                Err(error) => self.end(peer, error.into()),
            }
        };
        // SAFETY: memory of the window, whose end waits for `done`, or memory that the closure keeps.
        unsafe { endpoint.start_receive(Some(peer), tag::CONTENTS, into, bytes, FOREVER, done) };
    }

    fn count(self: &Arc<Signals>, peer: usize) {
        lock(&self.state).arrived[peer] += 1;
        self.listen_to(peer);
    }

    fn end(&self, peer: usize, failure: Failure) {
        lock(&self.state).ended[peer].get_or_insert(failure);
    }
}

impl State {
    /// Where the bytes of a header belong, if the window has them.
    fn place(&self, header: Header) -> Option<u64> {
        let (address, length) = *self.windows.get(&header.window)?;
        let end = header.offset.checked_add(header.bytes)?;
        (end <= length).then_some(address + header.offset)
    }
}

fn gone(peer: usize, header: Header) -> Failure {
    let Header { offset, bytes, .. } = header;
    Failure::usage(format!(
        "rank {peer} put {bytes} bytes at offset {offset} of a window that this rank has deregistered"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_arrive_as_they_were_sent() {
        let header = Header { window: 3, offset: u64::MAX, bytes: 1 << 40 };
        assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        assert_eq!(header.to_bytes().len(), HEADER_BYTES);
    }
}
