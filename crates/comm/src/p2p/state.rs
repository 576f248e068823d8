//! What a endpoint does when a thread of its rank gives it a turn: takes what has come, matches it, sends what can be sent.
//!
//! A short message is sent whole, without being asked for, as long as its receiver can be expected to have room. A long one is
//! *offered*: its receiver learns its length and where it lies. When a receive takes it, the receiver has the kernel read it
//! and says that it is *over*; or, where the kernel does not, *accepts* it, and the sender sends it in pieces.
//!
//! A sender whose offer is read gives its memory back only when it has heard that it is over, or when the communicator has ended;
//! and who has read an offer believes what it has read only if the communicator had not ended by then. So nobody takes for a
//! message what its sender may have written since.
//!
//! All of it happens under the endpoint's lock, but for reading offers ([`Reading`]), which may take long.

// Hands the caller's memory to links and to the kernel.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use weftlink_plan::DataType;

use super::asked::{Asked, Callback, Tell, Way};
use super::fate::Fate;
use super::frame::{Frame, Kind, Verdict};
use super::link::Link;
use super::matching::{Found, Matching, Wanted};
use super::outbox::{Answer, Outbox, Stream};
use super::reading::{Readers, Reading};
use super::wire::Wires;
use crate::error::Error;
use crate::transport::cma::Process;

/// The most sends and receives of a rank that may be under way.
pub const MESSAGES_MAX: usize = 1 << 14;

/// Everything of a endpoint that its lock guards.
pub(super) struct State {
    pub(super) fate: Fate,
    /// By rank; none to this one itself.
    pub(super) links: Vec<Option<Link>>,
    pub(super) outboxes: Vec<Outbox>,
    /// The connections, if there are ranks on other hosts; and since when it is known that one of those is gone, or that its
    /// connection is.
    pub(super) wires: Option<Rc<Wires>>,
    pub(super) partings: HashMap<usize, Instant>,
    pub(super) matching: Matching<Asked, Message>,
    /// Sends that have been offered and not answered.
    pub(super) offered: HashMap<u64, Asked>,
    /// Sends of this rank to itself that a thread is just copying from.
    pub(super) being_read: HashMap<u64, Asked>,
    /// Receives that come in pieces.
    pub(super) incoming: HashMap<u64, Incoming>,
    /// Offers that are to be read.
    pub(super) readings: VecDeque<Reading>,
    /// Receives whose sender's memory could not be read.
    pub(super) unread: Vec<Reading>,
    /// Which of other ranks' messages the kernel reads.
    readers: Option<Readers>,
    /// The processes of all ranks.
    pub(super) processes: Vec<Process>,
    /// Calls to be made as soon as the lock is open.
    pub(super) calls: Vec<(Callback, Result<usize, Error>)>,
    /// What threads that wait will find.
    results: Vec<(u64, Result<usize, Error>)>,
    /// Sends and receives that are not over, and those of them for which no thread waits.
    open: usize,
    pub(super) unattended: usize,
    /// The number of the last one.
    last: u64,
}

/// A message that nobody has asked for yet.
pub(super) enum Message {
    Whole { message: Box<[u8]>, data_type: Option<DataType> },
    Offer { id: u64, address: u64, bytes: u64, data_type: Option<DataType> },
}

/// A receive that comes in pieces.
pub(super) struct Incoming {
    pub(super) asked: Asked,
    pub(super) from: usize,
    pub(super) got: usize,
}

// SAFETY: the addresses are of mapped memory, which may be used from any thread, and of callers who have promised the same of
// theirs. Connections are referred to from nowhere but here, so all references to them go from thread to thread together.
unsafe impl Send for State {}

impl State {
    pub(super) fn new(
        fate: Fate,
        (links, wires): (Vec<Option<Link>>, Option<Rc<Wires>>),
        readers: Option<Readers>,
        processes: Vec<Process>,
    ) -> State {
        State {
            wires,
            partings: HashMap::new(),
            outboxes: links.iter().map(|_| Outbox::default()).collect(),
            fate,
            links,
            matching: Matching::new(),
            offered: HashMap::new(),
            being_read: HashMap::new(),
            incoming: HashMap::new(),
            readings: VecDeque::new(),
            unread: Vec::new(),
            readers,
            processes,
            calls: Vec::new(),
            results: Vec::new(),
            open: 0,
            unattended: 0,
            last: 0,
        }
    }

