//! Messages between ranks on different hosts: plans' FIFOs over TCP.
//!
//! A rank's [`TcpTransport`] has its ends of all FIFOs that leave the host (`ends.rs`) and several connections to each peer
//! (`stream.rs`); `port.rs` has the ports that the engine uses. The rank's own thread does all the work: it writes when a step
//! publishes, and reads while it waits. So there is no thread to wake and no lock, and where a step only copies, a message goes from the
//! sender's buffer to the receiver's with the two copies that sockets cost. Messages of a FIFO alternate between the connections;
//! each is complete before the receiver looks at its successor.
//!
//! Before a call returns, every message that it published is in the kernel's hands, because no thread sends between calls. Releases
//! are lazy: they leave with the next message to the same rank, when half of a FIFO is unreported, or as soon as the rank waits and
//! nothing arrives. So a sender that waits for credit gets it eventually, and a message and its answer are one system call each.
//!
//! Deliberately absent: reading or writing peers' memory, and counters. [`CAPABILITIES`] says so, and no plan that needs them between
//! hosts is chosen.

#![allow(unsafe_code)] // One ioctl that takes the address of its answer; messages at addresses of the caller's.

mod ends;
mod frame;
mod port;
mod stream;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use ends::{Expected, Incoming, Outgoing};
use frame::{Header, Kind};
pub(crate) use port::{ReceivePort, SendPort};
use stream::Stream;
use weftlink_bootstrap::Connection;

use super::{Capabilities, Fault};
use crate::durations::{LAST_FLUSH, LAST_FLUSH_POLL};

/// Messages, and nothing else.
pub(super) const CAPABILITIES: Capabilities = Capabilities { fifo: true, ..Capabilities::NONE };

/// One rank's ends of FIFOs that leave its host, and the connections.
pub(crate) struct TcpTransport {
    /// By rank.
    peers: Vec<Vec<Stream>>,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// This rank's end of each FIFO of the communicator that leaves the host.
    ends: Vec<Option<(Kind, u32)>>,
    /// The end whose message the rank waits for, if that has a place of its own. When it has arrived, reading stops: its successor
    /// has its own place.
    expected: Option<u32>,
    ready: Arc<OwnedFd>,
}

