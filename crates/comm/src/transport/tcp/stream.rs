//! One connection to a rank on another host: frames out of one rank's memory into the other's, as far as the socket goes
//! along. Nothing here waits or allocates.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use weftlink_bootstrap::{CloseOnFork, Seal, TAG_BYTES};

use super::Fault;
use super::ends::{Incoming, Outgoing, Turn};
use super::frame::{HEADER_BYTES, Header, Kind};

/// What a connection reads ahead: small frames come several at a time, and of large ones little is copied twice.
const AHEAD_BYTES: usize = 4 << 10;
/// Where that goes; sealed, a piece that is opened from there.
const BUFFER_BYTES: usize = 64 << 10;
/// How much may wait to be sent beside a message. Words about what was read are small and few.
const HEAD_BYTES_MAX: usize = 4 << 10;
/// Payload is sealed in pieces of this size, so that one fits into the buffer.
const PIECE_BYTES: usize = 32 << 10;
/// The numbers under which frames are sealed start far behind those of the handshake's messages.
const FIRST_SEAL: u64 = 1 << 32;

/// How long what one connection carried may come later than the end of another between the same ranks: something that
/// forwards them need not keep them in step.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(200);

/// A connection.
pub(super) struct Stream {
    socket: CloseOnFork,
    seal: Option<Seal>,
    pub(super) fault: Option<Fault>,
    /// When it was noticed.
    pub(super) since: Option<Instant>,
    sending: Sending,
    receiving: Receiving,
}

/// Frames on their way out: any number without a payload, and then one with, if any. They leave together.
struct Sending {
    /// The headers; sealed, all of it.
    head: Vec<u8>,
    /// What follows them: a message of an outgoing end, and its bytes.
    payload: Option<(usize, u32)>,
    payload_bytes: usize,
    written: usize,
    /// The socket takes no more. Why that is, reading tells, after all that came before.
    is_refused: bool,
    number: u32,
    seals: u64,
}

/// The frame on its way in.
struct Receiving {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Its header, and how much of the payload is in its place.
    header: Option<Header>,
    filled: usize,
    number: u32,
    seals: u64,
}

impl Stream {
    /// A connection, on which some bytes have come already; frames are sealed if there is a seal.
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

    /// Makes room for sealed messages of so many bytes.
    pub(super) fn reserve(&mut self, message_bytes_max: usize) {
        if self.seal.is_some() {
            let pieces = 1 + message_bytes_max.div_ceil(PIECE_BYTES);
            let needed = HEAD_BYTES_MAX + HEADER_BYTES + message_bytes_max + pieces * TAG_BYTES;
            self.sending.head.reserve(needed.saturating_sub(self.sending.head.len()));
        }
    }

    /// Whether frames are on their way out.
    pub(super) fn is_busy(&self) -> bool {
        let Sending { head, payload_bytes, written, .. } = &self.sending;
        *written < head.len() + payload_bytes && self.fault.is_none()
    }

    /// Whether another frame may be started. On a connection that is of no use, any may.
    pub(super) fn takes_more(&self) -> bool {
        let Sending { head, payload_bytes, .. } = &self.sending;
        !self.is_busy() || (*payload_bytes == 0 && head.len() < HEAD_BYTES_MAX)
    }

    /// Starts a frame, behind those that have not left. `payload` is the message of an outgoing end, which keeps what the
    /// socket does not take at once.
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

    /// Writes as much as the socket takes. Whether it took anything.
    pub(super) fn flush(&mut self, outgoing: &[Outgoing]) -> bool {
        let message = |(end, sequence): (usize, u32)| outgoing[end].message(sequence);
        self.is_busy() && self.write(self.sending.payload.map_or(&[][..], message))
    }

    /// The same, where the payload is still to be found elsewhere.
    pub(super) fn write(&mut self, payload: &[u8]) -> bool {
        let mut progress = false;
        while self.is_busy() && !self.sending.is_refused {
            let Sending { head, payload_bytes, written, .. } = &self.sending;
            let (from_head, from_payload) = (*written.min(&head.len()), written.saturating_sub(head.len()));
            // What was sealed is in the head, and must not leave as it is.
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
                // Whoever has all it needs may be gone before it is told so; what it sent before is still to be read.
                Err(_) => self.sending.is_refused = true,
            }
        }
        progress
    }

    /// How much of the message that was started last has left, or need not be kept because it was sealed.
    pub(super) fn left(&self) -> usize {
        let Sending { head, payload_bytes, written, .. } = &self.sending;
        if self.is_busy() && *payload_bytes > 0 { written.saturating_sub(head.len()) } else { usize::MAX }
    }

    fn fail(&mut self, fault: Fault) {
        (self.fault, self.since) = (Some(fault), Some(Instant::now()));
    }

    /// Whether it has ended for so short a time that what others carry may still be on its way.
    pub(super) fn has_just_ended(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() < LAST_WORDS_LIMIT)
    }

    /// Takes in what has come, until it is enough. `find` gives the end of a FIFO that comes this way, and of one that goes. Whether
    /// anything came; the end of the connection counts, because what other connections to the same rank brought before it is
    /// there by then and may not have been looked at since.
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

    /// Does one thing: takes a header, or some payload. Whether there was one to do.
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

    /// Takes what there is of the payload. Whether there was anything.
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
        // Straight to its place, and a little of what follows it into the buffer, which is empty.
        let wanted = rest.len();
        let mut slices = [IoSliceMut::new(rest), IoSliceMut::new(&mut buffer[..AHEAD_BYTES])];
        let Some(got) = read(&self.socket, &mut slices)? else { return Ok(false) };
        *filled += got.min(wanted);
        (*start, *end) = (0, got.saturating_sub(wanted));
        Ok(true)
    }

    /// Whether so many bytes have come.
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

    /// Takes so many bytes out of the buffer, opened if they are sealed.
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

/// Reads what has come; nothing if nothing has.
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

    /// What is wrong with a connection on which this came, and the messages that it brought.
    fn received(bytes: &[u8]) -> (Option<Fault>, Vec<Vec<u8>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        let mut stream = Stream::new(CloseOnFork::new(ours.into()), None, &[]);
        let mut incoming = [Incoming::new(0, 0, 4, 8)];
        let find = |kind: Kind, fifo: u32| (kind == Kind::Message && fifo == 0).then_some(0);
        stream.receive(&mut incoming, &mut [], find, |_| false);
        let mut messages = Vec::new();
        while let Some((_, place, length)) = incoming[0].message() {
            // SAFETY: a message that has come lies there.
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
        // A frame of another FIFO or a word about what was read may be what is missing, so the message itself is the next.
        let missing = [frame(1, 0), frame(2, 2)].concat();
        let doubled = [frame(1, 0), frame(2, 0)].concat();
        for strange in [missing, doubled] {
            let (fault, messages) = received(&strange);
            assert!(matches!(fault, Some(Fault::Corrupt(_))), "{fault:?}");
            assert_eq!(messages, [vec![1; 4]]);
        }
    }
}