    /// Counts a send or a receive, and gives its number. Whatever is counted must be [finished](State::finish).
    pub(super) fn begin(&mut self, is_attended: bool) -> Result<u64, Error> {
        if self.open >= MESSAGES_MAX && !mutant!("messages-without-limit") {
            return Err(Error::QueueFull { limit: MESSAGES_MAX });
        }
        self.open += 1;
        self.unattended += usize::from(!is_attended);
        self.last += 1;
        Ok(self.last)
    }

    /// Tells the end of a send or a receive.
    pub(super) fn finish(&mut self, asked: Asked, result: Result<usize, Error>) {
        self.open -= 1;
        match asked.tell {
            Tell::Waiting => self.results.push((asked.id, result)),
            Tell::Call(callback) => {
                self.unattended -= 1;
                self.calls.push((callback, result));
            }
        }
    }

    /// The result of a send or a receive that a thread waits for.
    pub(super) fn result(&mut self, id: u64) -> Option<Result<usize, Error>> {
        let at = self.results.iter().position(|(of, _)| *of == id)?;
        Some(self.results.swap_remove(at).1)
    }

    /// Whether there are results that other threads may be asleep for.
    pub(super) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// A send begins.
    pub(super) fn send(&mut self, asked: Asked) {
        let Way::To(to) = asked.way else { unreachable!("a send has a target") };
        if self.fate.is_over() {
            let error = self.fate.end_of(&asked);
            return self.finish(asked, Err(error));
        }
        if to == self.fate.rank {
            return self.send_to_self(asked);
        }
        if self.fate.has_left(to) {
            let error = self.fate.left(&asked, to);
            return self.finish(asked, Err(error));
        }
        self.outboxes[to].queued.push_back(asked);
        self.flush(to);
    }

