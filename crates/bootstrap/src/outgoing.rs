//! What a connection has to send: messages in the order in which they were queued, written as far as the socket has room.
//!
//! Nothing here blocks. The caller that queues a message writes what fits at once; the monitor thread writes the rest when the socket
//! has room again, or by a sender that waits for its message. The lock is never held while a caller waits.
//!
//! A message is sealed at the moment its first byte is written, not before. The seal has a number, so from then on the frame
//! is written whole and before any other, or the connection ends. A message that is not sealed yet may still be replaced:
//! of reports about waits only the latest of each rank matters. So a peer that does not read for a long time costs little memory,
//! and finds a stream without gaps when it reads again.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::broken::Broken;
use super::message::FRAME_BYTES_MAX;
use super::message::{Event, Message};

/// How many bytes may wait for a peer that does not read. Beyond that the connection ends.
const QUEUE_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;

/// Messages on their way into a socket.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Sealed, and written in part.
    current: Option<Frame>,
    /// Not sealed yet.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// How many messages were queued, and the last of them that was written whole.
    queued: u64,
    written: u64,
    /// Why nothing can be sent any more.
    broken: Option<Broken>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    plain: Vec<u8>,
    descriptor: Option<OwnedFd>,
    topic: Option<Topic>,
}

/// A sealed message.
#[derive(Debug)]
struct Frame {
    ticket: u64,
    bytes: Vec<u8>,
    written: usize,
    descriptor: Option<OwnedFd>,
}

/// What a message reports that only informs: a later report replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topic {
    /// The ranks that a rank waits for.
    Waits(u32),
    /// The ranks that are missing in a sweep.
    Missing,
}

impl Topic {
    fn of(message: &Message) -> Option<Topic> {
        match message {
            Message::Event(Event::Waits { rank, .. }) => Some(Topic::Waits(*rank)),
            Message::Waiting { .. } => Some(Topic::Missing),
            _ => None,
        }
    }
}

impl Outgoing {
    /// Queues a message. Returns the number by which [`Outgoing::is_written`] knows it.
    pub(super) fn queue(
        &mut self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<u64, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let plain = postcard::to_stdvec(message)
            .map_err(|error| Broken::Strange(format!("a message that cannot be written: {error}")))?;
        if plain.len() > FRAME_BYTES_MAX {
            return Err(Broken::Strange(format!("a message of {} bytes", plain.len())));
        }
        let topic = Topic::of(message);
        let earlier = self.waiting.iter_mut().find(|waiting| topic.is_some() && waiting.topic == topic);
        if let Some(earlier) = earlier {
            self.waiting_bytes = self.waiting_bytes + plain.len() - earlier.plain.len();
            earlier.plain = plain;
            return Ok(earlier.ticket);
        }
        if self.waiting_bytes + plain.len() > QUEUE_BYTES_MAX {
            let what = format!("the peer has not read the last {} bytes", self.waiting_bytes);
            return Err(self.end(Broken::Strange(what)));
        }
        let descriptor = descriptor.map(|descriptor| descriptor.try_clone_to_owned()).transpose();
        let descriptor = descriptor
            .map_err(|error| Broken::Strange(format!("a descriptor that cannot be sent: {error}")))?;
        self.waiting_bytes += plain.len();
        self.queued += 1;
        self.waiting.push_back(Waiting { ticket: self.queued, plain, descriptor, topic });
        Ok(self.queued)
    }

    /// Writes as much as the socket takes now. `seal` makes a frame of a message.
    pub(super) fn flush(
        &mut self,
        socket: &impl AsFd,
        mut seal: impl FnMut(&[u8], bool) -> Result<Vec<u8>, Broken>,
    ) -> Result<(), Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        loop {
            let frame = match &mut self.current {
                Some(frame) => frame,
                None => {
                    let Some(Waiting { ticket, plain, descriptor, .. }) = self.waiting.pop_front() else {
                        return Ok(());
                    };
                    self.waiting_bytes -= plain.len();
                    let bytes = seal(&plain, descriptor.is_some()).map_err(|broken| self.end(broken))?;
                    self.current.insert(Frame { ticket, bytes, written: 0, descriptor })
                }
            };
            let descriptor = frame.descriptor.as_ref().filter(|_| frame.written == 0).map(AsFd::as_fd);
            match write_some(socket, &frame.bytes[frame.written..], descriptor) {
                Ok(sent) => frame.written += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(self.end(error.into())),
            }
            if frame.written == frame.bytes.len() {
                self.written = frame.ticket;
                self.current = None;
            }
        }
    }

    /// Whether there is something to write once the socket has room.
    pub(super) fn is_waiting(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty()
    }

    /// Whether a message has been written whole.
    pub(super) fn is_written(&self, ticket: u64) -> bool {
        self.written >= ticket
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Sends nothing more. What was not written is dropped, and the stream has no gap because nothing follows.
    fn end(&mut self, broken: Broken) -> Broken {
        (self.current, self.waiting_bytes) = (None, 0);
        self.waiting.clear();
        self.broken.insert(broken).clone()
    }
}

