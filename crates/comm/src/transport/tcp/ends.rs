//! The two ends of a FIFO between ranks on different hosts: what the sender has put out and the receiver has not read yet,
//! and what the receiver has got. Only its rank uses an end; frames report the actions of the other end.
//!
//! As in shared memory, exactly `depth` messages can be in flight. A message that lies in memory which the sender may change
//! goes from there as far as the socket takes it at once, and only the rest is kept here. One that the receiver waits for may
//! come straight to where its step would copy it.

#![allow(unsafe_code)] // A place for a message may be an address in the caller's buffer.

/// Where messages wait: `depth` places, which are taken in turn.
///
/// Sequences wrap, and a wrapping sequence has no remainder to go by unless `depth` is a power of two. So places are counted from
/// `origin`, a message in the first place that is never more than `2 * depth` before the last one.
struct Slots {
    depth: u32,
    origin: u32,
    message_bytes_max: usize,
    bytes: Box<[u8]>,
    /// Signature and length of the message in each place.
    about: Box<[(u64, u32)]>,
}

impl Slots {
    fn new(depth: u32, message_bytes_max: usize) -> Slots {
        let bytes = vec![0; depth as usize * message_bytes_max].into();
        Slots { depth, origin: 1, message_bytes_max, bytes, about: vec![(0, 0); depth as usize].into() }
    }

    /// The slot of a message that is at most `depth` before or 1 after the one that was kept last.
    fn place(&self, sequence: u32) -> usize {
        (sequence.wrapping_sub(self.origin) % self.depth) as usize
    }

    /// Records the signature and length of the message in its slot: the successor of the one that was kept last.
    fn keep(&mut self, sequence: u32, signature: u64, length: usize) {
        let place = self.place(sequence);
        self.about[place] = (signature, length as u32);
        if sequence.wrapping_sub(self.origin) == 2 * self.depth {
            self.origin = self.origin.wrapping_add(self.depth);
        }
    }

    fn message(&self, sequence: u32) -> &[u8] {
        let place = self.place(sequence);
        let length = self.about[place].1 as usize;
        &self.bytes[place * self.message_bytes_max..][..length]
    }

    fn room(&mut self, sequence: u32) -> &mut [u8] {
        let (place, bytes) = (self.place(sequence), self.message_bytes_max);
        &mut self.bytes[place * bytes..][..bytes]
    }
}

/// The end that sends.
pub(super) struct Outgoing {
    pub(super) fifo: u32,
    pub(super) to: u32,
    slots: Slots,
    /// The last message that the plan has published, that was started, and that the peer has released.
    put: u32,
    sent: u32,
    released: u32,
}

impl Outgoing {
    pub(super) fn new(fifo: u32, to: u32, depth: u32, message_bytes_max: usize) -> Outgoing {
        Outgoing { fifo, to, slots: Slots::new(depth, message_bytes_max), put: 0, sent: 0, released: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.put.wrapping_sub(self.released) < self.slots.depth + u32::from(mutant!("one-message-too-many"))
    }

    /// Where to write the next message. There must be room.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.slots.room(self.put.wrapping_add(1))
    }

    /// Publishes the message that is there.
    pub(super) fn put(&mut self, signature: u64, length: usize) {
        debug_assert!(self.has_room(), "a message without room");
        self.put = self.put.wrapping_add(1);
        self.slots.keep(self.put, signature, length);
    }

    /// The next message to start: its number, signature and payload.
    pub(super) fn next(&self) -> Option<(u32, u64, &[u8])> {
        let sequence = self.sent.wrapping_add(1);
        let about = self.slots.about[self.slots.place(sequence)];
        (self.sent != self.put).then(|| (sequence, about.0, self.slots.message(sequence)))
    }

    /// The payload of a message that was started.
    pub(super) fn message(&self, sequence: u32) -> &[u8] {
        self.slots.message(sequence)
    }

    pub(super) fn is_on_its_way(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Whether all published messages were started.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.put
    }

    /// The number of the last published message.
    pub(super) fn last(&self) -> u32 {
        self.put
    }

    /// Copies the rest of the last published message, from a byte of it on.
    pub(super) fn keep(&mut self, payload: &[u8], from: usize) {
        self.slots.room(self.put)[from..payload.len()].copy_from_slice(&payload[from..]);
    }

    /// The connection that carries a message.
    pub(super) fn turn(&self, sequence: u32, streams: usize) -> usize {
        self.fifo.wrapping_add(sequence) as usize % streams.max(1)
    }

    /// The peer has released all messages up to one. False if that is impossible. A release may take any connection, so its
    /// successor, which includes it, may overtake it.
    pub(super) fn release(&mut self, sequence: u32) -> bool {
        let newly = sequence.wrapping_sub(self.released);
        let can = mutant!("release-of-the-unsent") || newly <= self.sent.wrapping_sub(self.released);
        if can {
            self.released = sequence;
        }
        can || (newly as i32) < 0
    }
}

