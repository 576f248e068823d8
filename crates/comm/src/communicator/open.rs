//! Windows as pooled memory: while a window is open, every rank may read and write the parts of all ranks, and signals order the
//! accesses.
//!
//! The part of a window that is not open belongs to its rank alone, as a slice. Opening and closing a window are calls of all ranks; in
//! between, ranks wait for nothing but signals. A rank that drops an open window (by an error or a panic) aborts the communicator on all
//! ranks and keeps a private copy of its part, as failed calls do.

// Copies between addresses in mapped memory.
#![allow(unsafe_code)]

use std::ops::Range;

use weftlink_bootstrap::{Failure, Reason};
use weftlink_plan::Collective;
use weftlink_recorder::header::{CallKind, Header};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::counter::Counter;
use weftlink_shm::line::Poll;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{AbortCode, Park, Stop};

use super::{Communicator, fit};
use crate::buffers::Buffers;
use crate::data::Data;
use crate::engine::Stopped;
use crate::error::Error;
use crate::failure::take_back;
use crate::racy_copy;
use crate::request::CallArgs;
use crate::shared::{Call, WaitRecord};
use crate::symmetric::Using;
use crate::transport::{LINE, lines_at};
use crate::window::Window;

/// The number of signals between each pair of ranks.
pub const SIGNALS: usize = 16;

/// A window that all ranks have opened: memory that each can read and write.
///
/// A read that races with a write returns old bytes, new bytes or a mixture. Signals order accesses: a rank that has waited for a signal
/// sees everything that the sender wrote before it.
///
/// ```
/// let got = weftlink_comm::on_threads(2, |mut comm| {
///     let mut window = comm.window::<u32>(4)?;
///     let (me, peer) = (comm.rank(), 1 - comm.rank());
///     comm.open(&mut window, |open| {
///         open.put(peer, 1, &[10 + me as u32, 20])?;
///         open.signal(peer, 0)?;
///         open.wait(peer, 0)
///     })?;
///     Ok(window.to_vec())
/// })?;
/// assert_eq!(got, [[0, 11, 20, 0], [0, 10, 20, 0]]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Debug)]
pub struct Open<'a, T: Data> {
    comm: &'a mut Communicator,
    window: &'a mut Window<T>,
    /// `None` once it is closed.
    using: Option<Using>,
}

/// The signals between all pairs of ranks, allocated when a window is first opened.
pub(super) struct Signals {
    counters: Vec<Counter<'static>>,
    /// The number of signals that this rank has sent to each rank, and received from each.
    sent: Vec<u32>,
    awaited: Vec<u32>,
    /// Unmapped last: the counters point into it.
    _memory: SharedMemory,
}

impl Communicator {
    /// Opens a window to all ranks, runs `work`, and closes it. All ranks call it; `work` starts when all have, and this returns when
    /// all are done. If `work` fails, so does the communicator, because peers may still be using the window.
    pub fn open<T: Data, R>(
        &mut self,
        window: &mut Window<T>,
        work: impl FnOnce(&mut Open<'_, T>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.usable()?;
        if window.owner() != self.identity {
            return Err(Error::Misuse("a window of another communicator cannot be opened here".to_owned()));
        }
        if self.spans_hosts {
            return Err(Error::Misuse("a window can be opened only if all ranks are on one host".to_owned()));
        }
        if self.signals.is_none() {
            let header = Header::allocating(CallKind::Window, 0, SIGNALS, (None, 1));
            let count = self.size * self.size * SIGNALS;
            let memory = self.share(header, count * LINE)?;
            let counters = lines_at(&memory, 0, count).iter().map(Counter::new).collect();
            let none = vec![0; self.size * SIGNALS];
            let signals = Signals { counters, sent: none.clone(), awaited: none, _memory: memory };
            self.signals = Some(Box::new(signals));
        }
        // If a call of another communicator took the window back, it has aborted this communicator, and opening fails.
        let using = Using::begin(&self.windows, [Some(window.number()), None]).unwrap_or_default();
        if let Err(error) = self.call(opening(window.number())) {
            drop(using);
            // A rank that learns of the failure later may have opened the window, and writes.
            if let Some(why) = &self.failed {
                let reached = [Some(window.number()), None];
                take_back(&self.shared, &self.windows, reached, (self.rank, self.identity), why);
            }
            return Err(error);
        }
        let mut open = Open { comm: self, window, using: Some(using) };
        let done = work(&mut open)?;
        open.close()?;
        Ok(done)
    }

    /// A barrier that matches only barriers with the same tag.
    fn tagged_barrier(&mut self, tag: u32) -> Result<(), Error> {
        self.call(CallArgs { tag, ..CallArgs::new(&Collective::Barrier, Buffers::none()) })
    }
}

pub(crate) const OPENS: u32 = 1;
pub(crate) const CLOSES: u32 = 2;

/// The call that opens a window.
fn opening(window: u16) -> CallArgs<'static> {
    CallArgs { tag: tag(window, OPENS), ..CallArgs::new(&Collective::Barrier, Buffers::none()) }
}

