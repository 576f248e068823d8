//! A connection between two ranks of a job: sealed messages, and between ranks of one host descriptors with them.
//!
//! On the wire, over a stream socket: first, each way, the greeting, which is the same in all versions of Weft: 8 bytes of
//! magic, then the version of everything that follows as 4 bytes, little-endian. The accepting side adds a *challenge*:
//! 16 random bytes, fresh for every connection, which the handshake that follows is bound to. So a recorded handshake is
//! refused as soon as it is read. Then both prove that they know the job's
//! secret (`secret.rs`): a message each, of a fixed length; that of the accepting side has its name, too, because
//! an address may lead to another rank of the same job. A side that finds that the other does not know the secret says so by
//! a message of zeros. After that come frames: 4 bytes, little-endian, whose lowest 31 bits are the length of the payload and
//! whose highest says whether a descriptor travels with the frame; then the payload, sealed in pieces: a [`Message`].
//!
//! Reading and writing may be done by different threads; several may write. What is sent goes through a queue (`outgoing.rs`), so that
//! a peer that does not read blocks only callers that choose to wait for it. A channel on which reading or writing failed has lost its
//! place in the stream and is of no more use.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, shutdown};
use weftlink_shm::poll_hook;

use super::broken::Broken;
use super::deadline::Deadline;
use super::error::Refusal;
use super::fork::CloseOnFork;
use super::greeting::{CHALLENGE_BYTES, Challenge, GREETING_BYTES, check, greeting};
use super::message::{FRAME_BYTES_MAX, Message};
use super::outgoing::{Outgoing, write_some};
use super::peer;
use super::secret::{HANDSHAKE_BYTES, SEALED_BYTES_MAX, Seal, TAG_BYTES, Token};

/// The length of the name under which a rank is found by others of its host, and known to all.
pub(super) const NAME_BYTES: usize = 37;
const ANSWER_BYTES: usize = HANDSHAKE_BYTES + NAME_BYTES;
const HAS_DESCRIPTOR: u32 = 1 << 31;
const READ_BYTES: usize = 16 << 10;

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Channel {
    socket: CloseOnFork,
    seal: Seal,
    writing: Mutex<Writing>,
    reading: Mutex<Reading>,
    /// Written to when something waits for room in the socket: wakes the monitor thread that watches this channel, if there is one.
    wake: OnceLock<Arc<OwnedFd>>,
}

/// What is to be sent, and how many pieces have been sealed.
#[derive(Debug, Default)]
struct Writing {
    outgoing: Outgoing,
    sealed: u64,
}

/// What has been read and not yet taken.
#[derive(Debug, Default)]
struct Reading {
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    opened: u64,
}

/// A connection between two ranks that know each other.
#[derive(Debug)]
pub struct Connection {
    /// The socket, which a forked process closes.
    pub socket: CloseOnFork,
    /// The keys of the connection.
    pub seal: Seal,
    /// Bytes that have arrived already: the peer may have continued before this side took over the connection.
    pub read: Vec<u8>,
}

/// What comes out of a channel.
pub(super) type Received = (Message, Option<OwnedFd>);

impl Channel {
    /// Connects, to the process of this name if one is given.
    pub(super) fn dial(
        socket: OwnedFd,
        token: &Token,
        name: Option<&[u8]>,
        deadline: Deadline,
    ) -> Result<Channel, Broken> {
        peer::check(&socket, peer::Side::Connected, token.is_guessable())?;
        let strange = |error: snow::Error| Broken::Strange(format!("the handshake failed: {error}"));
        // A peer that refused the connection no longer reads, but its answer can still be read.
        let _ = write(&socket, &greeting(), deadline);
        hear_greeting(&socket, deadline)?;
        let mut challenge = Challenge([0; CHALLENGE_BYTES]);
        read(&socket, &mut challenge.0, deadline)?;
        let mut handshake = token.initiate(&challenge.context()).map_err(strange)?;
        let mut first = [0; HANDSHAKE_BYTES];
        handshake.write_message(&[], &mut first).map_err(strange)?;
        let _ = write(&socket, &first, deadline);
        let (mut answer, mut found) = ([0; ANSWER_BYTES], [0; NAME_BYTES]);
        read(&socket, &mut answer, deadline)?;
        if answer == [0; ANSWER_BYTES] || handshake.read_message(&answer, &mut found).is_err() {
            return Err(Broken::Stranger(Refusal::Token));
        }
        if name.is_some_and(|name| *name != found) {
            return Err(Broken::Another);
        }
        Channel::sealed_by(socket, handshake).map_err(strange)
    }

