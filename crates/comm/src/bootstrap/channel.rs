//! A connection between rank 0 and another rank: messages, and with one of them a descriptor.
//!
//! On the wire, over a Unix stream socket: first, each way, the greeting, which is the same in all versions of Weft:
//! 8 bytes of magic, then the version of everything that follows as 4 bytes, little-endian. After it come frames: the
//! payload's length as 4 bytes, little-endian, then the payload, a [`Message`] in JSON. The descriptor of a
//! [`Message::Grant`] travels with its frame's first byte.
//!
//! Every call has a deadline. Nothing is retried: a channel on which a call failed has lost its place in the stream
//! and may only be told ([`Channel::tell`]) why it is going to be closed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};

use super::error::{Ask, BootstrapError, Refusal};
use crate::failure::is_on_purpose;
use crate::wait::Waiter;

/// The version of the frames and of the order in which they are sent.
pub(super) const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"weftlink";
const FRAME_BYTES_MAX: usize = 128 << 10;

/// What ranks say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// To rank 0: this is who I am.
    Hello { rank: usize, size: usize, pid: u32, token: String },
    /// From rank 0: you are in; wait for the rest.
    Accepted { pid: u32 },
    /// From rank 0: you are not.
    Refused(Refusal),
    /// From rank 0: all are here.
    Welcome { pids: Vec<u32> },
    /// To rank 0: I want this.
    Ask(Ask),
    /// From rank 0, with a descriptor: all want it, here it is.
    Grant,
    /// To rank 0: I have it.
    Mapped,
    /// From rank 0: all have it.
    Done,
    /// Either way: it is over, and why.
    Failed(BootstrapError),
}

impl Message {
    pub(super) fn unexpected(&self, rank: usize) -> BootstrapError {
        BootstrapError::Protocol { rank, what: format!("it said {self:?}") }
    }
}

/// A moment after which nobody waits, and how long it was away when the wait began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    start: Instant,
    limit: Duration,
    /// Ends it before its time when somebody ends the communicator on purpose.
    unless: Option<Waiter<'static>>,
}

/// How often a wait that may end before its time looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Deadline {
    /// Longer waits than a year are waits of a year, which every system call can represent.
    pub(super) fn new(limit: Duration) -> Deadline {
        let limit = limit.min(Duration::from_secs(31_536_000));
        Deadline { start: Instant::now(), limit, unless: None }
    }

    /// The same, but over as soon as somebody ends the communicator of this waiter on purpose.
    pub(super) fn unless_ended(self, unless: Option<Waiter<'static>>) -> Deadline {
        Deadline { unless, ..self }
    }

    /// How long is left, if anything is, or until it has to be asked again.
    pub(super) fn left(self) -> Option<Duration> {
        let left = self.limit.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero());
        match self.unless {
            None => left,
            Some(waiter) if is_on_purpose(&waiter) => None,
            Some(_) => left.map(|left| left.min(LOOK_EVERY)),
        }
    }

    pub(super) fn limit(self) -> Duration {
        self.limit
    }

    pub(super) fn later(self, by: Duration) -> Deadline {
        Deadline { limit: self.limit + by, ..self }
    }

    /// This one or `limit` from now, whichever comes first.
    pub(super) fn or_within(self, limit: Duration) -> Deadline {
        Deadline::new(self.left().unwrap_or_default().min(limit))
    }
}

/// Why a channel is of no more use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Broken {
    /// The other side is gone.
    Ended,
    /// The deadline has passed.
    Late,
    /// Something else.
    Strange(String),
}

impl Broken {
    /// The same as an error about the rank at the other end.
    pub(super) fn of(self, rank: usize, pid: u32, purpose: &str, deadline: Deadline) -> BootstrapError {
        let purpose = purpose.to_owned();
        match self {
            Broken::Ended => BootstrapError::Left { rank, pid, purpose },
            Broken::Late => BootstrapError::NoAnswer { rank, pid, purpose, limit: deadline.limit() },
            Broken::Strange(what) => BootstrapError::Protocol { rank, what },
        }
    }
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Broken {
        match error {
            Errno::PIPE | Errno::CONNRESET => Broken::Ended,
            other => Broken::Strange(format!("the connection failed: {other}")),
        }
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Broken {
        Broken::Strange(format!("the connection failed: {error}"))
    }
}

#[derive(Debug)]
pub(super) struct Channel(UnixStream);

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Channel {
        Channel(stream)
    }

    pub(super) fn greet(&self, deadline: Deadline) -> Result<(), Broken> {
        self.write(&[&MAGIC[..], &VERSION.to_le_bytes()].concat(), None, deadline)
    }

    /// The version that the other side greets with; `None` if it is not Weft.
    pub(super) fn greeted(&self, deadline: Deadline) -> Result<Option<u32>, Broken> {
        let mut greeting = [0; 12];
        self.read(&mut greeting, &mut None, deadline)?;
        let [magic @ .., a, b, c, d] = greeting;
        Ok((magic == MAGIC).then_some(u32::from_le_bytes([a, b, c, d])))
    }