/// Writes what the socket takes without waiting, with a descriptor if there is one.
pub(super) fn write_some(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<usize, Errno> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There is room for one.
    let _ = descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn waits(rank: u32, turn: u32) -> Message {
        Message::Event(Event::Waits { rank, turn, whom: vec![7; 50], neighbours: vec![0, 1] })
    }

    fn left(rank: u32) -> Message {
        Message::Event(Event::Left { rank, calls: 0 })
    }

    /// Sealing that only frames, so that a test can read the stream.
    fn plain(bytes: &[u8], _: bool) -> Result<Vec<u8>, Broken> {
        Ok([&(bytes.len() as u32).to_le_bytes()[..], bytes].concat())
    }

    #[test]
    fn slow_readers_get_whole_messages_in_order() {
        let (mut peer, socket) = UnixStream::pair().unwrap();
        let mut outgoing = Outgoing::default();
        // Far more than the socket takes.
        for turn in 0..20_000 {
            for rank in 0..3 {
                outgoing.queue(&waits(rank, turn), None).unwrap();
            }
            if turn % 5_000 == 0 {
                outgoing.queue(&left(turn), None).unwrap();
            }
            outgoing.flush(&socket, plain).unwrap();
        }
        let last = outgoing.queue(&left(9), None).unwrap();
        assert!(outgoing.is_waiting() && !outgoing.is_written(last));
        assert!(outgoing.waiting.len() < 10, "only the latest report of each rank waits");

        let mut stream = Vec::new();
        peer.set_nonblocking(true).unwrap();
        while !outgoing.is_written(last) {
            let _ = peer.read_to_end(&mut stream);
            outgoing.flush(&socket, plain).unwrap();
        }
        drop(socket);
        peer.set_nonblocking(false).unwrap();
        peer.read_to_end(&mut stream).unwrap();
        let (mut heard, mut rest) = (Vec::new(), &stream[..]);
        while let Some((length, more)) = rest.split_first_chunk::<4>() {
            let (message, more) = more.split_at(u32::from_le_bytes(*length) as usize);
            heard.push(postcard::from_bytes::<Message>(message).unwrap());
            rest = more;
        }
        let left_ranks: Vec<u32> = heard
            .iter()
            .filter_map(|message| match message {
                Message::Event(Event::Left { rank, .. }) => Some(*rank),
                _ => None,
            })
            .collect();
        assert_eq!(left_ranks, [0, 5_000, 10_000, 15_000, 9], "what matters is never dropped");
        for rank in 0..3 {
            assert!(heard.contains(&waits(rank, 19_999)), "the latest report of rank {rank} arrives");
        }
    }

    #[test]
    fn the_queue_has_a_bound() {
        let (_peer, socket) = UnixStream::pair().unwrap();
        let mut outgoing = Outgoing::default();
        let large = Message::Down { number: 0, said: vec![(0, vec![0; FRAME_BYTES_MAX / 2])] };
        let mut queued = 0;
        let broken = loop {
            match outgoing.queue(&large, None) {
                Ok(_) => queued += 1,
                Err(broken) => break broken,
            }
            outgoing.flush(&socket, plain).unwrap();
            assert!(queued < 20);
        };
        assert!(matches!(&broken, Broken::Strange(what) if what.contains("has not read")), "{broken:?}");
        assert!(!outgoing.is_waiting() && outgoing.is_broken());
        assert_eq!(outgoing.flush(&socket, plain), Err(broken));
    }
}
