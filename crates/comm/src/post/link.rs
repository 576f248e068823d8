//! The two rings between this rank and another of its host.
//!
//! A ring is a [FIFO](crate::fifo) whose messages are [frames](Frame), each with bulk memory beside it, and one more
//! [counter](Counter): how much of what was sent without being asked for the receiver has *taken*. A receiver takes every frame
//! out of its ring as soon as it looks, so that nothing waits behind a message that nobody wants yet; what bounds the
//! memory that this costs it is the sender, who sends no more than [`ALLOWANCE`] ahead of what was taken, and offers the rest.
//!
//! There is no other protocol here than those of FIFOs and counters: each end is used under the lock of its post.

// Copies between the caller's memory and what is mapped.
#![allow(unsafe_code)]

use super::frame::{Frame, INLINE_BYTES};
use super::layout::Layout;
use crate::counter::Counter;
use crate::fifo::{Receiver, Sender};
use crate::foreign;
use crate::line::{Line, PAYLOAD_WORDS, Poll};
use crate::memory::SharedMemory;
use crate::shared::lines_at;
use crate::sync::Ordering;
use crate::wait::Waiter;

/// What every flag of a post's rings says beside its number.
const SIGNATURE: u32 = 0x706f_7374;
/// How far a sender may be ahead of what its receiver has taken, in bytes.
const ALLOWANCE: u32 = 1 << 20;
/// What a message counts beside its bytes.
const MESSAGE_COST: u32 = 64;

/// This rank's ends of both rings.
pub(super) struct Link {
    outward: Sender<'static>,
    outward_bulk: *mut u8,
    inward: Receiver<'static>,
    inward_bulk: *const u8,
    bulk_bytes: usize,
    /// What was sent without being asked for, what the other has taken of it, as last seen, and where it says so.
    sent: u32,
    taken_there: u32,
    taken_line: Counter<'static>,
    /// What this rank has taken, what it has said of it, and where it says so.
    taken: u32,
    taken_told: u32,
    own_taken_line: Counter<'static>,
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

impl Link {
    /// The ends of the rank at a place of its host, to the one at another. There may be one at a time.
    pub(super) fn new(memory: &SharedMemory, layout: &Layout, me: usize, other: usize) -> Link {
        let (outward, inward) = (layout.ring(me, other), layout.ring(other, me));
        let line = |at| &lines_at(memory, at, 1)[0];
        let frames = |at| lines_at(memory, at, layout.depth);
        // SAFETY: the layout's places are within the memory, which its post keeps mapped for as long as it has links.
        let bulk = |at| unsafe { memory.as_ptr().add(at) };
        Link {
            outward: Sender::new(frames(outward.frames), line(outward.released), layout.depth),
            outward_bulk: bulk(outward.bulk),
            inward: Receiver::new(frames(inward.frames), line(inward.released), layout.depth),
            inward_bulk: bulk(inward.bulk),
            bulk_bytes: layout.bulk_bytes,
            sent: 0,
            taken_there: 0,
            taken_line: Counter::new(line(outward.taken)),
            taken: 0,
            taken_told: 0,
            own_taken_line: Counter::new(line(inward.taken)),
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

    /// Whether a message may be sent that nobody may have asked for yet; then it is counted as sent.
    #[inline]
    pub(super) fn may_send_ahead(&mut self, bytes: usize) -> bool {
        let cost = bytes as u32 + MESSAGE_COST;
        if self.sent.wrapping_sub(self.taken_there).wrapping_add(cost) > ALLOWANCE {
            self.taken_there = self.taken_line.value();
        }
        let fits = self.sent.wrapping_sub(self.taken_there).wrapping_add(cost) <= ALLOWANCE;
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
    pub(super) unsafe fn send(&mut self, mut frame: Frame, payload: *const u8, bytes: usize) {
        debug_assert!(bytes <= self.frame_bytes_max(), "{bytes} bytes in a frame");
        if bytes <= INLINE_BYTES {
            if bytes > 0 {
                // SAFETY: the caller's promise; the words have room for so many.
                unsafe { std::ptr::copy_nonoverlapping(payload, frame.inline.as_mut_ptr().cast(), bytes) };
            }
        } else {
            let target = self.outward_bulk.wrapping_add(self.outward.slot() * self.bulk_bytes);
            // SAFETY: the caller's promise; the slot's memory is this end's until it is published.
            unsafe { foreign::copy(target, payload, bytes) };
        }
        self.send_bare(&frame);
    }

    /// Sends a frame as it is.
    #[inline]
    pub(super) fn send_bare(&mut self, frame: &Frame) {
        let _ = self.outward.publish_packet(SIGNATURE, &frame.pack());
        self.changed = true;
    }

    /// The next frame, if it has come. It stays until it is [done with](Link::next).
    #[inline]
    pub(super) fn arrived(&self) -> Option<Result<Frame, Nonsense>> {
        let mut words = [0; PAYLOAD_WORDS];
        match self.inward.take_packet(SIGNATURE, &mut words) {
            Poll::Ready => Some(Frame::unpack(words).ok_or(Nonsense)),
            _ => None,
        }
    }

    /// Copies the payload of the frame that has come: what it says, but not more than a frame brings nor than there is room.
    ///
    /// # Safety
    /// So many bytes can be written at the target, and nobody else uses them.
    #[inline]
    pub(super) unsafe fn payload(&self, frame: &Frame, target: *mut u8, room: usize) {
        let bytes = (frame.bytes as usize).min(room);
        if bytes <= INLINE_BYTES && frame.bytes as usize <= INLINE_BYTES {
            // SAFETY: the caller's promise; the words have so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(frame.inline.as_ptr().cast(), target, bytes) };
        } else {
            let source = self.inward_bulk.wrapping_add(self.inward.slot() * self.bulk_bytes);
            // SAFETY: the caller's promise; the slot has so much memory, which is this end's until it is released.
            unsafe { foreign::copy(target, source, bytes.min(self.bulk_bytes)) };
        }
    }

    /// The frame that has come is done with.
    #[inline]
    pub(super) fn next(&mut self) {
        let _ = self.inward.release();
        self.changed = true;
    }

    /// A message that was sent without being asked for has left this rank's memory. The sender is told now and then.
    #[inline]
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.wrapping_add(bytes as u32 + MESSAGE_COST);
        if self.taken.wrapping_sub(self.taken_told) >= ALLOWANCE / 4 {
            let _ = self.own_taken_line.publish(self.taken, 0);
            self.taken_told = self.taken;
            self.changed = true;
        }
    }

    /// Wakes the other rank if something has changed for it.
    #[inline]
    pub(super) fn tell(&mut self, waiter: &Waiter<'static>) {
        if std::mem::take(&mut self.changed) {
            self.bell.ring(waiter);
        }
    }
}

/// A frame that no rank of ours has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense;
