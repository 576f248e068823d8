//! What a rank has to send to a peer, and in which order it goes.

use std::collections::VecDeque;

use weftlink_plan::DataType;

use super::{MESSAGES_MAX, Protocol};
use crate::frame::{Frame, Kind};
use crate::op::{Outcome, PendingOp};

/// Everything that waits for room on one link.
pub(super) struct Outbox<T> {
    /// Answers to the peer's offers.
    pub(super) answers: VecDeque<Answer<T>>,
    /// Sends that the peer has not heard of, in the order in which they were posted.
    pub(super) queued: VecDeque<PendingOp<T>>,
    /// Sends that the peer has accepted in pieces.
    pub(super) streams: VecDeque<Stream<T>>,
}

/// The answer to an offer, and the receive that completes when it is sent.
pub(super) struct Answer<T> {
    pub(super) frame: Frame,
    pub(super) ends: Option<(PendingOp<T>, Outcome)>,
}

/// A send that goes in pieces.
pub(super) struct Stream<T> {
    pub(super) op: PendingOp<T>,
    /// The receive, by the number that its rank gave it.
    pub(super) receive: u64,
    pub(super) sent: usize,
}

/// A frame to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The frame.
    pub frame: Frame,
    /// Where its payload lies in the caller's memory, and its length; no address if there is none.
    pub address: u64,
    /// See [`Transmit::address`].
    pub bytes: usize,
}

impl<T> Default for Outbox<T> {
    fn default() -> Outbox<T> {
        Outbox { answers: VecDeque::new(), queued: VecDeque::new(), streams: VecDeque::new() }
    }
}

impl<T> Outbox<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.queued.is_empty() && self.streams.is_empty()
    }
}

impl<T> Protocol<T> {
    /// Whether there is nothing to send to a peer.
    #[inline]
    pub fn is_idle(&self, to: usize) -> bool {
        self.peers[to].outbox.is_empty()
    }

    /// Whether the next message to a peer would be sent eagerly if the peer had reported more as taken. Where it reports in a
    /// counter, the driver reads that and calls [`Protocol::handle_credit`].
    #[inline]
    pub fn wants_credit(&self, to: usize) -> bool {
        let peer = &self.peers[to];
        peer.outbox.answers.is_empty()
            && peer
                .outbox
                .queued
                .front()
                .is_some_and(|op| self.is_short(to, op.bytes) && !peer.credit.covers(op.bytes))
    }

    /// The next frame to a peer, whose link must have room for it: answers first, then messages, then pieces of each stream in
    /// turn.
    #[inline]
    pub fn poll_transmit(&mut self, to: usize) -> Option<Transmit> {
        let outbox = &mut self.peers[to].outbox;
        if let Some(answer) = outbox.answers.pop_front() {
            if let Some((op, outcome)) = answer.ends {
                self.complete(op, outcome);
            }
            return Some(Transmit { frame: answer.frame, address: 0, bytes: 0 });
        }
        if let Some(op) = outbox.queued.pop_front() {
            return Some(self.transmit_message(to, op));
        }
        let stream = outbox.streams.pop_front()?;
        Some(self.transmit_piece(to, stream))
    }

    /// Sends a short message without queueing it, and returns its frame: the send has completed. Nothing if the message has to be posted
    /// by [`Protocol::send`], because others wait before it, it is long, there is no credit, too many are pending, or the peer is this rank or gone. The link
    /// must have room for a frame.
    #[inline]
    pub fn send_now(
        &mut self,
        to: usize,
        tag: u64,
        bytes: usize,
        data_type: Option<DataType>,
    ) -> Option<Frame> {
        let is_open = !self.has_ended && self.pending < MESSAGES_MAX && to != self.config.rank;
        let is_short = self.is_short(to, bytes);
        let peer = &mut self.peers[to];
        let is_reached = peer.left.is_none() && peer.gone.is_none();
        if !is_open || !is_short || !is_reached || !peer.outbox.is_empty() || !peer.credit.covers(bytes) {
            return None;
        }
        peer.credit.spend(bytes);
        self.last_id += 1;
        Some(Frame::new(Kind::Eager, bytes, tag, self.last_id).of_type(data_type))
    }

    #[inline]
    fn is_short(&self, to: usize, bytes: usize) -> bool {
        bytes <= self.config.eager_bytes_max.min(self.peers[to].route.frame_bytes_max())
    }

    /// Sends a message eagerly, or offers it.
    fn transmit_message(&mut self, to: usize, op: PendingOp<T>) -> Transmit {
        let &PendingOp { id, tag, address, bytes, data_type, .. } = &op;
        if self.is_short(to, bytes) && self.peers[to].credit.covers(bytes) {
            self.peers[to].credit.spend(bytes);
            self.complete(op, Outcome::Done(to));
            let frame = Frame::new(Kind::Eager, bytes, tag, id).of_type(data_type);
            return Transmit { frame, address, bytes };
        }
        let mut frame = Frame::new(Kind::Offer, bytes, tag, id).of_type(data_type);
        frame.inline[0] = address;
        self.offered.insert(id, op);
        Transmit { frame, address: 0, bytes: 0 }
    }

    fn transmit_piece(&mut self, to: usize, mut stream: Stream<T>) -> Transmit {
        let bytes = (stream.op.bytes - stream.sent).min(self.peers[to].route.frame_bytes_max());
        let frame = Frame::new(Kind::Piece, bytes, stream.sent as u64, stream.receive);
        let address = stream.op.address + stream.sent as u64;
        stream.sent += bytes;
        if stream.sent == stream.op.bytes {
            self.complete(stream.op, Outcome::Done(to));
        } else {
            self.peers[to].outbox.streams.push_back(stream);
        }
        Transmit { frame, address, bytes }
    }
}