fn tag(window: u16, what: u32) -> u32 {
    u32::from(window) << 2 | what
}

impl<T: Data> Open<'_, T> {
    /// Writes elements into a rank's part, starting at element `at`.
    pub fn put(&mut self, rank: usize, at: usize, elements: &[T]) -> Result<(), Error> {
        let target = self.place(rank, at, elements.len())?;
        // SAFETY: the place is within the window, whose slice is borrowed while it is open.
        unsafe { racy_copy::copy(target.cast(), elements.as_ptr().cast(), size_of_val(elements)) };
        Ok(())
    }

    /// Reads elements from a rank's part, starting at element `at`.
    pub fn get(&self, rank: usize, at: usize, into: &mut [T]) -> Result<(), Error> {
        let source = self.place(rank, at, into.len())?;
        // SAFETY: the place is within the window; the target is the caller's. A race yields a mixture of bytes, which is a valid
        // value of plain data.
        unsafe { racy_copy::copy(into.as_mut_ptr().cast(), source.cast(), size_of_val(into)) };
        Ok(())
    }

    /// Copies elements of one rank's part to another's. The two ranges must not overlap.
    pub fn copy(
        &mut self,
        (from, source): (usize, Range<usize>),
        (to, target): (usize, usize),
    ) -> Result<(), Error> {
        let (length, start) = (source.len(), source.start);
        let overlap = from == to && start.abs_diff(target) < length;
        if overlap {
            let what =
                format!("cannot copy elements {source:?} of rank {from} to {target}: the ranges overlap");
            return Err(Error::Misuse(what));
        }
        let (source, target) = (self.place(from, start, length)?, self.place(to, target, length)?);
        // SAFETY: both places are within the window, whose slice is borrowed while it is open.
        unsafe { racy_copy::copy(target.cast(), source.cast(), length * size_of::<T>()) };
        Ok(())
    }

    /// Sends a signal to a rank. Once that rank has waited for it, it sees everything that this rank wrote before.
    pub fn signal(&mut self, rank: usize, number: usize) -> Result<(), Error> {
        let at = self.signal_place(rank, number)?;
        let (size, me) = (self.comm.size, self.comm.rank);
        let Some(signals) = &mut self.comm.signals else { unreachable!("allocated by open") };
        let sent = &mut signals.sent[at];
        *sent = sent.wrapping_add(1);
        let line = signals.counters[at * size + me].publish(*sent, 0);
        self.comm.shared.waiter.wake(line);
        Ok(())
    }

    /// Waits for the next signal of this number from a rank.
    pub fn wait(&mut self, rank: usize, number: usize) -> Result<(), Error> {
        let from = self.signal_place(rank, number)?;
        let to = self.signal_place(self.comm.rank, number)?;
        let size = self.comm.size;
        let Some(signals) = &mut self.comm.signals else { unreachable!("allocated by open") };
        let wanted = signals.awaited[from].wrapping_add(1);
        let counter = signals.counters[to * size + rank];
        let here = || if counter.has_reached(wanted) { Poll::Ready } else { Poll::Pending };
        let shared = &self.comm.shared;
        let check_peers = || {
            let left = shared.departures[rank].poll(1, 0, 1) == Poll::Ready && !counter.has_reached(wanted);
            left.then_some(Stop::Left { rank: rank as u32 })
        };
        let waiting = Waiting::Reached { rank: rank as u32, counter: number as u32 };
        let record = WaitRecord::new(shared, self.comm.calls, None, waiting);
        let waited = shared.waiter.wait_with_check(Park::Line(counter.line()), here, |waited| {
            record.poll(waited);
            check_peers()
        });
        record.end(waited.is_ok());
        match waited {
            Ok(()) => {
                signals.awaited[from] = wanted;
                Ok(())
            }
            Err(stop) => Err(self.fail(stop, rank as u32, number as u32)),
        }
    }

    /// Closes the window with all ranks.
    fn close(mut self) -> Result<(), Error> {
        let closed = self.comm.tagged_barrier(tag(self.window.number(), CLOSES));
        self.using = None;
        if let Err(error) = &closed {
            self.take_back(&Failure::from(error));
        }
        closed
    }

    /// Leaves this rank with a private copy of its part, after a failure. This rank no longer uses the window.
    fn take_back(&self, why: &Failure) {
        let Communicator { shared, windows, rank, identity, .. } = &*self.comm;
        take_back(shared, windows, [Some(self.window.number()), None], (*rank, *identity), why);
    }

    /// The number of elements of each rank's part.
    pub fn len(&self) -> usize {
        self.window.length()
    }

    /// Whether the parts are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn place(&self, rank: usize, at: usize, length: usize) -> Result<*mut T, Error> {
        let within = at.checked_add(length).is_some_and(|end| end <= self.len());
        if rank >= self.comm.size || !within {
            let (size, has) = (self.comm.size, self.len());
            return Err(Error::Misuse(format!(
                "elements {at}..{} of rank {rank} are out of range: there are {size} ranks with {has} elements each",
                at.saturating_add(length)
            )));
        }
        let window = self.comm.shared.windows[usize::from(self.window.number())];
        Ok(window.base.wrapping_add(rank * window.stride).cast::<T>().wrapping_add(at))
    }

    /// The index of the counts of a signal.
    fn signal_place(&self, rank: usize, number: usize) -> Result<usize, Error> {
        if rank >= self.comm.size || number >= SIGNALS {
            let size = self.comm.size;
            return Err(Error::Misuse(format!(
                "signal {number} of rank {rank} is out of range: there are {SIGNALS} signals and {size} ranks"
            )));
        }
        Ok(rank * SIGNALS + number)
    }

    #[cold]
    fn fail(&mut self, stop: Stop, rank: u32, counter: u32) -> Error {
        // The call that is still running is the opening.
        let request = opening(self.window.number());
        let fitted = match fit(&request, self.comm.caller()) {
            Ok(fitted) => fitted,
            Err(misuse) => return misuse,
        };
        let header = self.comm.header(&request, &fitted);
        let call = Call::without_buffers(&header, self.comm.calls, &Collective::Barrier);
        let stopped = Stopped { stop, step: None, waiting: Waiting::Reached { rank, counter } };
        self.using = None;
        self.comm.fail(&call, &stopped, [Some(self.window.number()), None])
    }
}

impl<T: Data> Drop for Open<'_, T> {
    fn drop(&mut self) {
        if self.using.take().is_none() {
            return;
        }
        let (rank, reason) = (self.comm.rank as u32, Reason::LeftOpen.code());
        self.comm.shared.waiter.abort(AbortCode { rank, reason });
        let why = Failure::own(rank, format!("rank {rank} dropped a window that was open"));
        self.comm.bootstrap.give_up(&why, rank, reason.get());
        self.take_back(&why);
        self.comm.failed = Some(why);
    }
}
