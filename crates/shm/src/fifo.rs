//! Messages from one lane of one rank to one lane of another: one producer, one consumer, `depth` slots.
//!
//! ```text
//! slots     [ line .. ][ line .. ][ line .. ]    written by the sender: flag, and a packet's payload
//! released  [ line ]                             written by the receiver: the last message whose slot is free again
//! ```
//!
//! Messages are numbered from 1 in the order they are sent; message `s` of a FIFO that started at 1 uses slot
//! `(s - 1) % depth`. Each end counts for itself which message is its next, and shares only what it has finished.
//!
//! A slot belongs to the sender from the moment it has seen the message before it there released until it publishes the
//! next one, and to the receiver from the moment it has seen that flag until it releases it. *Belongs* covers the slot's
//! lines and the bulk memory which the executor keeps for the message in it: the executor finishes writing it before
//! [`Sender::publish`], and finishes reading it before [`Receiver::release`].
//!
//! Why that is sound: ownership passes by two edges only. The flag is stored with release after the payload and loaded
//! with acquire before it (`Edge::Arrival`), so the receiver reads what was sent. `released` is stored with release
//! after the last read and loaded with acquire before the next write (`Edge::Credit`), so the sender overwrites only
//! what has been read. A slot's flag holds one of two sequences, the awaited one or an earlier one, because the sender
//! cannot be a whole round ahead; so the receiver tests for equality.
//!
//! Exactly `depth` messages can be in flight, never more and never fewer: plans are proved free of deadlock for the
//! depth they declare. So a release is visible at once and never batched. What the sender saves is loads: it keeps
//! the last `released` that it saw and loads it again only when that says that all slots are taken, so the line with the credits
//! travels about once in `depth` messages when the receiver keeps up.
//!
//! Two protocols share the slots, message by message:
//! - *Simple*: the payload is in bulk memory, the flag is in the slot's first line.
//! - *Packet*: the payload is in the slot's lines, seven words each, and every line carries the flag. Fifty-six bytes
//!   are one cache line's travel, and the receiver may read early lines while late ones are still being written.
//!
//! Deliberately absent: waiting ([`crate::wait`]), bulk memory, and any way to send without a credit.

use crate::line::{Line, PAYLOAD_WORDS, Poll, Word, distance};
use crate::sync::Edge;

/// The first sequence of a FIFO in fresh memory.
const FIRST: u32 = 1;

/// The most messages that may be in flight.
pub const DEPTH_MAX: usize = 1 << 16;

/// The end that sends.
#[derive(Debug)]
pub struct Sender<'a> {
    end: End<'a>,
    /// The last `released` seen: what the receiver has freed at least.
    released: u32,
}

/// The end that receives.
#[derive(Debug)]
pub struct Receiver<'a> {
    end: End<'a>,
}