    /// A receive begins.
    pub(super) fn receive(&mut self, asked: Asked) {
        let Way::From(from) = asked.way else { unreachable!("a receive has a source") };
        if self.fate.is_over() {
            let error = self.fate.end_of(&asked);
            return self.finish(asked, Err(error));
        }
        let wanted = Wanted { from, tag: asked.tag };
        match self.matching.message_for(wanted) {
            None => self.matching.keep_receive(wanted, asked),
            Some((found, Message::Offer { id, address, bytes, data_type })) => {
                let offer = Frame::new(Kind::Offer, bytes as usize, found.tag, id).of_type(data_type);
                self.take_offer(found.from, offer, address, asked);
            }
            Some((found, Message::Whole { message, data_type })) => {
                if asked.fits(message.len() as u64, data_type) {
                    // SAFETY: the receive's memory is its own and has so many bytes.
                    unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), asked.address, message.len()) };
                }
                if let Some(link) = &mut self.links[found.from]
                    && !mutant!("eager-credit-not-returned")
                {
                    link.took(message.len());
                }
                self.received(asked, found.from, (message.len() as u64, data_type));
            }
        }
    }

    /// Takes what has come from all ranks, and sends what can be sent to them.
    #[inline]
    pub(super) fn turn(&mut self) {
        if let Some(wires) = &self.wires {
            wires.progress();
        }
        for rank in 0..self.links.len() {
            self.drain(rank);
            if !self.outboxes[rank].is_empty() {
                self.flush(rank);
            }
        }
    }

    /// Wakes ranks for which something has changed.
    #[inline]
    pub(super) fn tell(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.tell(&self.fate.waiter);
        }
        if let Some(wires) = &self.wires {
            wires.flush();
        }
    }

    /// Whether something is still to be handed to the kernel that was sent, as its caller believes, to a rank on another host.
    pub(super) fn is_carrying(&self) -> bool {
        self.wires.as_ref().is_some_and(|wires| wires.is_carrying()) && !self.fate.is_over()
    }

    /// Whether something is still to be sent to other ranks, or to be read by them.
    pub(super) fn is_sending(&self) -> bool {
        let is_theirs = |asked: &Asked| asked.way != Way::To(self.fate.rank);
        self.outboxes.iter().any(|outbox| !outbox.is_empty())
            || self.offered.values().any(is_theirs)
            || self.is_carrying()
    }

    /// Takes frames of a rank, as many as there are but not more than others can wait for, and says whether there may be more.
    pub(super) fn drain(&mut self, from: usize) -> bool {
        for _ in 0..DRAINED_MAX {
            let Some(link) = &mut self.links[from] else { return false };
            let Some(frame) = link.arrived() else { return false };
            match frame {
                Ok(frame) if frame.kind == Kind::Eager => self.take_whole(from, &frame),
                Ok(frame) if frame.kind == Kind::Piece => self.take_piece(from, &frame),
                Ok(frame) => {
                    link.next();
                    self.answer(from, &frame);
                }
                // Written by nobody who keeps to the protocol: there is nothing to be made of it.
                Err(_) => link.next(),
            }
        }
        true
    }

    /// A frame without payload.
    fn answer(&mut self, from: usize, frame: &Frame) {
        let is_theirs = |asked: &Asked| asked.way == Way::To(from);
        match frame.kind {
            Kind::Offer => {
                let found = Found { from, tag: frame.tag };
                let &Frame { id, bytes, data_type, inline: [address, ..], .. } = frame;
                match self.matching.receive_for(found) {
                    Some(asked) => self.take_offer(from, *frame, address, asked),
                    None => {
                        self.matching.keep_message(found, Message::Offer { id, address, bytes, data_type })
                    }
                }
            }
            Kind::Accept if self.offered.get(&frame.id).is_some_and(is_theirs) => {
                if let Some(asked) = self.offered.remove(&frame.id) {
                    self.outboxes[from].streams.push_back(Stream { asked, receive: frame.tag, sent: 0 });
                }
            }
            Kind::Over if self.offered.get(&frame.id).is_some_and(is_theirs) => {
                if let Some(asked) = self.offered.remove(&frame.id) {
                    let result = match frame.verdict() {
                        Verdict::Received => Ok(from),
                        Verdict::Differs if mutant!("self-blame-in-offers") => Ok(from),
                        Verdict::Differs => {
                            Err(self.fate.differs(&asked, from, (frame.bytes, frame.data_type)))
                        }
                        Verdict::Unreadable => Err(self.fate.unreadable(&asked, from, libc::EFAULT)),
                    };
                    self.finish(asked, result);
                }
            }
            Kind::Taken => {
                if let Some(link) = &mut self.links[from] {
                    link.heard_taken(frame.bytes as u32);
                }
            }
            // Answers to what has been given up.
            Kind::Accept | Kind::Over | Kind::Eager | Kind::Piece => {}
        }
    }

    /// A whole message: straight to where it is wanted, or kept.
    fn take_whole(&mut self, from: usize, frame: &Frame) {
        let found = Found { from, tag: frame.tag };
        let Some(link) = &mut self.links[from] else { return };
        let bytes = (frame.bytes as usize).min(link.frame_bytes_max());
        match self.matching.receive_for(found) {
            Some(asked) => {
                if asked.fits(bytes as u64, frame.data_type) {
                    // SAFETY: the receive's memory is its own and has so many bytes.
                    unsafe { link.payload(frame, asked.address, bytes) };
                }
                link.next();
                link.took(bytes);
                self.received(asked, from, (frame.bytes, frame.data_type));
            }
            None => {
                let mut message = vec![0; bytes].into_boxed_slice();
                // SAFETY: it has so many bytes.
                unsafe { link.payload(frame, message.as_mut_ptr(), bytes) };
                link.next();
                self.matching.keep_message(found, Message::Whole { message, data_type: frame.data_type });
            }
        }
    }

    /// A piece of a message that was accepted.
    fn take_piece(&mut self, from: usize, frame: &Frame) {
        let Some(link) = &mut self.links[from] else { return };
        let (at, bytes) = (frame.tag as usize, frame.bytes as usize);
        let is_next = |incoming: &&mut Incoming| {
            incoming.from == from && incoming.got == at && bytes <= incoming.asked.bytes - incoming.got
        };
        // Nobody waits any more for pieces of a receive that was given up.
        if let Some(incoming) = self.incoming.get_mut(&frame.id).filter(is_next) {
            // SAFETY: the receive's memory is its own, and the piece lies within.
            unsafe { link.payload(frame, incoming.asked.address.add(at), bytes) };
            incoming.got += bytes;
            link.next();
            if incoming.got == incoming.asked.bytes
                && let Some(Incoming { asked, .. }) = self.incoming.remove(&frame.id)
            {
                self.finish(asked, Ok(from));
            }
        } else {
            link.next();
        }
    }

    /// A receive has its message, which was sent whole.
    fn received(&mut self, asked: Asked, from: usize, (bytes, data_type): (u64, Option<DataType>)) {
        let result = match mutant!("lengths-not-compared") || asked.fits(bytes, data_type) {
            true => Ok(from),
            false => Err(self.fate.differs(&asked, from, (bytes, data_type))),
        };
        self.finish(asked, result);
    }

    /// A receive has a message that waits at its sender.
    fn take_offer(&mut self, from: usize, offer: Frame, address: u64, asked: Asked) {
        if !asked.fits(offer.bytes, offer.data_type) && !mutant!("long-lengths-not-compared") {
            let error = self.fate.differs(&asked, from, (offer.bytes, offer.data_type));
            self.close_offer(from, offer.id, Verdict::Differs, asked, Err(error));
        } else if asked.bytes == 0 {
            self.close_offer(from, offer.id, Verdict::Received, asked, Ok(from));
        } else if self.is_read(&asked) || from == self.fate.rank {
            let process = (from != self.fate.rank).then(|| self.processes[from].clone());
            let threads = self.readers.map_or(1, |readers| readers.threads);
            self.readings.push_back(Reading::new(asked, from, process, (offer.id, address), threads));
        } else {
            let frame = Frame::new(Kind::Accept, asked.bytes, asked.id, offer.id);
            self.incoming.insert(asked.id, Incoming { asked, from, got: 0 });
            self.outboxes[from].answers.push_back(Answer { frame, ends: None });
            self.flush(from);
        }
    }

    /// Whether the message for a receive is read where it lies.
    fn is_read(&self, asked: &Asked) -> bool {
        self.readers.is_some_and(|readers| asked.bytes >= readers.bytes_min)
    }

    /// Tells the sender of an offer what has become of it, and then that its receive is over.
    pub(super) fn close_offer(
        &mut self,
        from: usize,
        offer: u64,
        verdict: Verdict,
        receive: Asked,
        result: Result<usize, Error>,
    ) {
        if from != self.fate.rank {
            let frame = Frame::over(offer, verdict, receive.bytes).of_type(receive.data_type);
            self.outboxes[from].answers.push_back(Answer { frame, ends: Some((receive, result)) });
            return self.flush(from);
        }
        if let Some(send) = self.offered.remove(&offer) {
            let result = match verdict {
                Verdict::Differs => {
                    Err(self.fate.differs(&send, from, (receive.bytes as u64, receive.data_type)))
                }
                Verdict::Received | Verdict::Unreadable => Ok(from),
            };
            self.finish(send, result);
        }
        self.finish(receive, result);
    }

    /// A message to this rank itself: copied if it is short, or offered.
    fn send_to_self(&mut self, asked: Asked) {
        let found = Found { from: self.fate.rank, tag: asked.tag };
        let (id, address, bytes) = (asked.id, asked.address as u64, asked.bytes as u64);
        let data_type = asked.data_type;
        if let Some(receive) = self.matching.receive_for(found) {
            self.offered.insert(id, asked);
            let offer = Frame::new(Kind::Offer, bytes as usize, found.tag, id).of_type(data_type);
            return self.take_offer(found.from, offer, address, receive);
        }
        if asked.bytes <= OWN_BYTES_MAX {
            let mut message = vec![0; asked.bytes].into_boxed_slice();
            // SAFETY: the sender's memory has so many bytes, which nobody writes; the message is new.
            unsafe { std::ptr::copy_nonoverlapping(asked.address, message.as_mut_ptr(), asked.bytes) };
            self.matching.keep_message(found, Message::Whole { message, data_type });
            return self.finish(asked, Ok(found.from));
        }
        self.offered.insert(id, asked);
        self.matching.keep_message(found, Message::Offer { id, address, bytes, data_type });
    }
}

/// Frames that are taken of one rank before others have their turn.
const DRAINED_MAX: usize = 16;
/// Messages of a rank to itself that are copied rather than kept waiting.
const OWN_BYTES_MAX: usize = 256;