    /// Accepts a connection that was sent this challenge, as the process of this name.
    pub(super) fn answer(
        socket: OwnedFd,
        challenge: &Challenge,
        token: &Token,
        name: &[u8; NAME_BYTES],
        deadline: Deadline,
    ) -> Result<Channel, Broken> {
        hear_greeting(&socket, deadline)?;
        let strange = |error: snow::Error| Broken::Strange(format!("the handshake failed: {error}"));
        let mut handshake = token.respond(&challenge.context()).map_err(strange)?;
        let mut message = [0; HANDSHAKE_BYTES];
        read(&socket, &mut message, deadline)?;
        if handshake.read_message(&message, &mut []).is_err() {
            // It need not wonder why nobody answers. What it learns it knew: that its secret is not ours.
            if !mutant!("wrong-secret-not-told") {
                write(&socket, &[0; ANSWER_BYTES], deadline)?;
            }
            return Err(Broken::Stranger(Refusal::Token));
        }
        let mut answer = [0; ANSWER_BYTES];
        handshake.write_message(name, &mut answer).map_err(strange)?;
        write(&socket, &answer, deadline)?;
        Channel::sealed_by(socket, handshake).map_err(strange)
    }

    fn sealed_by(socket: OwnedFd, handshake: snow::HandshakeState) -> Result<Channel, snow::Error> {
        let seal = Seal::new(handshake)?;
        let (writing, reading) = (Mutex::default(), Mutex::default());
        Ok(Channel { socket: CloseOnFork::new(socket), seal, writing, reading, wake: OnceLock::new() })
    }