impl<'a> Sender<'a> {
    /// The sending end over `slots`, which are divided evenly into `depth` slots. There may be one at a time.
    ///
    /// # Panics
    ///
    /// If `depth` is 0 or more than [`DEPTH_MAX`], or if it does not divide the lines.
    pub fn new(slots: &'a [Line], released: &'a Line, depth: usize) -> Sender<'a> {
        Sender { end: End::new(slots, released, depth), released: FIRST.wrapping_sub(1) }
    }

    /// Starts at message `sequence` instead, over lines for which [`start_at`] was called.
    #[must_use]
    pub fn starting_at(self, sequence: u32) -> Sender<'a> {
        Sender { end: self.end.starting_at(sequence), released: sequence.wrapping_sub(1) }
    }

    /// Whether the next slot is this end's to write.
    #[inline]
    pub fn has_credit(&mut self) -> bool {
        self.cache_has_credit() || {
            self.released = self.end.released.load(Edge::Credit).sequence;
            self.cache_has_credit()
        }
    }

    /// The slot of the next message: where its bulk payload goes.
    #[inline]
    pub fn slot(&self) -> usize {
        self.end.slot
    }

    /// The line whose change brings a credit, to sleep on.
    #[inline]
    pub fn credit_line(&self) -> &'a Line {
        self.end.released
    }

    /// Hands the next slot to the receiver: its bulk payload is written. There must be a credit.
    ///
    /// Returns the line on which the receiver may be asleep, for [`crate::wait::Waiter::wake`].
    #[inline]
    #[must_use = "the receiver may be asleep on this line"]
    pub fn publish(&mut self, signature: u32) -> &'a Line {
        self.check_credit();
        let line = self.end.first_line();
        line.store(self.end.word(signature), Edge::Arrival);
        self.end.advance();
        line
    }

    /// Sends `payload` inside the next slot's lines. There must be a credit.
    ///
    /// Returns the line on which the receiver may be asleep, for [`crate::wait::Waiter::wake`].
    ///
    /// # Panics
    ///
    /// If the payload has more words than the slot's lines.
    #[inline]
    #[must_use = "the receiver may be asleep on this line"]
    pub fn publish_packet(&mut self, signature: u32, payload: &[u64]) -> &'a Line {
        self.check_credit();
        let word = self.end.word(signature);
        if payload.len() <= PAYLOAD_WORDS {
            let line = self.end.first_line();
            line.write_payload(payload);
            line.store(word, Edge::Arrival);
            self.end.advance();
            return line;
        }
        let lines = self.end.packet_lines(payload.len());
        let mut rest = payload;
        for line in lines {
            let (here, later) = rest.split_at(rest.len().min(PAYLOAD_WORDS));
            line.write_payload(here);
            line.store(word, Edge::Arrival);
            rest = later;
        }
        self.end.advance();
        &lines[0]
    }

    #[inline]
    fn cache_has_credit(&self) -> bool {
        let in_flight = self.end.sequence.wrapping_sub(1).wrapping_sub(self.released);
        debug_assert!(in_flight as usize <= self.end.depth, "more messages were released than sent");
        (in_flight as usize) < self.end.depth
    }

    #[inline]
    fn check_credit(&self) {
        debug_assert!(self.cache_has_credit(), "published without asking for a credit");
        debug_assert!(self.end.distance_to_slot() < 0, "the slot holds a message from the future");
    }
}

impl<'a> Receiver<'a> {
    /// The receiving end over `slots`, which are divided evenly into `depth` slots. There may be one at a time.
    ///
    /// # Panics
    ///
    /// If `depth` is 0 or more than [`DEPTH_MAX`], or if it does not divide the lines.
    pub fn new(slots: &'a [Line], released: &'a Line, depth: usize) -> Receiver<'a> {
        Receiver { end: End::new(slots, released, depth) }
    }

    /// Starts at message `sequence` instead, over lines for which [`start_at`] was called.
    #[must_use]
    pub fn starting_at(self, sequence: u32) -> Receiver<'a> {
        Receiver { end: self.end.starting_at(sequence) }
    }

    /// Whether the next message's flag is here. If so, and it was sent by [`Sender::publish`], its bulk payload may be
    /// read.
    #[inline]
    pub fn poll(&self, signature: u32) -> Poll {
        self.end.first_line().poll(self.end.word(signature), Edge::Arrival)
    }

    /// Reads a packet of `into.len()` words, if all of its lines are here. Unless it is ready, what `into` holds is
    /// unspecified. The message stays until it is released.
    ///
    /// # Panics
    ///
    /// If more words are wanted than fit into a packet.
    #[inline]
    pub fn take_packet(&self, signature: u32, into: &mut [u64]) -> Poll {
        let word = self.end.word(signature);
        if into.len() <= PAYLOAD_WORDS {
            let line = self.end.first_line();
            let poll = line.poll(word, Edge::Arrival);
            if poll == Poll::Ready {
                line.read_payload(into);
            }
            return poll;
        }
        let lines = self.end.packet_lines(into.len());
        let mut rest = into;
        for line in lines {
            match line.poll(word, Edge::Arrival) {
                Poll::Ready => {}
                other => return other,
            }
            let (here, later) = rest.split_at_mut(rest.len().min(PAYLOAD_WORDS));
            line.read_payload(here);
            rest = later;
        }
        Poll::Ready
    }

    /// The slot of the next message: where its bulk payload is.
    #[inline]
    pub fn slot(&self) -> usize {
        self.end.slot
    }

    /// The line whose change brings the next message: what to sleep on.
    #[inline]
    pub fn arrival_line(&self) -> &'a Line {
        self.end.first_line()
    }

    /// Gives the message's slot back to the sender: everything in it has been read. It must have arrived.
    ///
    /// Returns the line on which the sender may be asleep, for [`crate::wait::Waiter::wake`].
    #[inline]
    #[must_use = "the sender may be asleep on this line"]
    pub fn release(&mut self) -> &'a Line {
        debug_assert!(self.end.distance_to_slot() == 0, "released a message that has not arrived");
        self.end.released.store(self.end.word(0), Edge::Credit);
        self.end.advance();
        self.end.released
    }
}

