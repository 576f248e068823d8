//! Messages that are read where they lie, by the thread whose turn it is, outside of the lock.

// Copies from other processes, and between buffers of this one.
#![allow(unsafe_code)]

use std::time::Instant;

use super::asked::Asked;
use super::frame::Verdict;
use super::state::State;
use crate::{reach, sync};

/// After so much it is looked whether there is still a reason to go on.
const PIECE_BYTES: usize = 4 << 20;

/// An offer that is to be read.
pub(super) struct Reading {
    pub(super) asked: Asked,
    pub(super) from: usize,
    /// The sender's process; none if that is this rank itself.
    pid: Option<u32>,
    /// The send, as its rank numbers them, and where its message lies.
    pub(super) offer: u64,
    address: u64,
    /// Why and when it could not be read.
    pub(super) failed: Option<(i32, Instant)>,
}

impl Reading {
    pub(super) fn new(asked: Asked, from: usize, pid: Option<u32>, offer: u64, address: u64) -> Reading {
        Reading { asked, from, pid, offer, address, failed: None }
    }

    /// Reads it, as long as `goes_on`.
    pub(super) fn read(&mut self, goes_on: impl Fn() -> bool) {
        let (target, bytes) = (self.asked.address, self.asked.bytes);
        let Some(pid) = self.pid else {
            // SAFETY: both ends are of callers of this rank, who have promised that so many bytes are there; the same place
            // may be sent and received.
            return unsafe { std::ptr::copy(self.address as *const u8, target, bytes) };
        };
        let mut at = 0;
        while at < bytes && goes_on() {
            let piece = PIECE_BYTES.min(bytes - at);
            // SAFETY: the target is the receive's alone, and the piece lies within.
            if let Err(error) = unsafe { reach::read(pid, self.address + at as u64, target.add(at), piece) } {
                self.failed = Some((error, Instant::now()));
                return;
            }
            at += piece;
        }
    }
}

impl State {
    /// A reading has ended.
    pub(super) fn has_read(&mut self, reading: Reading) {
        // What has been read means something only if nobody has taken it back by now, as the header of `state.rs` tells.
        sync::after_reading();
        if self.fate.is_over() {
            let error = self.fate.end_of(&reading.asked);
            return self.finish(reading.asked, Err(error));
        }
        if reading.pid.is_some() && self.fate.has_left(reading.from) {
            let error = self.fate.left(&reading.asked, reading.from);
            return self.finish(reading.asked, Err(error));
        }
        if reading.failed.is_some() {
            return self.unread.push(reading);
        }
        let Reading { asked, from, offer, .. } = reading;
        self.settle(from, offer, Verdict::Received, asked.bytes);
        self.finish(asked, Ok(from));
    }
}