/// The end that receives.
pub(super) struct Incoming {
    pub(super) fifo: u32,
    pub(super) from: u32,
    slots: Slots,
    /// The last message that has arrived, that was released, and whose release was reported.
    arrived: u32,
    released: u32,
    reported: u32,
    /// The destination of the next message if it is the expected one, and whether the one that is arriving is.
    expected: Option<Expected>,
    is_as_expected: bool,
    /// Where the oldest unreleased message lies, if it was received there.
    direct: Option<*const u8>,
}

/// The message that a step waits for, and where the step would copy it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) signature: u64,
    pub(super) length: usize,
    pub(super) place: *mut u8,
}

/// Whether an arriving message is in turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Next,
    /// An earlier one is still on another connection.
    Later,
    Wrong,
}

impl Incoming {
    pub(super) fn new(fifo: u32, from: u32, depth: u32, message_bytes_max: usize) -> Incoming {
        let slots = Slots::new(depth, message_bytes_max);
        let (arrived, released, reported) = (0, 0, 0);
        let (expected, is_as_expected, direct) = (None, false, None);
        Incoming { fifo, from, slots, arrived, released, reported, expected, is_as_expected, direct }
    }

    /// Whether a message with this number and length may arrive now.
    pub(super) fn turn(&self, sequence: u32, length: usize) -> Turn {
        let ahead = sequence.wrapping_sub(self.arrived);
        let in_flight = sequence.wrapping_sub(self.released);
        if length > self.slots.message_bytes_max
            || in_flight > self.slots.depth
            || ahead == 0 && !mutant!("old-messages-accepted")
        {
            Turn::Wrong
        } else if ahead == 1 {
            Turn::Next
        } else {
            Turn::Later
        }
    }

    /// The next message is received where a step would copy it, unless another has arrived: then the call fails, because the calls
    /// differ.
    ///
    /// # Safety
    /// The place is writable for that length, and nothing else uses it until the message is released or no longer expected.
    pub(super) unsafe fn expect(&mut self, expected: Expected) {
        if self.arrived == self.released {
            self.expected = Some(expected);
        }
    }

    /// Receives into slots again. A message that was partly received elsewhere is lost, which its checksum shows.
    pub(super) fn forget(&mut self) {
        (self.expected, self.is_as_expected, self.direct) = (None, false, None);
    }

    /// A message begins: decides where it is received.
    pub(super) fn begin(&mut self, signature: u64, length: usize) {
        let is_it = |expected: &Expected| {
            (mutant!("any-call-to-the-buffer") || expected.signature == signature)
                && expected.length == length
        };
        self.is_as_expected = self.expected.as_ref().is_some_and(is_it);
    }