impl TcpTransport {
    /// For a group of `size` ranks.
    pub(crate) fn new(size: usize) -> std::io::Result<TcpTransport> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let peers = (0..size).map(|_| Vec::new()).collect();
        Ok(TcpTransport {
            peers,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            ends: Vec::new(),
            expected: None,
            ready: Arc::new(ready),
        })
    }

    /// Whether there are connections to a rank.
    pub(crate) fn is_connected(&self, rank: u32) -> bool {
        !self.peers[rank as usize].is_empty()
    }

    /// Takes connections to a rank into use, encrypted or not.
    pub(crate) fn connect(
        &mut self,
        rank: u32,
        connections: Vec<Connection>,
        encrypt: bool,
    ) -> std::io::Result<()> {
        for Connection { socket, seal, read } in connections {
            let events = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&*self.ready, &socket, epoll::EventData::new_u64(u64::from(rank)), events)?;
            self.peers[rank as usize].push(Stream::new(socket, encrypt.then_some(seal), &read));
        }
        Ok(())
    }

    /// Opens the end of a FIFO that sends to a rank.
    pub(crate) fn open_outgoing(
        &mut self,
        fifo: usize,
        to: u32,
        depth: usize,
        message_bytes_max: usize,
    ) -> u32 {
        self.peers[to as usize].iter_mut().for_each(|stream| stream.reserve(message_bytes_max));
        self.outgoing.push(Outgoing::new(fifo as u32, to, depth as u32, message_bytes_max));
        self.open(fifo, Kind::Released, self.outgoing.len() - 1)
    }

    /// Opens the end of a FIFO that receives from a rank.
    pub(crate) fn open_incoming(
        &mut self,
        fifo: usize,
        from: u32,
        depth: usize,
        message_bytes_max: usize,
    ) -> u32 {
        self.incoming.push(Incoming::new(fifo as u32, from, depth as u32, message_bytes_max));
        self.open(fifo, Kind::Message, self.incoming.len() - 1)
    }

    /// Records the end for frames of a kind and FIFO.
    fn open(&mut self, fifo: usize, kind: Kind, end: usize) -> u32 {
        self.ends.resize(self.ends.len().max(fifo + 1), None);
        self.ends[fifo] = Some((kind, end as u32));
        end as u32
    }

    /// Whether an end may publish a message.
    pub(crate) fn has_room(&self, end: u32) -> bool {
        self.outgoing[end as usize].has_room()
    }

    /// Where to write its next message.
    pub(crate) fn room(&mut self, end: u32) -> *mut u8 {
        self.outgoing[end as usize].room().as_mut_ptr()
    }

    /// Publishes the message that is there.
    pub(crate) fn put(&mut self, end: u32, signature: u64, bytes: usize) {
        self.outgoing[end as usize].put(signature, bytes);
    }

    /// Publishes a message that lies elsewhere, and sends from there what can be sent; only the rest is copied. There must be
    /// room.
    ///
    /// # Safety
    /// The payload is readable for `bytes`.
    pub(crate) unsafe fn put_from(&mut self, end: u32, signature: u64, payload: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        let payload = unsafe { std::slice::from_raw_parts(payload, bytes) };
        let number = end as usize;
        let is_first = self.outgoing[number].is_empty();
        self.outgoing[number].put(signature, bytes);
        if is_first {
            self.report(Some(self.outgoing[number].to));
        }
        let TcpTransport { peers, outgoing, .. } = self;
        let end = &mut outgoing[number];
        let sequence = end.last();
        let streams = &mut peers[end.to as usize];
        let turn = end.turn(sequence, streams.len());
        let stream = streams.get_mut(turn).filter(|stream| is_first && stream.takes_more());
        let left = stream.map_or(0, |stream| {
            stream.start(message_header(end, sequence, signature, bytes), payload, Some((number, sequence)));
            end.is_on_its_way();
            stream.write(payload);
            stream.left()
        });
        if left < bytes {
            end.keep(payload, left);
        }
    }

    /// The signature, place and length of the message that has arrived at an end.
    pub(crate) fn message(&self, end: u32) -> Option<(u64, *const u8, usize)> {
        self.incoming[end as usize].message()
    }

    /// If the next message of an end has this signature and length, it is received straight into a place. It must not have arrived yet.
    ///
    /// # Safety
    /// The place is writable for `length` bytes, and nothing else uses it until the message is released or forgotten.
    pub(crate) unsafe fn expect(&mut self, end: u32, signature: u64, length: usize, place: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.incoming[end as usize].expect(Expected { signature, length, place }) };
        self.expected = Some(end);
    }

    /// The wait for an expected message has ended. If the wait failed, the place is withdrawn; a message that was partly received
    /// there breaks its connection. If it has arrived, reading continues for whatever else the step needs.
    pub(crate) fn end_wait(&mut self, has_arrived: bool) {
        if let Some(end) = self.expected.take().filter(|_| !has_arrived) {
            self.incoming[end as usize].forget();
        }
    }

    /// Releases the message that has arrived at an end.
    pub(crate) fn release(&mut self, end: u32) {
        self.incoming[end as usize].release();
    }

    /// Whether everything that was published is in the kernel's hands, and all releases that peers may soon wait for.
    pub(crate) fn is_idle(&self) -> bool {
        self.outgoing.iter().all(Outgoing::is_empty)
            && !self.incoming.iter().any(Incoming::is_pressing)
            && !self.peers.iter().flatten().any(Stream::is_busy)
    }

    /// A rank to which something is still to be sent.
    pub(crate) fn awaited(&self) -> Option<u32> {
        let is_busy = |streams: &Vec<Stream>| streams.iter().any(Stream::is_busy);
        let busy = self.peers.iter().position(is_busy).map(|rank| rank as u32);
        busy.or_else(|| self.outgoing.iter().find(|end| end.next().is_some()).map(|end| end.to))
    }

    /// Whether any connection has failed.
    pub(crate) fn has_faults(&self) -> bool {
        self.peers.iter().flatten().any(|stream| stream.fault.is_some())
    }

    /// The fault of the connections to a rank, or to any, and that rank.
    pub(crate) fn fault(&self, rank: Option<u32>) -> Option<(u32, &Fault)> {
        let of = |rank: u32| {
            let streams = &self.peers[rank as usize];
            let faults = streams.iter().filter_map(|stream| stream.fault.as_ref());
            // While some connections still work, they may deliver messages that were sent before the others ended.
            let is_ending = streams.iter().any(|stream| stream.fault.is_none())
                && streams.iter().any(Stream::has_just_ended);
            let faults = faults.filter(|fault| **fault != Fault::Ended || !is_ending);
            gravest(faults).map(|fault| (rank, fault))
        };
        match rank {
            Some(rank) => of(rank),
            // A rank that is gone may have finished; only corruption concerns all ranks.
            None => (0..self.peers.len() as u32).filter_map(of).find(|(_, fault)| **fault != Fault::Ended),
        }
    }

    /// Sends what can be sent. Returns whether anything was.
    pub(crate) fn flush(&mut self) -> bool {
        self.report(None);
        let mut progress = false;
        let TcpTransport { peers, outgoing, .. } = self;
        for number in 0..outgoing.len() {
            while let Some((sequence, signature, payload)) = outgoing[number].next() {
                let end = &outgoing[number];
                let streams = &mut peers[end.to as usize];
                let turn = end.turn(sequence, streams.len());
                let Some(stream) = streams.get_mut(turn).filter(|stream| stream.takes_more()) else { break };
                let header = message_header(end, sequence, signature, payload.len());
                stream.start(header, payload, Some((number, sequence)));
                outgoing[number].is_on_its_way();
                progress |= stream.flush(outgoing);
            }
        }
        for stream in peers.iter_mut().flatten() {
            progress |= stream.flush(outgoing);
        }
        progress
    }

    /// Starts to report releases: to a rank that gets a message next, and to those that may soon wait for them or have a message
    /// queued.
    fn report(&mut self, to: Option<u32>) {
        let TcpTransport { peers, outgoing, incoming, .. } = self;
        for end in incoming {
            let Some(sequence) = end.unreported() else { continue };
            let message = outgoing.iter().find(|out| out.to == end.from && !out.is_empty());
            if to != Some(end.from) && message.is_none() && !end.is_pressing() {
                continue;
            }
            let streams = &mut peers[end.from as usize];
            // On the connection that the message takes, so that both leave together.
            let turn = message.map_or(0, |out| out.turn(out.last(), streams.len()));
            start_release(end, streams, turn, sequence);
        }
    }

    /// Reports all releases to all ranks: nothing arrives, so a peer may be waiting for one. Returns whether there were any.
    fn report_all(&mut self) -> bool {
        let TcpTransport { peers, outgoing, incoming, .. } = self;
        let mut progress = false;
        for end in incoming {
            let Some(sequence) = end.unreported() else { continue };
            let streams = &mut peers[end.from as usize];
            start_release(end, streams, 0, sequence);
            for stream in streams {
                progress |= stream.flush(outgoing);
            }
        }
        progress
    }

    /// Reads what has arrived from a rank, or from all, until the expected message is there, and sends what can be sent. Returns
    /// whether anything was done.
    pub(crate) fn progress(&mut self, from: Option<u32>) -> bool {
        let sent = self.flush();
        let mut has_arrived = false;
        let expected = self.expected;
        let is_enough =
            |incoming: &[Incoming]| expected.is_some_and(|end| incoming[end as usize].message().is_some());
        let TcpTransport { peers, outgoing, incoming, ends, .. } = self;
        let find = |kind: Kind, fifo: u32| match ends.get(fifo as usize).copied().flatten() {
            Some((expected, end)) if expected == kind => Some(end as usize),
            _ => None,
        };
        let ranks = from.map_or(0..peers.len(), |rank| rank as usize..rank as usize + 1);
        for streams in &mut peers[ranks] {
            // A frame that is out of turn may be next once the other connections have been read.
            loop {
                let mut some = false;
                for stream in streams.iter_mut() {
                    some |= stream.receive(incoming, outgoing, find, is_enough);
                }
                has_arrived |= some;
                if !some || streams.len() == 1 {
                    break;
                }
            }
        }
        let reported = !has_arrived && self.report_all();
        has_arrived || sent || reported
    }

    /// The epoll to sleep on: readable when something arrives or can be sent.
    pub(crate) fn watched(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.ready)
    }
}

