//! The two ends of a FIFO between ranks on different hosts: what the sender has put out and the receiver has not read yet,
//! and what the receiver has got. Each end is used by its rank alone; what the other end did is told by frames.
//!
//! As in shared memory, exactly `depth` messages can be in flight: the sender keeps a message until it hears that it was
//! read, so a connection may take its time with it.

/// Where messages wait: `depth` places, message `s` in place `(s - 1) % depth`.
struct Slots {
    depth: u32,
    message_bytes_max: usize,
    bytes: Box<[u8]>,
    /// Signature and length of the message in each place.
    about: Box<[(u32, u32)]>,
}

impl Slots {
    fn new(depth: u32, message_bytes_max: usize) -> Slots {
        let bytes = vec![0; depth as usize * message_bytes_max].into();
        Slots { depth, message_bytes_max, bytes, about: vec![(0, 0); depth as usize].into() }
    }

    fn place(&self, sequence: u32) -> usize {
        (sequence.wrapping_sub(1) % self.depth) as usize
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
    /// The last message that the plan has put out, that is on its way, and that was read.
    put: u32,
    sent: u32,
    released: u32,
}

impl Outgoing {
    pub(super) fn new(fifo: u32, to: u32, depth: u32, message_bytes_max: usize) -> Outgoing {
        Outgoing { fifo, to, slots: Slots::new(depth, message_bytes_max), put: 0, sent: 0, released: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.put.wrapping_sub(self.released) < self.slots.depth
    }

    /// Where the next message goes. There must be room.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.slots.room(self.put.wrapping_add(1))
    }

    /// Puts the message out that is there.
    pub(super) fn put(&mut self, signature: u32, length: usize) {
        debug_assert!(self.has_room(), "a message without room");
        self.put = self.put.wrapping_add(1);
        let place = self.slots.place(self.put);
        self.slots.about[place] = (signature, length as u32);
    }

    /// The next message that should be on its way: its number, signature and payload.
    pub(super) fn next(&self) -> Option<(u32, u32, &[u8])> {
        let sequence = self.sent.wrapping_add(1);
        let about = self.slots.about[self.slots.place(sequence)];
        (self.sent != self.put).then(|| (sequence, about.0, self.slots.message(sequence)))
    }

    /// The payload of a message that is on its way.
    pub(super) fn message(&self, sequence: u32) -> &[u8] {
        self.slots.message(sequence)
    }

    pub(super) fn is_on_its_way(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// The other end has read all up to a message. False if that cannot be.
    pub(super) fn release(&mut self, sequence: u32) -> bool {
        let newly = sequence.wrapping_sub(self.released);
        let can = newly <= self.sent.wrapping_sub(self.released);
        if can {
            self.released = sequence;
        }
        can
    }
}

/// The end that receives.
pub(super) struct Incoming {
    pub(super) fifo: u32,
    pub(super) from: u32,
    slots: Slots,
    /// The last message that has come, that was read, and of which the other end knows that.
    arrived: u32,
    released: u32,
    told: u32,
}

/// What a message that is coming may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Next,
    /// One before it is still on another connection.
    Later,
    Wrong,
}

impl Incoming {
    pub(super) fn new(fifo: u32, from: u32, depth: u32, message_bytes_max: usize) -> Incoming {
        let slots = Slots::new(depth, message_bytes_max);
        Incoming { fifo, from, slots, arrived: 0, released: 0, told: 0 }
    }

    /// Whether a message with this number and length may come now.
    pub(super) fn turn(&self, sequence: u32, length: usize) -> Turn {
        let ahead = sequence.wrapping_sub(self.arrived);
        let in_flight = sequence.wrapping_sub(self.released);
        if length > self.slots.message_bytes_max || in_flight > self.slots.depth || ahead == 0 {
            Turn::Wrong
        } else if ahead == 1 {
            Turn::Next
        } else {
            Turn::Later
        }
    }

    /// Where the message that comes next goes.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.slots.room(self.arrived.wrapping_add(1))
    }

    /// The next message is complete.
    pub(super) fn arrive(&mut self, signature: u32, length: usize) {
        self.arrived = self.arrived.wrapping_add(1);
        let place = self.slots.place(self.arrived);
        self.slots.about[place] = (signature, length as u32);
    }

    /// The signature and payload of the oldest message that has not been read.
    pub(super) fn message(&self) -> Option<(u32, &[u8])> {
        let sequence = self.released.wrapping_add(1);
        let about = self.slots.about[self.slots.place(sequence)];
        (self.arrived != self.released).then(|| (about.0, self.slots.message(sequence)))
    }

    /// It has been read.
    pub(super) fn release(&mut self) {
        debug_assert!(self.arrived != self.released, "released a message that has not come");
        self.released = self.released.wrapping_add(1);
    }

    /// What the other end should be told: the last message that was read.
    pub(super) fn untold(&self) -> Option<u32> {
        (self.told != self.released).then_some(self.released)
    }

    pub(super) fn is_told(&mut self, sequence: u32) {
        self.told = sequence;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_depth_are_in_flight_and_they_stay_in_order() {
        let (mut out, mut into) = (Outgoing::new(0, 1, 3, 4), Incoming::new(0, 0, 3, 4));
        let mut expected = 0_u32;
        for number in 0_u32..100 {
            if !out.has_room() {
                while let Some((sequence, signature, payload)) = out.next() {
                    let payload = payload.to_vec();
                    assert_eq!(into.turn(sequence, 4), Turn::Next);
                    assert_eq!(into.turn(sequence, 5), Turn::Wrong);
                    into.room().copy_from_slice(&payload);
                    into.arrive(signature, 4);
                    out.is_on_its_way();
                }
                let (signature, payload) = into.message().unwrap();
                assert_eq!((signature, payload), (expected + 7, &expected.to_le_bytes()[..]));
                expected += 1;
                into.release();
                let read = into.untold().unwrap();
                assert!(out.release(read));
                into.is_told(read);
                assert_eq!(into.untold(), None);
            }
            out.room().copy_from_slice(&number.to_le_bytes());
            out.put(number + 7, 4);
        }
        assert_eq!(expected, 97);
        assert!(!out.release(200), "more than were sent");
    }

    #[test]
    fn a_message_out_of_turn_waits_and_an_old_one_is_wrong() {
        let mut into = Incoming::new(0, 0, 2, 4);
        assert_eq!(into.turn(2, 0), Turn::Later);
        assert_eq!(into.turn(3, 0), Turn::Wrong, "more than can be in flight");
        into.arrive(0, 0);
        assert_eq!(into.turn(1, 0), Turn::Wrong, "it came already");
        assert_eq!(into.turn(2, 0), Turn::Next);
    }
}
