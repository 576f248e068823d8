//! One connection to a rank on another host: frames from one rank's memory to the other's, as far as the socket accepts
//! them. Nothing here waits or allocates.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use weftlink_bootstrap::{CloseOnFork, Seal, TAG_BYTES};

use super::Fault;
use super::ends::{Incoming, Outgoing, Turn};
use super::frame::{HEADER_BYTES, Header, Kind};
use crate::durations::LAST_BYTES;

/// Bytes that a connection reads ahead: several small frames at a time, and little of a large one that is copied twice.
const AHEAD_BYTES: usize = 4 << 10;
/// The buffer for them; encrypted, also for a piece before it is decrypted.
const BUFFER_BYTES: usize = 64 << 10;
/// How much may be queued besides a message. Releases are small and few.
const HEAD_BYTES_MAX: usize = 4 << 10;
/// Payload is encrypted in pieces of this size, so that one fits into the buffer.
const PIECE_BYTES: usize = 32 << 10;
/// The nonces of frames start far beyond those of the handshake's messages.
const FIRST_SEAL: u64 = 1 << 32;

/// A connection.
pub(super) struct Stream {
    socket: CloseOnFork,
    seal: Option<Seal>,
    pub(super) fault: Option<Fault>,
    /// When this rank noticed it.
    pub(super) since: Option<Instant>,
    sending: Sending,
    receiving: Receiving,
}

/// Frames being sent: any number without a payload, then at most one with. They leave together.
struct Sending {
    /// The headers; encrypted, everything.
    head: Vec<u8>,
    /// The payload that follows: a message of an outgoing end, and its bytes.
    payload: Option<(usize, u32)>,
    payload_bytes: usize,
    written: usize,
    /// The socket accepts no more. Reading finds out why, after everything that arrived before.
    is_refused: bool,
    number: u32,
    seals: u64,
}

/// The frame being received.
struct Receiving {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Its header, and how much of the payload has been received.
    header: Option<Header>,
    filled: usize,
    number: u32,
    seals: u64,
}

impl Stream {
    /// A connection from which some bytes were read already; frames are encrypted if there is a seal.
    pub(super) fn new(socket: CloseOnFork, seal: Option<Seal>, read: &[u8]) -> Stream {
        let mut buffer = vec![0; BUFFER_BYTES.max(read.len())];
        buffer[..read.len()].copy_from_slice(read);
        let sending = Sending {
            head: Vec::with_capacity(HEAD_BYTES_MAX + HEADER_BYTES + TAG_BYTES),
            payload: None,
            payload_bytes: 0,
            written: 0,
            is_refused: false,
            number: 0,
            seals: FIRST_SEAL,
        };
        let receiving = Receiving {
            buffer: buffer.into(),
            start: 0,
            end: read.len(),
            header: None,
            filled: 0,
            number: 0,
            seals: FIRST_SEAL,
        };
        Stream { socket, seal, fault: None, since: None, sending, receiving }
    }

    /// Makes room for encrypted messages of this length.
    pub(super) fn reserve(&mut self, message_bytes_max: usize) {
        if self.seal.is_some() {
            let pieces = 1 + message_bytes_max.div_ceil(PIECE_BYTES);
            let needed = HEAD_BYTES_MAX + HEADER_BYTES + message_bytes_max + pieces * TAG_BYTES;
            self.sending.head.reserve(needed.saturating_sub(self.sending.head.len()));
        }
    }

    /// Whether frames are being sent.
    pub(super) fn is_busy(&self) -> bool {
        let Sending { head, payload_bytes, written, .. } = &self.sending;
        *written < head.len() + payload_bytes && self.fault.is_none()
    }

    /// Whether another frame may be started. On a failed connection, any may.
    pub(super) fn takes_more(&self) -> bool {
        let Sending { head, payload_bytes, .. } = &self.sending;
        !self.is_busy() || (*payload_bytes == 0 && head.len() < HEAD_BYTES_MAX)
    }