    pub(super) fn send(
        &self,
        message: &Message,
        fd: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> Result<(), Broken> {
        self.write(&frame(message)?, fd, deadline)
    }

    /// Says it if it can be said without waiting; whoever does not hear it will see the channel end.
    pub(super) fn tell(&self, message: &Message) {
        let _ = frame(message)
            .map(|frame| rustix::net::send(&self.0, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT));
    }

    pub(super) fn receive(&self, deadline: Deadline) -> Result<(Message, Option<OwnedFd>), Broken> {
        let mut fd = None;
        let mut length = [0; 4];
        self.read(&mut length, &mut fd, deadline)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(Broken::Strange(format!("a frame of {length} bytes, more than {FRAME_BYTES_MAX}")));
        }
        let mut payload = vec![0; length];
        self.read(&mut payload, &mut fd, deadline)?;
        let message = serde_json::from_slice(&payload);
        Ok((message.map_err(|error| Broken::Strange(format!("an unreadable frame: {error}")))?, fd))
    }

    /// Whether the other side is gone, with nothing left to read.
    pub(super) fn has_ended(&self) -> bool {
        let got = rustix::net::recv(&self.0, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(got, Ok((_, 0)) | Err(Errno::CONNRESET))
    }

    fn write(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>, deadline: Deadline) -> Result<(), Broken> {
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        let mut written = 0;
        while written < bytes.len() {
            self.0.set_write_timeout(Some(deadline.left().ok_or(Broken::Late)?))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if written == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(Broken::Strange("no room for a descriptor".to_owned()));
            }
            let slice = [IoSlice::new(&bytes[written..])];
            match rustix::net::sendmsg(&self.0, &slice, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => written += sent,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], fd: &mut Option<OwnedFd>, deadline: Deadline) -> Result<(), Broken> {
        let mut filled = 0;
        while filled < bytes.len() {
            self.0.set_read_timeout(Some(deadline.left().ok_or(Broken::Late)?))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slice = [IoSliceMut::new(&mut bytes[filled..])];
            match rustix::net::recvmsg(&self.0, &mut slice, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) if got.bytes == 0 => return Err(Broken::Ended),
                Ok(got) => filled += got.bytes,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    *fd = fds.last().or(fd.take()); // Any other is closed by being dropped.
                }
            }
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn frame(message: &Message) -> Result<Vec<u8>, Broken> {
    let payload = serde_json::to_vec(message).map_err(|error| Broken::Strange(error.to_string()))?;
    if payload.len() > FRAME_BYTES_MAX {
        return Err(Broken::Strange(format!("a message of {} bytes is too long to send", payload.len())));
    }
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&payload);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    fn soon() -> Deadline {
        Deadline::new(Duration::from_secs(60))
    }

    #[test]
    fn greetings_and_messages_arrive_in_order() {
        let (one, other) = pair();
        one.greet(soon()).unwrap();
        one.send(&Message::Accepted { pid: 7 }, None, soon()).unwrap();
        one.send(&Message::Welcome { pids: vec![1, 2] }, None, soon()).unwrap();
        assert_eq!(other.greeted(soon()), Ok(Some(VERSION)));
        assert_eq!(other.receive(soon()).unwrap().0, Message::Accepted { pid: 7 });
        assert_eq!(other.receive(soon()).unwrap().0, Message::Welcome { pids: vec![1, 2] });
        assert!(!other.has_ended());
        drop(one);
        assert!(other.has_ended());
        assert_eq!(other.receive(soon()).unwrap_err(), Broken::Ended);
        assert_eq!(other.send(&Message::Done, None, soon()), Err(Broken::Ended));
    }

    #[test]
    fn a_descriptor_stays_with_its_message() {
        let (one, other) = pair();
        let (_, sent) = crate::memory::SharedMemory::create("test", 4096).unwrap();
        one.send(&Message::Accepted { pid: 7 }, None, soon()).unwrap();
        one.send(&Message::Grant, Some(sent.as_fd()), soon()).unwrap();
        one.send(&Message::Done, None, soon()).unwrap();
        assert!(other.receive(soon()).unwrap().1.is_none());
        let (message, fd) = other.receive(soon()).unwrap();
        assert_eq!(message, Message::Grant);
        crate::memory::SharedMemory::from_fd(fd.unwrap(), 4096).unwrap();
        assert!(other.receive(soon()).unwrap().1.is_none());
    }

    #[test]
    fn nonsense_is_refused_and_silence_has_an_end() {
        let (one, other) = pair();
        one.write(&u32::MAX.to_le_bytes(), None, soon()).unwrap();
        assert!(matches!(other.receive(soon()), Err(Broken::Strange(_))));
        one.write(b"\x02\0\0\0{}", None, soon()).unwrap();
        assert!(matches!(other.receive(soon()), Err(Broken::Strange(_))));
        one.write(b"GET / HTTP/1.1\r\n", None, soon()).unwrap();
        assert_eq!(other.greeted(soon()), Ok(None));
        let past = Deadline::new(Duration::ZERO);
        assert_eq!(one.receive(past).unwrap_err(), Broken::Late);
        assert_eq!(one.receive(Deadline::new(Duration::from_millis(5))).unwrap_err(), Broken::Late);
    }
}