/// The header of a message of an end.
fn message_header(end: &Outgoing, sequence: u32, signature: u64, bytes: usize) -> Header {
    let (kind, fifo, length) = (Kind::Message, end.fifo, bytes as u32);
    Header { kind, fifo, sequence, signature, length, number: 0, checksum: 0 }
}

/// Starts to send the releases of an end, on a connection that takes more, if there is one.
fn start_release(end: &mut Incoming, streams: &mut [Stream], first: usize, sequence: u32) {
    let turns = (0..streams.len()).map(|by| (first + by) % streams.len());
    let Some(turn) = turns.into_iter().find(|turn| streams[*turn].takes_more()) else { return };
    let (kind, fifo) = (Kind::Released, end.fifo);
    let header = Header { kind, fifo, sequence, signature: 0, length: 0, number: 0, checksum: 0 };
    streams[turn].start(header, &[], None);
    end.set_reported(sequence);
}

impl Drop for TcpTransport {
    /// Closing a connection with unread bytes resets it, and bytes in flight to the peer are lost. So everything must have
    /// arrived first.
    fn drop(&mut self) {
        let began = Instant::now();
        for stream in self.peers.iter().flatten().filter(|stream| stream.fault.is_none()) {
            while unsent(stream) > 0 && !has_ended(stream) && began.elapsed() < LAST_FLUSH {
                std::thread::sleep(LAST_FLUSH_POLL);
            }
        }
    }
}

/// Corruption says more than the end of a connection.
fn gravest<'a>(faults: impl Iterator<Item = &'a Fault>) -> Option<&'a Fault> {
    faults.max_by_key(|fault| (**fault != Fault::Ended) ^ mutant!("ended-outweighs-corrupt"))
}

/// Whether the peer has closed the connection, and will acknowledge nothing more.
fn has_ended(stream: &Stream) -> bool {
    let mut places = [PollFd::new(stream, PollFlags::empty())];
    let polled = poll(&mut places, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_err() || places[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// The bytes that the peer has not acknowledged.
fn unsent(stream: &Stream) -> i32 {
    let mut bytes = 0;
    // SAFETY: the request writes one int to the address it is given.
    let asked = unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_takes_precedence_over_a_closed_connection() {
        let wrong = Fault::Corrupt("a frame".to_owned());
        assert_eq!(gravest([&Fault::Ended, &wrong, &Fault::Ended].into_iter()), Some(&wrong));
        assert_eq!(gravest([&Fault::Ended].into_iter()), Some(&Fault::Ended));
    }
}
