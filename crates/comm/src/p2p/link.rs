//! The link between this rank and another: rings on the same host, connections to others.

// Passes addresses on.
#![allow(unsafe_code)]

use weftlink_p2p::{Frame, Kind};
use weftlink_shm::wait::Waiter;

use super::ring::Ring;
use super::wire::Wire;

/// This rank's end of the link to another.
pub(super) enum Link {
    Ring(Ring),
    Wire(Wire),
}

impl Link {
    /// The connection, if the peer is on another host.
    pub(super) fn wire(&self) -> Option<&Wire> {
        if let Link::Wire(wire) = self { Some(wire) } else { None }
    }

    /// The most payload that one frame carries.
    pub(super) fn frame_bytes_max(&self) -> usize {
        match self {
            Link::Ring(ring) => ring.frame_bytes_max(),
            Link::Wire(wire) => wire.frame_bytes_max(),
        }
    }

    /// Whether a frame can be sent now.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        match self {
            Link::Ring(ring) => ring.has_room(),
            Link::Wire(wire) => wire.has_room(),
        }
    }

    /// How much the peer has taken of what was sent eagerly, where it says so in a counter.
    #[inline]
    pub(super) fn taken_by_peer(&self) -> Option<u32> {
        match self {
            Link::Ring(ring) => Some(ring.taken()),
            Link::Wire(_) => None,
        }
    }

    /// Reports how much this rank has taken. False if there is no room for that now.
    pub(super) fn report_credit(&mut self, taken: u32) -> bool {
        match self {
            Link::Ring(ring) => ring.report_credit(taken),
            Link::Wire(wire) if wire.has_room() => {
                // SAFETY: no bytes are read.
                unsafe { wire.send(&Frame::new(Kind::Taken, taken as usize, 0, 0), std::ptr::null(), 0) };
            }
            Link::Wire(_) => return false,
        }
        true
    }

    /// Sends a frame with its payload, for which there must be room.
    ///
    /// # Safety
    /// The payload is readable for `bytes`, which are no more than a frame carries.
    #[inline]
    pub(super) unsafe fn send(&mut self, frame: Frame, payload: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Link::Ring(ring) => ring.send(frame, payload, bytes),
                Link::Wire(wire) => wire.send(&frame, payload, bytes),
            }
        }
    }

    /// The next frame, if one has arrived; `Some(None)` if it is malformed. It stays until [`Link::next`].
    #[inline]
    pub(super) fn arrived(&self) -> Option<Option<Frame>> {
        let words = match self {
            Link::Ring(ring) => ring.arrived()?,
            Link::Wire(wire) => wire.arrived()?,
        };
        Some(Frame::unpack(words))
    }

    /// Copies the payload of the frame that has arrived: as many bytes as it says, but no more than a frame carries or `room`.
    ///
    /// # Safety
    /// The target is writable for `room` bytes, and nobody else uses them.
    #[inline]
    pub(super) unsafe fn payload(&self, frame: &Frame, target: *mut u8, room: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Link::Ring(ring) => ring.payload(frame, target, room),
                Link::Wire(wire) => wire.payload(frame, target, room),
            }
        }
    }

    /// Releases the frame that has arrived.
    #[inline]
    pub(super) fn next(&mut self) {
        match self {
            Link::Ring(ring) => ring.next(),
            Link::Wire(wire) => wire.next(),
        }
    }

    /// Wakes the peer if something has changed for it.
    #[inline]
    pub(super) fn wake_peer(&mut self, waiter: &Waiter<'static>) {
        if let Link::Ring(ring) = self {
            ring.wake_peer(waiter);
        }
    }
}