    /// Starts a frame, behind those that have not left. `payload` is the message of an outgoing end, which keeps what the
    /// socket does not accept at once.
    pub(super) fn start(&mut self, mut header: Header, payload: &[u8], from: Option<(usize, u32)>) {
        let is_busy = self.is_busy();
        let Sending { head, payload: place, payload_bytes, written, number, seals, .. } = &mut self.sending;
        header.number = *number;
        *number = number.wrapping_add(1);
        if !is_busy {
            head.clear();
            *written = 0;
        }
        match &self.seal {
            None => {
                (*place, *payload_bytes) = (from, payload.len());
                header.checksum = header.checksum_of(payload);
                head.extend_from_slice(&header.pack());
            }
            Some(seal) => {
                (*place, *payload_bytes) = (None, 0);
                let packed = header.pack();
                for piece in std::iter::once(&packed[..]).chain(payload.chunks(PIECE_BYTES)) {
                    let at = head.len();
                    head.resize(at + piece.len() + TAG_BYTES, 0);
                    if seal.seal(*seals, piece, &mut head[at..]).is_none() {
                        self.fail(Fault::Corrupt("a frame could not be sealed".to_owned()));
                        return;
                    }
                    *seals += 1;
                }
            }
        }
    }

    /// Writes as much as the socket accepts. Returns whether it accepted anything.
    pub(super) fn flush(&mut self, outgoing: &[Outgoing]) -> bool {
        let message = |(end, sequence): (usize, u32)| outgoing[end].message(sequence);
        self.is_busy() && self.write(self.sending.payload.map_or(&[][..], message))
    }

    /// The same, with the payload still elsewhere.
    pub(super) fn write(&mut self, payload: &[u8]) -> bool {
        let mut progress = false;
        while self.is_busy() && !self.sending.is_refused {
            let Sending { head, payload_bytes, written, .. } = &self.sending;
            let (from_head, from_payload) = (*written.min(&head.len()), written.saturating_sub(head.len()));
            // The encrypted payload is in the head; the plain one must not leave.
            let rest = &payload[..*payload_bytes][from_payload..];
            let slices = [IoSlice::new(&head[from_head..]), IoSlice::new(rest)];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => {
                    progress = true;
                    self.sending.written += sent;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // A peer that has everything it needs may be gone before its releases arrive; what it sent is still to be read.
                Err(_) => self.sending.is_refused = true,
            }
        }
        progress
    }

    /// How much of the message that was started last has left, or need not be kept because it was encrypted.
    pub(super) fn left(&self) -> usize {
        let Sending { head, payload_bytes, written, .. } = &self.sending;
        if self.is_busy() && *payload_bytes > 0 { written.saturating_sub(head.len()) } else { usize::MAX }
    }

    fn fail(&mut self, fault: Fault) {
        (self.fault, self.since) = (Some(fault), Some(Instant::now()));
    }

