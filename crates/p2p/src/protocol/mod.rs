//! The protocol of one rank: its operations, what has arrived, and what each input makes of them.

mod expire;
mod parts;
mod transmit;

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use weftlink_plan::DataType;

use crate::credit::Credit;
use crate::frame::{Frame, Kind, Verdict};
use crate::matching::{Envelope, Matching, Pattern};
use crate::op::{Direction, Outcome, PendingOp};
use expire::verdict_at;
pub use parts::{Config, LocalCopy, Payload, Pull, Route};
use parts::{Incoming, Message, Peer};
pub use transmit::Transmit;
use transmit::{Answer, Outbox, Stream};

/// The most operations of a rank that may be pending.
pub const MESSAGES_MAX: usize = 1 << 16;

/// The protocol of one rank.
pub struct Protocol<T> {
    config: Config,
    peers: Vec<Peer<T>>,
    matching: Matching<PendingOp<T>, Message>,
    /// Sends that have been offered and not answered.
    offered: HashMap<u64, PendingOp<T>>,
    /// Sends of this rank to itself that the driver is copying from.
    being_copied: HashMap<u64, PendingOp<T>>,
    /// Receives that arrive in pieces.
    incoming: HashMap<u64, Incoming<T>>,
    /// Offers to pull.
    pulls: VecDeque<Pull<T>>,
    /// Pulls that failed; they wait for the verdict on their peer.
    failed_pulls: Vec<(Pull<T>, i32, Instant)>,
    completions: Vec<(PendingOp<T>, Outcome)>,
    /// Operations that have not completed.
    pending: usize,
    last_id: u64,
    /// The communicator was aborted or dropped.
    has_ended: bool,
    /// No timeout is earlier than this.
    earliest: Option<Instant>,
}

impl<T> Protocol<T> {
    /// A rank and its routes to all ranks.
    pub fn new(config: Config, routes: &[Route]) -> Protocol<T> {
        let peer = |route: &Route| Peer {
            route: *route,
            outbox: Outbox::default(),
            credit: Credit::new(config.window_bytes),
            left: None,
            failed: None,
            gone: None,
        };
        Protocol {
            config,
            peers: routes.iter().map(peer).collect(),
            matching: Matching::new(),
            offered: HashMap::new(),
            being_copied: HashMap::new(),
            incoming: HashMap::new(),
            pulls: VecDeque::new(),
            failed_pulls: Vec::new(),
            completions: Vec::new(),
            pending: 0,
            last_id: 0,
            has_ended: false,
            earliest: None,
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.config.rank
    }

    /// Counts a new operation and numbers it; nothing if [`MESSAGES_MAX`] are pending. Every operation that was counted must be
    /// posted by [`Protocol::send`] or [`Protocol::receive`].
    pub fn begin(&mut self) -> Option<u64> {
        if self.pending >= MESSAGES_MAX && !mutant!("messages-without-limit") {
            return None;
        }
        self.pending += 1;
        self.last_id += 1;
        Some(self.last_id)
    }

    /// Posts a send.
    pub fn send(&mut self, op: PendingOp<T>) -> LocalCopy<'_> {
        let Direction::SendTo(to) = op.direction else { unreachable!("a send has a target") };
        if self.has_ended {
            self.complete(op, Outcome::Ended);
        } else if to == self.config.rank {
            self.note_timeout(op.deadline);
            return self.send_to_self(op);
        } else if self.peers[to].left.is_some() {
            self.complete(op, Outcome::Left(to));
        } else if let Some(gone) = self.peers[to].gone {
            self.complete(op, gone.outcome(to));
        } else {
            self.note_timeout(op.deadline);
            self.peers[to].outbox.queued.push_back(op);
        }
        LocalCopy::None
    }

