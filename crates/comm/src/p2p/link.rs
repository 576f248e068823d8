//! The way between this rank and another: rings on the same host, connections to others.
//!
//! A receiver takes every frame as soon as it looks, so that nothing waits behind a message that nobody wants yet. What bounds
//! the memory that this costs it is the sender, who sends no more than [`ALLOWANCE`] *ahead*, which is before it knows that what
//! it sent before was taken, and offers the rest.

// Passes addresses on.
#![allow(unsafe_code)]

use weftlink_shm::wait::Waiter;

use super::frame::{Frame, Kind};
use super::ring::Ring;
use super::wire::Wire;

/// How far a sender may be ahead of what its receiver has taken, in bytes.
const ALLOWANCE: u32 = 1 << 20;
/// What a message counts beside its bytes.
const MESSAGE_COST: u32 = 64;

/// This rank's end of the way to another.
pub(super) struct Link {
    way: Way,
    /// What was sent ahead, and what the other has taken of it, as last heard.
    sent: u32,
    taken_there: u32,
    /// What this rank has taken, and what it has said of it.
    taken: u32,
    taken_told: u32,
}

enum Way {
    Ring(Ring),
    Wire(Wire),
}

/// A frame that no rank of ours has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense;

impl Link {
    pub(super) fn of_ring(ring: Ring) -> Link {
        Link { way: Way::Ring(ring), sent: 0, taken_there: 0, taken: 0, taken_told: 0 }
    }

    pub(super) fn of_wire(wire: Wire) -> Link {
        Link { way: Way::Wire(wire), sent: 0, taken_there: 0, taken: 0, taken_told: 0 }
    }

    /// The connection, if the other rank is on another host.
    pub(super) fn wire(&self) -> Option<&Wire> {
        if let Way::Wire(wire) = &self.way { Some(wire) } else { None }
    }

    /// The most that one frame brings.
    pub(super) fn frame_bytes_max(&self) -> usize {
        match &self.way {
            Way::Ring(ring) => ring.frame_bytes_max(),
            Way::Wire(wire) => wire.frame_bytes_max(),
        }
    }

    /// Whether a frame can be sent now.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        match &mut self.way {
            Way::Ring(ring) => ring.has_room(),
            Way::Wire(wire) => wire.has_room(),
        }
    }

    /// Whether a message may be sent that nobody may have asked for yet; then it is counted as sent.
    #[inline]
    pub(super) fn may_send_ahead(&mut self, bytes: usize) -> bool {
        let cost = bytes as u32 + MESSAGE_COST;
        let ahead = |link: &Link| link.sent.wrapping_sub(link.taken_there).wrapping_add(cost);
        if ahead(self) > ALLOWANCE
            && let Way::Ring(ring) = &self.way
        {
            self.taken_there = ring.taken();
        }
        let fits = ahead(self) <= ALLOWANCE;
        if fits {
            self.sent = self.sent.wrapping_add(cost);
        }
        fits
    }

    /// Sends a frame with its payload, for which there must be room.
    ///
    /// # Safety
    /// So many bytes can be read at the payload, and they are no more than a frame brings.
    #[inline]
    pub(super) unsafe fn send(&mut self, frame: Frame, payload: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match &mut self.way {
                Way::Ring(ring) => ring.send(frame, payload, bytes),
                Way::Wire(wire) => wire.send(&frame, payload, bytes),
            }
        }
    }

    /// Sends a frame as it is.
    #[inline]
    pub(super) fn send_bare(&mut self, frame: &Frame) {
        // SAFETY: no bytes are read.
        unsafe { self.send(*frame, std::ptr::null(), 0) };
    }

    /// The next frame, if it has come. It stays until it is [done with](Link::next).
    #[inline]
    pub(super) fn arrived(&self) -> Option<Result<Frame, Nonsense>> {
        let words = match &self.way {
            Way::Ring(ring) => ring.arrived()?,
            Way::Wire(wire) => wire.arrived()?,
        };
        Some(Frame::unpack(words).ok_or(Nonsense))
    }

    /// Copies the payload of the frame that has come: what it says, but not more than a frame brings nor than there is room.
    ///
    /// # Safety
    /// So many bytes can be written at the target, and nobody else uses them.
    #[inline]
    pub(super) unsafe fn payload(&self, frame: &Frame, target: *mut u8, room: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.way {
                Way::Ring(ring) => ring.payload(frame, target, room),
                Way::Wire(wire) => wire.payload(frame, target, room),
            }
        }
    }

    /// The frame that has come is done with.
    #[inline]
    pub(super) fn next(&mut self) {
        match &mut self.way {
            Way::Ring(ring) => ring.next(),
            Way::Wire(wire) => wire.next(),
        }
    }

    /// A message that was sent ahead has left this rank's memory. The sender is told now and then.
    #[inline]
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.wrapping_add(bytes as u32 + MESSAGE_COST);
        self.tell_taken();
    }

    fn tell_taken(&mut self) {
        if self.taken.wrapping_sub(self.taken_told) < ALLOWANCE / 4 {
            return;
        }
        match &mut self.way {
            Way::Ring(ring) => ring.tell_taken(self.taken),
            Way::Wire(wire) if wire.has_room() => {
                // SAFETY: no bytes are read.
                unsafe {
                    wire.send(&Frame::new(Kind::Taken, self.taken as usize, 0, 0), std::ptr::null(), 0)
                };
            }
            // Another time.
            Way::Wire(_) => return,
        }
        self.taken_told = self.taken;
    }

    /// The other rank says what it has taken.
    pub(super) fn heard_taken(&mut self, taken: u32) {
        self.taken_there = taken;
    }

    /// Wakes the other rank if something has changed for it.
    #[inline]
    pub(super) fn tell(&mut self, waiter: &Waiter<'static>) {
        match &mut self.way {
            Way::Ring(ring) => ring.tell(waiter),
            Way::Wire(_) => self.tell_taken(),
        }
    }
}
