//! What a rank shares with the others of its communicator, whatever the plan: headers, departures, the lines waits
//! need, windows.

// Lines and windows are places in mapped memory.
#![allow(unsafe_code)]

use crate::counter::Counter;
use crate::header::Header;
use crate::kernels::Kernel;
use crate::layout::LINE;
use crate::line::{Line, Poll};
use crate::memory::SharedMemory;
use crate::wait::{Stop, Waiter};

/// One rank's view of what all share.
pub(crate) struct Shared {
    /// Every rank's header.
    pub(crate) headers: Vec<Counter<'static>>,
    /// Every rank's word that it makes no more calls.
    pub(crate) departures: Vec<Counter<'static>>,
    pub(crate) waiter: Waiter<'static>,
    pub(crate) windows: Vec<WindowPlace>,
    pub(crate) sum: Kernel,
}

/// A window of symmetric memory: rank r's part is at `base + r * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPlace {
    pub(crate) base: *mut u8,
    pub(crate) stride: usize,
}

// SAFETY: the windows' addresses are valid for the communicator's lifetime, from any thread.
unsafe impl Send for Shared {}

/// A call as its rank makes it.
pub(crate) struct Call {
    pub(crate) header: Header,
    pub(crate) signature: u32,
    /// The number of the call in its communicator.
    pub(crate) number: u32,
    pub(crate) input: *const f32,
    pub(crate) output: *mut f32,
}

impl Shared {
    /// Publishes what this rank calls.
    #[inline]
    pub(crate) fn announce(&self, rank: usize, call: &Call) {
        let line = self.headers[rank].announce(call.number, call.signature, call.header.pack());
        self.waiter.wake(line);
    }

    /// Why a wait will never end: a rank that is in a call of the same number but not in the same call, or that has left
    /// before it made the call.
    #[cold]
    pub(crate) fn doubt(&self, call: &Call) -> Option<Stop> {
        let ranks = || self.headers.iter().zip(&self.departures);
        let mismatch = ranks().find_map(|(header, _)| {
            header.signature_at(call.number).filter(|&found| found != call.signature)
        });
        let left = || {
            // A rank's departure is looked at first: its last call was announced before it.
            let gone = |(header, departure): (&Counter<'_>, &Counter<'_>)| {
                departure.poll(1, 0, 1) == Poll::Ready
                    && header.poll(call.number, call.signature, call.number) == Poll::Pending
            };
            (0..).zip(ranks()).find(|&(_, rank)| gone(rank)).map(|(rank, _)| rank)
        };
        mismatch.map(|found| Stop::Mismatch { found }).or_else(|| left().map(|rank| Stop::Left { rank }))
    }

    /// A rank whose call of the same number is another one, and what it calls.
    pub(crate) fn other_call(&self, call: &Call) -> Option<(u32, Header)> {
        let differs = |header: &Counter<'_>| {
            header.signature_at(call.number).is_some_and(|found| found != call.signature)
        };
        let (rank, header) = (0..).zip(&self.headers).find(|(_, header)| differs(header))?;
        Some((rank, Header::unpack(header.announcement())))
    }
}

/// Lines in mapped memory, for as long as the engine keeps it mapped.
pub(crate) fn lines_at(memory: &SharedMemory, at: usize, count: usize) -> &'static [Line] {
    assert!(at.is_multiple_of(LINE) && at + count * LINE <= memory.len(), "lines lie within the memory");
    // SAFETY: the range is mapped and aligned, and all bit patterns are lines. The engine and the communicator drop what
    // they make of these lines before the memory.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().add(at).cast::<Line>(), count) }
}