    /// Sends a message, and with it a descriptor if both sides are on one host, and waits until it is written. If that takes
    /// too long it stays queued, so the channel can still be used.
    pub(super) fn send(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<(), Broken> {
        let ticket = self.queue(message, descriptor)?;
        self.await_written(ticket, deadline)
    }

    /// Sends a message without waiting: the monitor thread writes later what does not fit into the socket.
    pub(super) fn post(&self, message: &Message) -> Result<(), Broken> {
        self.queue(message, None).map(|_| ())
    }

    /// The same, with a descriptor. Returns a number for [`Channel::await_written`].
    pub(super) fn queue(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<u64, Broken> {
        let mut writing = self.writing();
        let ticket = writing.outgoing.queue(message, descriptor).inspect_err(|_| self.hang_up(&writing))?;
        self.flush_locked(&mut writing)?;
        let is_waiting = writing.outgoing.is_waiting();
        drop(writing);
        if let Some(wake) = self.wake.get().filter(|_| is_waiting) {
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
        Ok(ticket)
    }

    /// Waits until a message that was queued has been written.
    pub(super) fn await_written(&self, ticket: u64, deadline: Deadline) -> Result<(), Broken> {
        loop {
            let mut writing = self.writing();
            if writing.outgoing.is_written(ticket) {
                return Ok(());
            }
            self.flush_locked(&mut writing)?;
            if writing.outgoing.is_written(ticket) {
                return Ok(());
            }
            drop(writing);
            wait_until(&self.socket, PollFlags::OUT, deadline)?;
        }
    }

    /// Waits until everything that was queued has been written.
    pub(super) fn drain(&self, deadline: Deadline) -> Result<(), Broken> {
        while self.wants_to_write() {
            self.flush()?;
            if self.wants_to_write() {
                wait_until(&self.socket, PollFlags::OUT, deadline)?;
            }
        }
        Ok(())
    }

    /// Writes what waits, as far as the socket has room.
    pub(super) fn flush(&self) -> Result<(), Broken> {
        self.flush_locked(&mut self.writing())
    }

    /// Whether something waits for room in the socket.
    pub(super) fn wants_to_write(&self) -> bool {
        self.writing().outgoing.is_waiting()
    }

    /// Sets the eventfd that wakes the thread which flushes this channel.
    pub(super) fn set_wake(&self, wake: &Arc<OwnedFd>) {
        let _ = self.wake.set(Arc::clone(wake));
    }

    /// Takes the next message.
    pub(super) fn receive(&self, deadline: Deadline) -> Result<Received, Broken> {
        loop {
            if let Some(received) = self.take(&mut self.reading())? {
                return Ok(received);
            }
            wait_until_readable(&self.socket, deadline)?;
            self.fill()?;
        }
    }

    /// Takes the next message without waiting; nothing if it has not arrived. What follows stays for the next reader.
    pub(super) fn receive_next(&self) -> Result<Option<Received>, Broken> {
        loop {
            if let Some(received) = self.take(&mut self.reading())? {
                return Ok(Some(received));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Takes every message that has arrived, without waiting. Reports the end of the connection once no message is left.
    pub(super) fn receive_ready(&self) -> Result<Vec<Received>, (Vec<Received>, Broken)> {
        let mut received = Vec::new();
        loop {
            let filled = self.fill();
            loop {
                let taken = self.take(&mut self.reading());
                match taken {
                    Ok(Some(message)) => received.push(message),
                    Ok(None) => break,
                    Err(broken) => return Err((received, broken)),
                }
            }
            match filled {
                Ok(true) => {}
                Ok(false) => return Ok(received),
                Err(broken) => return Err((received, broken)),
            }
        }
    }

    /// Whether the other side is gone, with nothing left to read.
    pub(super) fn has_ended(&self) -> bool {
        let got = rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(got, Ok((_, 0)) | Err(Errno::CONNRESET)) && !mutant!("ends-not-seen")
    }

    /// The socket, its seal and what was read ahead, for another protocol.
    pub(super) fn into_connection(self) -> Connection {
        let reading = self.reading.into_inner().unwrap_or_else(PoisonError::into_inner);
        Connection { socket: self.socket, seal: self.seal, read: reading.bytes }
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush_locked(&self, writing: &mut Writing) -> Result<(), Broken> {
        let Writing { outgoing, sealed } = &mut *writing;
        let frame = |plain: &[u8], with_descriptor: bool| self.frame(plain, with_descriptor, sealed);
        let flushed = outgoing.flush(&self.socket, frame);
        flushed.inspect_err(|_| self.hang_up(writing))
    }

    /// Both sides find that a channel that cannot be written to any more has ended.
    fn hang_up(&self, writing: &Writing) {
        if writing.outgoing.is_broken() {
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
    }

    /// Seals a message of at most [`FRAME_BYTES_MAX`] bytes.
    fn frame(&self, plain: &[u8], with_descriptor: bool, sealed: &mut u64) -> Result<Vec<u8>, Broken> {
        let flags = if with_descriptor { HAS_DESCRIPTOR } else { 0 };
        let mut frame = (plain.len() as u32 | flags).to_le_bytes().to_vec();
        for piece in plain.chunks(SEALED_BYTES_MAX) {
            let at = frame.len();
            frame.resize(at + piece.len() + TAG_BYTES, 0);
            self.seal
                .seal(*sealed, piece, &mut frame[at..])
                .ok_or_else(|| Broken::Strange("sealing failed".to_owned()))?;
            *sealed += 1;
        }
        Ok(frame)
    }

    /// Reads what is there; false if nothing is.
    fn fill(&self) -> Result<bool, Broken> {
        let mut reading = self.reading();
        let filled = reading.bytes.len();
        reading.bytes.resize(filled + READ_BYTES, 0);
        let Reading { bytes, descriptors, .. } = &mut *reading;
        let got = receive_into(&self.socket, &mut bytes[filled..], descriptors);
        reading.bytes.truncate(filled + got.as_ref().map_or(0, |got| *got));
        match got {
            Ok(0) => Err(Broken::Ended),
            Ok(_) => Ok(true),
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a message out of what has been read, if it is whole.
    fn take(&self, reading: &mut Reading) -> Result<Option<Received>, Broken> {
        let Some(head) = reading.bytes.first_chunk::<4>() else { return Ok(None) };
        let head = u32::from_le_bytes(*head);
        let length = (head & !HAS_DESCRIPTOR) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(Broken::Forged(format!("a frame of {length} bytes, more than {FRAME_BYTES_MAX}")));
        }
        let sealed_bytes = length + length.div_ceil(SEALED_BYTES_MAX) * TAG_BYTES;
        let Some(sealed) = reading.bytes.get(4..4 + sealed_bytes) else { return Ok(None) };
        let mut plain = Vec::with_capacity(length);
        let mut opened = reading.opened;
        for piece in sealed.chunks(SEALED_BYTES_MAX + TAG_BYTES) {
            let at = plain.len();
            plain.resize(at + piece.len() - TAG_BYTES, 0);
            let forged = || Broken::Forged("a frame that the job's secret does not open".to_owned());
            self.seal.open(opened, piece, &mut plain[at..]).ok_or_else(forged)?;
            opened += 1;
        }
        reading.opened = opened;
        reading.bytes.drain(..4 + sealed_bytes);
        let message = postcard::from_bytes(&plain)
            .map_err(|error| Broken::Forged(format!("an unreadable frame: {error}")))?;
        let descriptor = if head & HAS_DESCRIPTOR != 0 {
            let lost = || {
                Broken::Forged(
                    "a descriptor did not arrive: is the limit on open files (ulimit -n) too low?".to_owned(),
                )
            };
            Some(reading.descriptors.pop_front().ok_or_else(lost)?)
        } else {
            None
        };
        Ok(Some((message, descriptor)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads the greeting of the peer.
fn hear_greeting(socket: &OwnedFd, deadline: Deadline) -> Result<(), Broken> {
    let mut greeting = [0; GREETING_BYTES];
    read(socket, &mut greeting, deadline)?;
    check(greeting)
}

fn write(socket: &impl AsFd, bytes: &[u8], deadline: Deadline) -> Result<(), Broken> {
    let mut written = 0;
    while written < bytes.len() {
        match write_some(socket, &bytes[written..], None) {
            Ok(sent) => written += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_until(socket, PollFlags::OUT, deadline)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read(socket: &impl AsFd, bytes: &mut [u8], deadline: Deadline) -> Result<(), Broken> {
    let mut filled = 0;
    while filled < bytes.len() {
        wait_until_readable(socket, deadline)?;
        match receive_into(socket, &mut bytes[filled..], &mut VecDeque::new()) {
            Ok(0) => return Err(Broken::Ended),
            Ok(got) => filled += got,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait_until_readable(socket: &impl AsFd, deadline: Deadline) -> Result<(), Broken> {
    wait_until(socket, PollFlags::IN, deadline)
}

fn wait_until(socket: &impl AsFd, event: PollFlags, deadline: Deadline) -> Result<(), Broken> {
    // Waits to write are short, and some are made while a communicator is dropped.
    if event == PollFlags::IN {
        poll_hook::poll();
    }
    // A Duration of at most a year fits.
    let left = deadline.left().ok_or(Broken::Late)?;
    let timeout = Timespec::try_from(poll_hook::at_most(left)).ok();
    match poll(&mut [PollFd::new(socket, event)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn receive_into(
    socket: &impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(got.bytes)
}
