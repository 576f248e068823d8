//! The two rings between this rank and another of its host.
//!
//! A ring is a [FIFO](weftlink_shm::fifo) whose messages are [frames](Frame), each with bulk memory beside it, and one more
//! [counter](Counter): how much of what was sent ahead the receiver has taken. There is no other protocol here than
//! those of FIFOs and counters: each end is used under the lock of its endpoint.

// Copies between the caller's memory and what is mapped.
#![allow(unsafe_code)]

use weftlink_kernels::{Access, Kernel};
use weftlink_shm::counter::Counter;
use weftlink_shm::fifo::{Receiver, Sender};
use weftlink_shm::line::{Line, PAYLOAD_WORDS, Poll};
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::sync::Ordering;
use weftlink_shm::wait::Waiter;

use super::frame::{Frame, INLINE_BYTES};
use super::layout::Layout;
use crate::transport::lines_at;

/// What every flag of a endpoint's rings says beside its number.
const SIGNATURE: u32 = 0x706f_7374;
/// How payload is put into a ring, and taken out of it.
const TO_PEERS: Access = Access { streamed: 0, from_peers: false, to_peers: true, migratory: false };
const FROM_PEERS: Access = Access { streamed: 0, from_peers: true, to_peers: false, migratory: false };

/// This rank's ends of both rings.
pub(super) struct Ring {
    outward: Sender<'static>,
    outward_bulk: *mut u8,
    inward: Receiver<'static>,
    inward_bulk: *const u8,
    bulk_bytes: usize,
    copy: Kernel,
    /// Where the other rank says what it has taken, and where this one does.
    taken_there: Counter<'static>,
    taken_here: Counter<'static>,
    bell: Bell,
    /// Something has changed that the other may be asleep for.
    changed: bool,
}

/// How a rank is woken.
#[derive(Clone, Copy)]
pub(super) struct Bell {
    pub(super) line: &'static Line,
    pub(super) asleep: &'static Line,
}

impl Bell {
    pub(super) fn of(memory: &SharedMemory, layout: &Layout, rank: usize) -> Bell {
        let line = |at| &lines_at(memory, at, 1)[0];
        Bell { line: line(layout.bell(rank)), asleep: line(layout.asleep(rank)) }
    }

    /// Wakes its rank, if it is asleep. As with every wake, it may be missed by one that is just falling asleep, for a slice.
    #[inline]
    pub(super) fn ring(&self, waiter: &Waiter<'static>) {
        if self.asleep.flag().load(Ordering::Relaxed) != 0 {
            self.line.flag().fetch_add(1, Ordering::Relaxed);
            waiter.counted_by(self.asleep).wake(self.line);
        }
    }
}

impl Ring {
    /// The ends of the rank at a place of its host, to the one at another. There may be one at a time.
    pub(super) fn new(memory: &SharedMemory, layout: &Layout, me: usize, other: usize, copy: Kernel) -> Ring {
        let (outward, inward) = (layout.ring(me, other), layout.ring(other, me));
        let line = |at| &lines_at(memory, at, 1)[0];
        let frames = |at| lines_at(memory, at, layout.depth);
        // SAFETY: the layout's places are within the memory, which its endpoint keeps mapped for as long as it has rings.
        let bulk = |at| unsafe { memory.as_ptr().add(at) };
        Ring {
            outward: Sender::new(frames(outward.frames), line(outward.released), layout.depth),
            outward_bulk: bulk(outward.bulk),
            inward: Receiver::new(frames(inward.frames), line(inward.released), layout.depth),
            inward_bulk: bulk(inward.bulk),
            bulk_bytes: layout.bulk_bytes,
            copy,
            taken_there: Counter::new(line(outward.taken)),
            taken_here: Counter::new(line(inward.taken)),
            bell: Bell::of(memory, layout, other),
            changed: false,
        }
    }

    /// The most that one frame brings.
    pub(super) fn frame_bytes_max(&self) -> usize {
        self.bulk_bytes.max(INLINE_BYTES)
    }

    /// Whether a frame can be sent now.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        self.outward.has_credit()
    }

    /// What the other rank has taken of what was sent ahead.
    pub(super) fn taken(&self) -> u32 {
        self.taken_there.value()
    }

    /// Says what this rank has taken.
    pub(super) fn tell_taken(&mut self, taken: u32) {
        let _ = self.taken_here.publish(taken, 0);
        self.changed = true;
    }

    /// Sends a frame with its payload, for which there must be room.
    ///
    /// # Safety
    /// So many bytes can be read at the payload, and they are no more than a frame brings.
    #[inline]
    pub(super) unsafe fn send(&mut self, mut frame: Frame, payload: *const u8, bytes: usize) {
        debug_assert!(bytes <= self.frame_bytes_max(), "{bytes} bytes in a frame");
        if bytes > INLINE_BYTES {
            let target = self.outward_bulk.wrapping_add(self.outward.slot() * self.bulk_bytes);
            // SAFETY: the caller's promise; the slot's memory is this end's until it is published.
            unsafe { self.copy.combine(&[target], &[payload], bytes, TO_PEERS) };
        } else if bytes > 0 {
            // SAFETY: the caller's promise; the words have room for so many.
            unsafe { std::ptr::copy_nonoverlapping(payload, frame.inline.as_mut_ptr().cast(), bytes) };
        }
        let _ = self.outward.publish_packet(SIGNATURE, &frame.pack());
        self.changed = true;
    }

    /// The next frame, if it has come, as it was packed. It stays until it is [done with](Ring::next).
    #[inline]
    pub(super) fn arrived(&self) -> Option<[u64; PAYLOAD_WORDS]> {
        let mut words = [0; PAYLOAD_WORDS];
        (self.inward.take_packet(SIGNATURE, &mut words) == Poll::Ready).then_some(words)
    }

    /// Copies the payload of the frame that has come: what it says, but not more than a frame brings nor than there is room.
    ///
    /// # Safety
    /// So many bytes can be written at the target, and nobody else uses them.
    #[inline]
    pub(super) unsafe fn payload(&self, frame: &Frame, target: *mut u8, room: usize) {
        let bytes = (frame.bytes as usize).min(room);
        if frame.bytes as usize <= INLINE_BYTES {
            // SAFETY: the caller's promise; the words have so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(frame.inline.as_ptr().cast(), target, bytes) };
        } else {
            let source = self.inward_bulk.wrapping_add(self.inward.slot() * self.bulk_bytes);
            // SAFETY: the caller's promise; the slot has so much memory, which is this end's until it is released.
            unsafe { self.copy.combine(&[target], &[source], bytes.min(self.bulk_bytes), FROM_PEERS) };
        }
    }

    /// The frame that has come is done with.
    #[inline]
    pub(super) fn next(&mut self) {
        let _ = self.inward.release();
        self.changed = true;
    }

    /// Wakes the other rank if something has changed for it.
    #[inline]
    pub(super) fn tell(&mut self, waiter: &Waiter<'static>) {
        if std::mem::take(&mut self.changed) {
            self.bell.ring(waiter);
        }
    }
}