    /// Posts a receive.
    pub fn receive(&mut self, op: PendingOp<T>) -> LocalCopy<'_> {
        let Direction::ReceiveFrom(from) = op.direction else { unreachable!("a receive has a source") };
        if self.has_ended {
            self.complete(op, Outcome::Ended);
            return LocalCopy::None;
        }
        let pattern = Pattern { from, tag: op.tag };
        match self.matching.message_for(pattern) {
            None => match self.unreachable(from) {
                Some(outcome) => self.complete(op, outcome),
                None => {
                    self.note_timeout(op.deadline);
                    self.matching.keep_receive(pattern, op);
                }
            },
            Some((envelope, Message::Offer { id, address, bytes, data_type })) => {
                self.note_timeout(op.deadline);
                let offer = Frame::new(Kind::Offer, bytes as usize, envelope.tag, id).of_type(data_type);
                self.accept_offer(envelope.from, offer, address, op);
            }
            Some((envelope, Message::Whole { message, data_type })) => {
                let from = envelope.from;
                if from != self.config.rank && !mutant!("eager-credit-not-returned") {
                    self.peers[from].credit.took(message.len());
                }
                let (to, bytes) = (op.address, message.len() as u64);
                let fits = op.fits(bytes, data_type);
                self.received(op, from, (bytes, data_type));
                if fits {
                    return LocalCopy::Out { from: message, to };
                }
            }
        }
        LocalCopy::None
    }

    /// Receives the short message in the next frame of a peer without posting the receive, and returns whether it did: then the driver
    /// copies the payload, and the receive has completed. Otherwise, the frame is still to be [handled](Protocol::handle_frame), and the
    /// receive to be [posted](Protocol::receive).
    #[inline]
    pub fn receive_now(
        &mut self,
        from: usize,
        tag: u64,
        bytes: usize,
        data_type: Option<DataType>,
        frame: &Frame,
    ) -> bool {
        let fits = frame.bytes == bytes as u64 && frame.data_type == data_type;
        let is_its = frame.kind == Kind::Eager && frame.tag == tag && fits;
        let is_open = !self.has_ended && self.pending < MESSAGES_MAX;
        let can = is_its && is_open && bytes <= self.peers[from].route.frame_bytes_max();
        if can && self.matching.is_next(Envelope { from, tag }) {
            self.peers[from].credit.took(bytes);
            return true;
        }
        false
    }

    /// A frame has arrived. The driver must hand frames of one peer over in the order in which they were sent.
    #[inline]
    pub fn handle_frame(&mut self, from: usize, frame: &Frame) -> Payload<'_> {
        match frame.kind {
            Kind::Eager => return self.take_eager(from, frame),
            Kind::Piece => return self.take_piece(from, frame),
            Kind::Offer => {
                let envelope = Envelope { from, tag: frame.tag };
                let &Frame { id, bytes, data_type, inline: [address, ..], .. } = frame;
                match self.matching.receive_for(envelope) {
                    Some(op) => self.accept_offer(from, *frame, address, op),
                    None => {
                        let offer = Message::Offer { id, address, bytes, data_type };
                        self.matching.keep_message(envelope, offer);
                    }
                }
            }
            Kind::Accept => {
                if let Some(op) = self.take_offered(from, frame.id) {
                    let stream = Stream { op, receive: frame.tag, sent: 0 };
                    self.peers[from].outbox.streams.push_back(stream);
                }
            }
            Kind::Over => {
                if let Some(op) = self.take_offered(from, frame.id) {
                    let outcome = match frame.verdict() {
                        Verdict::Received => Outcome::Done(from),
                        Verdict::Differs if mutant!("self-blame-in-offers") => Outcome::Done(from),
                        Verdict::Differs => {
                            Outcome::Differs { peer: from, bytes: frame.bytes, data_type: frame.data_type }
                        }
                        Verdict::Unreadable => Outcome::Unreadable { peer: from, errno: None },
                    };
                    self.complete(op, outcome);
                }
            }
            Kind::Taken => self.peers[from].credit.heard(frame.bytes as u32),
        }
        Payload::None
    }

    /// A peer of this host has taken so much of what was sent eagerly, in all.
    pub fn handle_credit(&mut self, from: usize, taken: u32) {
        self.peers[from].credit.heard(taken);
    }

    /// What to report to a peer as taken, if it is time to. [`Protocol::credit_reported`] follows when that was sent.
    #[inline]
    pub fn credit_due(&self, peer: usize) -> Option<u32> {
        self.peers[peer].credit.due()
    }

    /// The peer was sent what was [due](Protocol::credit_due).
    pub fn credit_reported(&mut self, peer: usize) {
        self.peers[peer].credit.reported();
    }

    /// The next message to copy out of a sender's memory. The driver may release its lock meanwhile, and hands the pull back by
    /// [`Protocol::handle_pull`].
    #[inline]
    pub fn poll_pull(&mut self) -> Option<Pull<T>> {
        let pull = self.pulls.pop_front()?;
        if pull.from == self.config.rank {
            // Its send must not complete while the driver copies from its memory.
            self.being_copied.extend(self.offered.remove_entry(&pull.offer));
        }
        Some(pull)
    }

    /// A pull has ended. Before this the driver has looked, in this order, whether the communicator has ended and whether the
    /// sender has left, and called [`Protocol::end`] or [`Protocol::peer_left`]: what was pulled counts only if the sender had not
    /// taken its memory back.
    pub fn handle_pull(&mut self, pull: Pull<T>, failed: Option<i32>, now: Instant) {
        let is_own = pull.from == self.config.rank;
        if is_own {
            self.offered.extend(self.being_copied.remove_entry(&pull.offer));
        }
        if self.has_ended {
            let send = if is_own { self.offered.remove(&pull.offer) } else { None };
            for op in send.into_iter().chain([pull.op]) {
                self.complete(op, Outcome::Ended);
            }
        } else if self.peers[pull.from].left.is_some() && !mutant!("pull-outlives-departure") {
            self.complete(pull.op, Outcome::Left(pull.from));
        } else if let Some(errno) = failed {
            self.note_timeout(Some(verdict_at(&pull, now)));
            self.failed_pulls.push((pull, errno, now));
        } else {
            let Pull { op, from, offer, .. } = pull;
            self.close_offer(from, offer, Verdict::Received, op, Outcome::Done(from));
        }
    }

    /// Moves the operations that have completed to a list. The driver reports them in this order, and before it releases its
    /// lock: an abort precedes the operations that it ends.
    #[inline]
    pub fn poll_completions(&mut self, into: &mut Vec<(PendingOp<T>, Outcome)>) {
        // Moves no operation, as long as the driver's list is empty.
        if into.is_empty() {
            std::mem::swap(into, &mut self.completions)
        } else {
            into.append(&mut self.completions)
        }
    }

    /// Whether operations have completed since [`Protocol::poll_completions`].
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Whether no operation is pending.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.pending == 0
    }

    /// Whether there are offers to pull.
    pub fn has_pulls(&self) -> bool {
        !self.pulls.is_empty()
    }

    /// Whether frames to other ranks are queued, or other ranks have yet to answer an offer.
    pub fn is_sending(&self) -> bool {
        let is_theirs = |op: &PendingOp<T>| op.direction != Direction::SendTo(self.config.rank);
        self.peers.iter().any(|peer| !peer.outbox.is_empty()) || self.offered.values().any(is_theirs)
    }

    /// Whether answers to offers wait for room on their links. Their senders wait for them, even if no operation is pending here.
    pub fn has_answers(&self) -> bool {
        !mutant!("answers-not-driven") && self.peers.iter().any(|peer| !peer.outbox.answers.is_empty())
    }

    /// A rank that a pending operation waits for, if there is one that waits for a single rank.
    pub fn awaited(&self) -> Option<Direction> {
        let of_one =
            |op: &PendingOp<T>| Some(op.direction).filter(|one| *one != Direction::ReceiveFrom(None));
        let sends = self.peers.iter().flat_map(|peer| &peer.outbox.queued);
        let receives = self.matching.receives().chain(self.incoming.values().map(|incoming| &incoming.op));
        receives.chain(self.offered.values()).chain(sends).find_map(of_one)
    }

    /// Eager messages that no receive has taken: their source, tag and contents.
    pub fn unexpected(&self) -> impl Iterator<Item = (usize, u64, &[u8])> {
        self.matching.messages().filter_map(|(envelope, message)| match message {
            Message::Whole { message, .. } => Some((envelope.from, envelope.tag, &**message)),
            Message::Offer { .. } => None,
        })
    }

    fn complete(&mut self, op: PendingOp<T>, outcome: Outcome) {
        self.pending -= 1;
        self.completions.push((op, outcome));
    }

    fn note_timeout(&mut self, at: Option<Instant>) {
        if !self.has_ended {
            self.earliest = self.earliest.into_iter().chain(at).min();
        }
    }

    /// A send that was offered to this rank and not answered.
    fn take_offered(&mut self, to: usize, id: u64) -> Option<PendingOp<T>> {
        self.offered.get(&id).filter(|op| op.direction == Direction::SendTo(to))?;
        self.offered.remove(&id)
    }

    fn take_eager(&mut self, from: usize, frame: &Frame) -> Payload<'_> {
        let envelope = Envelope { from, tag: frame.tag };
        let bytes = (frame.bytes as usize).min(self.peers[from].route.frame_bytes_max());
        match self.matching.receive_for(envelope) {
            Some(op) => {
                self.peers[from].credit.took(bytes);
                let (address, fits) = (op.address, op.fits(bytes as u64, frame.data_type));
                self.received(op, from, (frame.bytes, frame.data_type));
                if fits { Payload::Caller { address, bytes } } else { Payload::None }
            }
            None => {
                let message = vec![0; bytes].into_boxed_slice();
                let message = Message::Whole { message, data_type: frame.data_type };
                match self.matching.keep_message(envelope, message) {
                    Message::Whole { message, .. } => Payload::Buffer(message),
                    Message::Offer { .. } => Payload::None,
                }
            }
        }
    }

    fn take_piece(&mut self, from: usize, frame: &Frame) -> Payload<'_> {
        let (at, bytes) = (frame.tag as usize, frame.bytes as usize);
        let is_next = |incoming: &&mut Incoming<T>| {
            incoming.from == from && incoming.received == at && bytes <= incoming.op.bytes - incoming.received
        };
        // The receive may have timed out.
        let Some(incoming) = self.incoming.get_mut(&frame.id).filter(is_next) else { return Payload::None };
        incoming.received += bytes;
        let address = incoming.op.address + at as u64;
        if incoming.received == incoming.op.bytes
            && let Some(Incoming { op, .. }) = self.incoming.remove(&frame.id)
        {
            self.complete(op, Outcome::Done(from));
        }
        Payload::Caller { address, bytes }
    }

    /// An eager message has arrived for a receive.
    fn received(&mut self, op: PendingOp<T>, from: usize, (bytes, data_type): (u64, Option<DataType>)) {
        let outcome = match mutant!("lengths-not-compared") || op.fits(bytes, data_type) {
            true => Outcome::Done(from),
            false => Outcome::Differs { peer: from, bytes, data_type },
        };
        self.complete(op, outcome);
    }

    /// A receive has matched an offer.
    fn accept_offer(&mut self, from: usize, offer: Frame, address: u64, op: PendingOp<T>) {
        if let Some(gone) = self.peers[from].gone {
            self.complete(op, gone.outcome(from));
        } else if !op.fits(offer.bytes, offer.data_type) && !mutant!("long-lengths-not-compared") {
            let outcome = Outcome::Differs { peer: from, bytes: offer.bytes, data_type: offer.data_type };
            self.close_offer(from, offer.id, Verdict::Differs, op, outcome);
        } else if op.bytes == 0 {
            self.close_offer(from, offer.id, Verdict::Received, op, Outcome::Done(from));
        } else if self.peers[from].route.pulls(op.bytes) {
            self.pulls.push_back(Pull::new(op, from, address, offer.id));
        } else {
            let frame = Frame::new(Kind::Accept, op.bytes, op.id, offer.id);
            self.incoming.insert(op.id, Incoming { op, from, received: 0 });
            self.peers[from].outbox.answers.push_back(Answer { frame, ends: None });
        }
    }

    /// Answers an offer. The receive completes when the answer is sent: afterwards the driver may have no reason to run again.
    fn close_offer(
        &mut self,
        from: usize,
        offer: u64,
        verdict: Verdict,
        receive: PendingOp<T>,
        outcome: Outcome,
    ) {
        if from != self.config.rank {
            self.note_timeout(receive.deadline);
            let frame = Frame::over(offer, verdict, receive.bytes).of_type(receive.data_type);
            let answer = Answer { frame, ends: Some((receive, outcome)) };
            return self.peers[from].outbox.answers.push_back(answer);
        }
        if let Some(send) = self.offered.remove(&offer) {
            let (bytes, data_type) = (receive.bytes as u64, receive.data_type);
            let outcome = match verdict {
                Verdict::Differs => Outcome::Differs { peer: from, bytes, data_type },
                Verdict::Received | Verdict::Unreadable => Outcome::Done(from),
            };
            self.complete(send, outcome);
        }
        self.complete(receive, outcome);
    }

    /// A message to this rank itself: copied if it is short and not yet expected, otherwise offered.
    fn send_to_self(&mut self, op: PendingOp<T>) -> LocalCopy<'_> {
        let envelope = Envelope { from: self.config.rank, tag: op.tag };
        let (id, address, bytes, data_type) = (op.id, op.address, op.bytes, op.data_type);
        if let Some(receive) = self.matching.receive_for(envelope) {
            self.offered.insert(id, op);
            let offer = Frame::new(Kind::Offer, bytes, envelope.tag, id).of_type(data_type);
            self.accept_offer(envelope.from, offer, address, receive);
            return LocalCopy::None;
        }
        if bytes > self.config.self_bytes_max {
            self.offered.insert(id, op);
            let offer = Message::Offer { id, address, bytes: bytes as u64, data_type };
            self.matching.keep_message(envelope, offer);
            return LocalCopy::None;
        }
        self.complete(op, Outcome::Done(envelope.from));
        let message = vec![0; bytes].into_boxed_slice();
        match self.matching.keep_message(envelope, Message::Whole { message, data_type }) {
            Message::Whole { message, .. } => LocalCopy::In { from: address, to: message },
            Message::Offer { .. } => LocalCopy::None,
        }
    }
}
