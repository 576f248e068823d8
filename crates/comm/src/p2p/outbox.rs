//! What a rank has to send to another, and in which order it goes.

// Hands the caller's memory to links.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use super::asked::Asked;
use super::frame::{Frame, Kind};
use super::state::State;
use crate::error::Error;

/// The longest message that is sent without being asked for. Two short copies cost less than having the kernel read.
const EAGER_BYTES_MAX: usize = 16 << 10;

/// Everything that waits for room in one ring.
#[derive(Default)]
pub(super) struct Outbox {
    /// Answers to the other rank's offers.
    pub(super) answers: VecDeque<Answer>,
    /// Sends that the other rank does not know of, in the order in which they were made.
    pub(super) queued: VecDeque<Asked>,
    /// Sends that the other rank has accepted in pieces.
    pub(super) streams: VecDeque<Stream>,
}

/// What is said to an offer, and the receive that is over with it, if that is not to come yet. A receive is over only when its sender
/// can hear of it: afterwards nobody may give the endpoint turns any more.
pub(super) struct Answer {
    pub(super) frame: Frame,
    pub(super) ends: Option<End>,
}

/// A receive, and what has become of it.
pub(super) type End = (Asked, Result<usize, Error>);

/// A send that goes in pieces.
pub(super) struct Stream {
    pub(super) asked: Asked,
    /// The receive, as its rank numbers them.
    pub(super) receive: u64,
    pub(super) sent: usize,
}

impl Outbox {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.queued.is_empty() && self.streams.is_empty()
    }
}

impl State {
    /// Sends what there is room for: answers, then messages, then pieces, of each stream in turn.
    pub(super) fn flush(&mut self, to: usize) {
        loop {
            let (Some(link), outbox) = (&mut self.links[to], &mut self.outboxes[to]) else { return };
            if outbox.is_empty() || !link.has_room() {
                return;
            }
            if let Some(answer) = outbox.answers.pop_front() {
                link.send_bare(&answer.frame);
                self.finish_with(answer.ends);
            } else if let Some(asked) = outbox.queued.pop_front() {
                self.send_next(to, asked);
            } else if let Some(stream) = outbox.streams.pop_front() {
                self.send_piece(to, stream);
            }
        }
    }

    /// Tells the end of a receive, if there is one.
    pub(super) fn finish_with(&mut self, end: Option<End>) {
        if let Some((asked, result)) = end {
            self.finish(asked, result);
        }
    }

    /// Sends a message, or offers it.
    fn send_next(&mut self, to: usize, asked: Asked) {
        let Some(link) = &mut self.links[to] else { return };
        let is_short = asked.bytes <= EAGER_BYTES_MAX.min(link.frame_bytes_max());
        if is_short && link.may_send_ahead(asked.bytes) {
            let frame = Frame::new(Kind::Eager, asked.bytes, asked.tag, asked.id).of_type(asked.data_type);
            // SAFETY: the sender's memory has so many bytes, which are no more than a frame brings.
            unsafe { link.send(frame, asked.address, asked.bytes) };
            self.finish(asked, Ok(to));
        } else {
            let mut frame =
                Frame::new(Kind::Offer, asked.bytes, asked.tag, asked.id).of_type(asked.data_type);
            frame.inline[0] = asked.address as u64;
            link.send_bare(&frame);
            self.offered.insert(asked.id, asked);
        }
    }

    /// Sends the next piece of a message.
    fn send_piece(&mut self, to: usize, mut stream: Stream) {
        let Some(link) = &mut self.links[to] else { return };
        let bytes = (stream.asked.bytes - stream.sent).min(link.frame_bytes_max());
        let frame = Frame::new(Kind::Piece, bytes, stream.sent as u64, stream.receive);
        // SAFETY: the piece lies within the sender's memory, and is no more than a frame brings.
        unsafe { link.send(frame, stream.asked.address.add(stream.sent), bytes) };
        stream.sent += bytes;
        if stream.sent == stream.asked.bytes {
            self.finish(stream.asked, Ok(to));
        } else {
            self.outboxes[to].streams.push_back(stream);
        }
    }
}