/// Makes lines what fresh memory would be if FIFOs started at `sequence`: every slot holds the message before it, and
/// that one is released. For lines that neither end uses yet.
pub fn start_at(slots: &[Line], released: &Line, sequence: u32) {
    let before = Word { sequence: sequence.wrapping_sub(1), signature: 0 };
    for line in slots {
        line.store(before, Edge::Arrival);
    }
    released.store(before, Edge::Credit);
}

/// The state of both ends: the lines, and the number of the next message.
#[derive(Debug)]
struct End<'a> {
    slots: &'a [Line],
    released: &'a Line,
    depth: usize,
    lines_per_slot: usize,
    /// The next message.
    sequence: u32,
    /// Its slot. Counted, not computed: a wrapping sequence has no remainder to go by.
    slot: usize,
}

impl<'a> End<'a> {
    fn new(slots: &'a [Line], released: &'a Line, depth: usize) -> End<'a> {
        assert!(
            (1..=DEPTH_MAX).contains(&depth),
            "a FIFO of depth {depth}: it must be from 1 to {DEPTH_MAX}"
        );
        assert!(
            !slots.is_empty() && slots.len().is_multiple_of(depth),
            "{} lines do not divide into {depth} slots",
            slots.len()
        );
        End { slots, released, depth, lines_per_slot: slots.len() / depth, sequence: FIRST, slot: 0 }
    }

    fn starting_at(self, sequence: u32) -> End<'a> {
        End { sequence, slot: 0, ..self }
    }

    #[inline]
    fn word(&self, signature: u32) -> Word {
        Word { sequence: self.sequence, signature }
    }

    #[inline]
    fn first_line(&self) -> &'a Line {
        &self.slots[self.slot * self.lines_per_slot]
    }

    /// The lines of the next message if it is a packet; one even if it has no payload.
    #[inline]
    fn packet_lines(&self, words: usize) -> &'a [Line] {
        let lines = words.div_ceil(PAYLOAD_WORDS).max(1);
        assert!(
            lines <= self.lines_per_slot,
            "{words} words do not fit into a slot of {} lines",
            self.lines_per_slot
        );
        &self.slots[self.slot * self.lines_per_slot..][..lines]
    }

    /// How far what the next slot holds is past the next message; negative if it is an earlier one.
    #[inline]
    fn distance_to_slot(&self) -> i32 {
        distance(self.first_line().load(Edge::Arrival).sequence, self.sequence)
    }

    #[inline]
    fn advance(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        self.slot = if self.slot + 1 == self.depth { 0 } else { self.slot + 1 };
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const CALL: u32 = 0xca11;

    fn lines(count: usize) -> Vec<Line> {
        (0..count).map(|_| Line::new()).collect()
    }

    #[test]
    fn exactly_depth_messages_are_in_flight() {
        for depth in [1, 2, 7] {
            for first in [1, u32::MAX - 3, u32::MAX, 0] {
                let (slots, released) = (lines(depth), Line::new());
                start_at(&slots, &released, first);
                let mut sender = Sender::new(&slots, &released, depth).starting_at(first);
                let mut receiver = Receiver::new(&slots, &released, depth).starting_at(first);
                for _ in 0..depth {
                    assert!(sender.has_credit());
                    let _ = sender.publish(CALL);
                }
                for _ in 0..20 {
                    assert!(!sender.has_credit(), "depth {depth}, started at {first}");
                    assert_eq!(receiver.poll(CALL), Poll::Ready);
                    assert_eq!(
                        receiver.slot(),
                        sender.slot(),
                        "the oldest message's slot is the next to be written"
                    );
                    let _ = receiver.release();
                    assert!(sender.has_credit());
                    let _ = sender.publish(CALL);
                }
                for _ in 0..depth {
                    assert_eq!(receiver.poll(CALL), Poll::Ready);
                    let _ = receiver.release();
                }
                assert_eq!(receiver.poll(CALL), Poll::Pending);
            }
        }
    }

    #[test]
    fn packets_fill_as_many_lines_as_they_need() {
        for words in [0, 1, 6, 7, 8, 14, 15, 21] {
            let (slots, released) = (lines(6), Line::new());
            let mut sender = Sender::new(&slots, &released, 2);
            let mut receiver = Receiver::new(&slots, &released, 2);
            for round in 0..5 {
                let sent: Vec<u64> = (0..words as u64).map(|word| word + 100 * round).collect();
                let mut got = vec![0; words];
                assert_eq!(receiver.take_packet(CALL, &mut got), Poll::Pending);
                assert!(sender.has_credit());
                let line = sender.publish_packet(CALL, &sent);
                assert!(std::ptr::eq(line, receiver.arrival_line()));
                assert_eq!(receiver.take_packet(CALL, &mut got), Poll::Ready);
                assert_eq!(got, sent);
                let _ = receiver.release();
            }
        }
    }

    #[test]
    fn a_packet_is_ready_when_its_last_line_is() {
        let (slots, released) = (lines(2), Line::new());
        let receiver = Receiver::new(&slots, &released, 1);
        let word = Word { sequence: 1, signature: CALL };
        slots[0].store(word, Edge::Arrival);
        assert_eq!(receiver.take_packet(CALL, &mut [0; 7]), Poll::Ready);
        assert_eq!(receiver.take_packet(CALL, &mut [0; 8]), Poll::Pending);
        slots[1].store(word, Edge::Arrival);
        assert_eq!(receiver.take_packet(CALL, &mut [0; 8]), Poll::Ready);
    }

    #[test]
    fn another_call_is_a_mismatch() {
        let (slots, released) = (lines(1), Line::new());
        let mut sender = Sender::new(&slots, &released, 1);
        let receiver = Receiver::new(&slots, &released, 1);
        assert!(sender.has_credit());
        let _ = sender.publish_packet(CALL, &[1]);
        assert_eq!(receiver.poll(CALL + 1), Poll::Mismatch { found: CALL });
        assert_eq!(receiver.take_packet(CALL + 1, &mut [0]), Poll::Mismatch { found: CALL });
        assert_eq!(receiver.poll(CALL), Poll::Ready);
    }

    #[test]
    #[should_panic(expected = "8 words do not fit into a slot of 1 lines")]
    fn a_packet_too_long_is_refused() {
        let (slots, released) = (lines(2), Line::new());
        let mut sender = Sender::new(&slots, &released, 2);
        assert!(sender.has_credit());
        let _ = sender.publish_packet(CALL, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "3 lines do not divide into 2 slots")]
    fn uneven_slots_are_refused() {
        let _ = Receiver::new(&lines(3), &Line::new(), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "without asking for a credit")]
    fn publishing_without_a_credit_is_caught() {
        let (slots, released) = (lines(1), Line::new());
        let mut sender = Sender::new(&slots, &released, 1);
        let _ = sender.publish(CALL);
        let _ = sender.publish(CALL);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "has not arrived")]
    fn releasing_too_early_is_caught() {
        let (slots, released) = (lines(1), Line::new());
        let _ = Receiver::new(&slots, &released, 1).release();
    }
}