    /// The destination of `length` bytes of the message that has begun.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        match self.expected {
            // SAFETY: the promise of `expect`'s caller; the message has that length, or it would not be received there.
            Some(expected) if self.is_as_expected => unsafe {
                std::slice::from_raw_parts_mut(expected.place, expected.length.min(length))
            },
            _ => &mut self.slots.room(self.arrived.wrapping_add(1))[..length],
        }
    }

    /// The next message is complete.
    pub(super) fn arrive(&mut self, signature: u64, length: usize) {
        self.arrived = self.arrived.wrapping_add(1);
        self.slots.keep(self.arrived, signature, length);
        let expected = self.expected.take().filter(|_| self.is_as_expected);
        // All before it were released, so it is the oldest.
        self.direct = expected.map(|expected| expected.place.cast_const()).or(self.direct);
        self.is_as_expected = false;
    }

    /// The signature, place and length of the oldest unreleased message.
    pub(super) fn message(&self) -> Option<(u64, *const u8, usize)> {
        if self.arrived == self.released {
            return None;
        }
        let sequence = self.released.wrapping_add(1);
        let (signature, length) = self.slots.about[self.slots.place(sequence)];
        Some((signature, self.direct.unwrap_or(self.slots.message(sequence).as_ptr()), length as usize))
    }

    /// Releases it.
    pub(super) fn release(&mut self) {
        debug_assert!(self.arrived != self.released, "released a message that has not arrived");
        self.released = self.released.wrapping_add(1);
        self.direct = self.direct.filter(|_| mutant!("place-kept-after-reading"));
    }

    /// Whether the sender may soon have to wait, because many releases are unreported.
    pub(super) fn is_pressing(&self) -> bool {
        2 * self.released.wrapping_sub(self.reported) > self.slots.depth
    }

    /// The release to report: the last released message.
    pub(super) fn unreported(&self) -> Option<u32> {
        (self.reported != self.released && !mutant!("credits-not-returned")).then_some(self.released)
    }

    pub(super) fn set_reported(&mut self, sequence: u32) {
        self.reported = sequence;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_depth_messages_are_in_flight_and_in_order() {
        let (mut out, mut into) = (Outgoing::new(0, 1, 3, 4), Incoming::new(0, 0, 3, 4));
        let mut expected = 0_u32;
        for number in 0_u32..100 {
            if !out.has_room() {
                while let Some((sequence, signature, payload)) = out.next() {
                    let payload = payload.to_vec();
                    assert_eq!(into.turn(sequence, 4), Turn::Next);
                    assert_eq!(into.turn(sequence, 5), Turn::Wrong);
                    into.begin(signature, 4);
                    into.room(4).copy_from_slice(&payload);
                    into.arrive(signature, 4);
                    out.is_on_its_way();
                }
                assert_eq!(read(&into), (u64::from(expected) + 7, expected.to_le_bytes().to_vec()));
                expected += 1;
                into.release();
                let read = into.unreported().unwrap();
                assert!(out.release(read));
                into.set_reported(read);
                assert_eq!(into.unreported(), None);
            }
            out.room().copy_from_slice(&number.to_le_bytes());
            out.put(u64::from(number) + 7, 4);
        }
        assert_eq!(expected, 97);
        assert!(!out.release(200), "more than were sent");
        assert!(out.release(90) && !out.has_room(), "a release that was overtaken changes nothing");
    }

    #[test]
    fn messages_keep_their_places_when_sequences_wrap() {
        for depth in 1..=9 {
            let before = 0_u32.wrapping_sub(3 * depth + 1);
            let (mut out, mut into) = (Outgoing::new(0, 1, depth, 4), Incoming::new(0, 0, depth, 4));
            (out.put, out.sent, out.released) = (before, before, before);
            (into.arrived, into.released, into.reported) = (before, before, before);
            for slots in [&mut out.slots, &mut into.slots] {
                slots.origin = before.wrapping_add(1);
            }
            let (mut put, mut seen) = (0_u32, 0_u32);
            while seen < 8 * depth {
                // As many in flight as possible: each has a slot of its own at both ends.
                while out.has_room() {
                    out.room().copy_from_slice(&put.to_le_bytes());
                    out.put(u64::from(put) + 7, 4);
                    put += 1;
                }
                while let Some((sequence, signature, payload)) = out.next() {
                    let payload = payload.to_vec();
                    assert_eq!(into.turn(sequence, 4), Turn::Next, "depth {depth}");
                    into.begin(signature, 4);
                    into.room(4).copy_from_slice(&payload);
                    into.arrive(signature, 4);
                    out.is_on_its_way();
                }
                // Some are released, so that the window starts anywhere.
                for _ in 0..1 + seen % depth {
                    assert_eq!(
                        read(&into),
                        (u64::from(seen) + 7, seen.to_le_bytes().to_vec()),
                        "depth {depth}"
                    );
                    seen += 1;
                    into.release();
                }
                assert!(out.release(into.unreported().unwrap()));
            }
            assert!(out.put < before, "the sequence has wrapped");
        }
    }

    fn read(into: &Incoming) -> (u64, Vec<u8>) {
        let (signature, place, length) = into.message().unwrap();
        // SAFETY: a message that has arrived lies there.
        (signature, unsafe { std::slice::from_raw_parts(place, length) }.to_vec())
    }

    #[test]
    fn only_the_expected_message_is_received_in_place() {
        let mut into = Incoming::new(0, 0, 4, 8);
        let mut place = [0_u8; 4];
        let address = place.as_mut_ptr();
        let come = |into: &mut Incoming, signature: u64, payload: &[u8], wait: bool| {
            if wait {
                let expected = Expected { signature: 7, length: 4, place: address };
                // SAFETY: the place outlives the end and is looked at only when all has come.
                unsafe { into.expect(expected) };
            }
            into.begin(signature, payload.len());
            let direct = into.room(payload.len()).as_ptr() == address.cast_const();
            into.room(payload.len()).copy_from_slice(payload);
            into.arrive(signature, payload.len());
            direct
        };
        assert!(come(&mut into, 7, &[1; 4], true));
        assert!(
            !come(&mut into, 7, &[2; 4], false),
            "the place is taken until the message there has been read"
        );
        assert_eq!(read(&into), (7, vec![1; 4]));
        into.release();
        assert_eq!(read(&into), (7, vec![2; 4]));
        into.release();
        assert!(!come(&mut into, 8, &[3; 4], true), "another call's");
        assert_eq!(read(&into), (8, vec![3; 4]));
        into.release();
        assert!(!come(&mut into, 7, &[4; 5], true), "of another length");
        assert_eq!(read(&into), (7, vec![4; 5]));
        into.release();
        assert!(come(&mut into, 7, &[5; 4], true));
        into.release();
        assert_eq!(place, [5; 4]);
    }

    #[test]
    fn early_messages_wait_and_old_ones_are_rejected() {
        let mut into = Incoming::new(0, 0, 2, 4);
        assert_eq!(into.turn(2, 0), Turn::Later);
        assert_eq!(into.turn(3, 0), Turn::Wrong, "more than can be in flight");
        into.arrive(0, 0);
        assert_eq!(into.turn(1, 0), Turn::Wrong, "it has arrived before");
        assert_eq!(into.turn(2, 0), Turn::Next);
    }
}