    /// Whether it ended so recently that bytes on other connections may still be in flight.
    pub(super) fn has_just_ended(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() < LAST_BYTES)
    }

    /// Reads what has arrived, until it is enough. `find` returns the end for frames of a kind and FIFO. Returns whether anything
    /// arrived; the end of the connection counts, because frames that other connections to the same rank delivered before it may not
    /// have been looked at since.
    pub(super) fn receive(
        &mut self,
        incoming: &mut [Incoming],
        outgoing: &mut [Outgoing],
        find: impl Fn(Kind, u32) -> Option<usize>,
        is_enough: impl Fn(&[Incoming]) -> bool,
    ) -> bool {
        let mut progress = false;
        while self.fault.is_none() && !is_enough(incoming) {
            match self.step(incoming, outgoing, &find) {
                Ok(true) => progress = true,
                Ok(false) => break,
                Err(fault) => {
                    progress = true;
                    self.fail(fault);
                }
            }
        }
        progress
    }

    /// Reads one header, or some payload. Returns whether there was anything.
    fn step(
        &mut self,
        incoming: &mut [Incoming],
        outgoing: &mut [Outgoing],
        find: &impl Fn(Kind, u32) -> Option<usize>,
    ) -> Result<bool, Fault> {
        let Some(header) = self.receiving.header else { return self.take_header() };
        let Some(end) = find(header.kind, header.fifo) else {
            return Err(Fault::Corrupt(format!("a frame for FIFO {}, which there is not", header.fifo)));
        };
        let length = header.length as usize;
        match header.kind {
            Kind::Released => {
                if length > 0
                    || self.checksum_differs(&header, &[])
                    || !outgoing[end].release(header.sequence)
                {
                    return Err(wrong(&header));
                }
            }
            Kind::Message => {
                match incoming[end].turn(header.sequence, length) {
                    Turn::Next => {}
                    Turn::Later => return Ok(false),
                    Turn::Wrong => return Err(wrong(&header)),
                }
                if self.receiving.filled == 0 {
                    incoming[end].begin(header.signature, length);
                }
                if self.receiving.filled < length {
                    return self.take_payload(incoming[end].room(length));
                }
                if self.checksum_differs(&header, incoming[end].room(length)) {
                    return Err(wrong(&header));
                }
                incoming[end].arrive(header.signature, length);
            }
        }
        (self.receiving.header, self.receiving.filled) = (None, 0);
        Ok(true)
    }

    fn checksum_differs(&self, header: &Header, payload: &[u8]) -> bool {
        self.seal.is_none() && header.checksum != header.checksum_of(payload) && !mutant!("payload-unchecked")
    }

    fn take_header(&mut self) -> Result<bool, Fault> {
        let sealed = if self.seal.is_some() { HEADER_BYTES + TAG_BYTES } else { HEADER_BYTES };
        if !self.have(sealed)? {
            return Ok(false);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.take(sealed, &mut bytes)?;
        let header = Header::unpack(&bytes)
            .filter(|header| mutant!("frame-numbers-unchecked") || header.number == self.receiving.number);
        let expected = self.receiving.number;
        let strange = || Fault::Corrupt(format!("frame {expected} of a connection is not what it should be"));
        self.receiving.header = Some(header.ok_or_else(strange)?);
        self.receiving.number = expected.wrapping_add(1);
        Ok(true)
    }

    /// Reads what there is of the payload. Returns whether there was anything.
    fn take_payload(&mut self, room: &mut [u8]) -> Result<bool, Fault> {
        let rest = &mut room[self.receiving.filled..];
        if self.seal.is_some() {
            let piece = rest.len().min(PIECE_BYTES);
            if !self.have(piece + TAG_BYTES)? {
                return Ok(false);
            }
            self.take(piece + TAG_BYTES, &mut rest[..piece])?;
            self.receiving.filled += piece;
            return Ok(true);
        }
        let Receiving { buffer, start, end, filled, .. } = &mut self.receiving;
        let buffered = (*end - *start).min(rest.len());
        if buffered > 0 {
            rest[..buffered].copy_from_slice(&buffer[*start..][..buffered]);
            (*start, *filled) = (*start + buffered, *filled + buffered);
            return Ok(true);
        }
        // Straight to its destination, and a little of what follows into the buffer, which is empty.
        let wanted = rest.len();
        let mut slices = [IoSliceMut::new(rest), IoSliceMut::new(&mut buffer[..AHEAD_BYTES])];
        let Some(got) = read(&self.socket, &mut slices)? else { return Ok(false) };
        *filled += got.min(wanted);
        (*start, *end) = (0, got.saturating_sub(wanted));
        Ok(true)
    }

    /// Whether this many bytes have arrived.
    fn have(&mut self, bytes: usize) -> Result<bool, Fault> {
        loop {
            let Receiving { buffer, start, end, .. } = &mut self.receiving;
            if *end - *start >= bytes {
                return Ok(true);
            }
            buffer.copy_within(*start..*end, 0);
            (*start, *end) = (0, *end - *start);
            let ahead = if self.seal.is_some() { buffer.len() } else { AHEAD_BYTES.max(bytes) };
            let Some(got) = read(&self.socket, &mut [IoSliceMut::new(&mut buffer[*end..ahead])])? else {
                return Ok(false);
            };
            *end += got;
        }
    }

    /// Takes bytes out of the buffer, decrypted if need be.
    fn take(&mut self, bytes: usize, into: &mut [u8]) -> Result<(), Fault> {
        let Receiving { buffer, start, seals, .. } = &mut self.receiving;
        let taken = &buffer[*start..][..bytes];
        *start += bytes;
        match &self.seal {
            None => into.copy_from_slice(taken),
            Some(seal) => {
                let forged = || Fault::Corrupt("a frame that the job's secret does not open".to_owned());
                seal.open(*seals, taken, into).ok_or_else(forged)?;
                *seals += 1;
            }
        }
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn wrong(header: &Header) -> Fault {
    let Header { kind, fifo, sequence, length, .. } = header;
    let what = match kind {
        Kind::Message => "a message",
        Kind::Released => "a word",
    };
    Fault::Corrupt(format!(
        "{what} ({length} bytes, number {sequence} of FIFO {fifo}) was changed on its way"
    ))
}

/// Reads what has arrived; nothing if nothing has.
fn read(socket: &CloseOnFork, slices: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Fault> {
    loop {
        match rustix::net::recvmsg(socket, slices, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
            Ok(got) if got.bytes == 0 => return Err(Fault::Ended),
            Ok(got) => return Ok(Some(got.bytes)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(_) => return Err(Fault::Ended),
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)] // A message is known by its address.
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A frame with four bytes, the message of this number in its FIFO and the frame of that number on its connection.
    fn frame(sequence: u32, number: u32) -> Vec<u8> {
        let payload = [sequence as u8; 4];
        let header = Header {
            kind: Kind::Message,
            fifo: 0,
            sequence,
            signature: 7,
            length: payload.len() as u32,
            number,
            checksum: 0,
        };
        let checksum = header.checksum_of(&payload);
        [&Header { checksum, ..header }.pack()[..], &payload].concat()
    }

    /// The fault of a connection on which these bytes arrived, and the messages that it delivered.
    fn received(bytes: &[u8]) -> (Option<Fault>, Vec<Vec<u8>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        let mut stream = Stream::new(CloseOnFork::new(ours.into()), None, &[]);
        let mut incoming = [Incoming::new(0, 0, 4, 8)];
        let find = |kind: Kind, fifo: u32| (kind == Kind::Message && fifo == 0).then_some(0);
        stream.receive(&mut incoming, &mut [], find, |_| false);
        let mut messages = Vec::new();
        while let Some((_, place, length)) = incoming[0].message() {
            // SAFETY: a message that has arrived lies there.
            messages.push(unsafe { std::slice::from_raw_parts(place, length) }.to_vec());
            incoming[0].release();
        }
        (stream.fault, messages)
    }

    #[test]
    fn frames_that_are_changed_missing_or_doubled_are_faults() {
        let whole = [frame(1, 0), frame(2, 1)].concat();
        assert_eq!(received(&whole), (None, vec![vec![1; 4], vec![2; 4]]));
        for bit in 0..frame(1, 0).len() * 8 {
            let mut changed = frame(1, 0);
            changed[bit / 8] ^= 1 << (bit % 8);
            let (fault, messages) = received(&changed);
            assert!(matches!(fault, Some(Fault::Corrupt(_))), "bit {bit}: {fault:?}");
            assert!(messages.is_empty(), "bit {bit}: {messages:?}");
        }
        // The missing frame may be of another FIFO or a release, so the message itself is the next of its FIFO.
        let missing = [frame(1, 0), frame(2, 2)].concat();
        let doubled = [frame(1, 0), frame(2, 0)].concat();
        for strange in [missing, doubled] {
            let (fault, messages) = received(&strange);
            assert!(matches!(fault, Some(Fault::Corrupt(_))), "{fault:?}");
            assert_eq!(messages, [vec![1; 4]]);
        }
    }
}
