//! Windows as pooled memory: while a window is open, every rank reads and writes every rank's part as it likes, and tells
//! others by signals.
//!
//! A window that is not open is its rank's alone, as a slice. Opening it gives that up and is a call of all ranks; closing it
//! too. In between nothing is awaited but signals. A rank that loses its window without closing it (by an error or a panic)
//! ends the communicator for all and keeps a copy of its part that nobody else reaches, as calls that fail do.

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

use super::{Communicator, Request, fit};
use crate::buffers::Buffers;
use crate::data::Data;
use crate::engine::Stopped;
use crate::error::Error;
use crate::failure::take_back;
use crate::foreign;
use crate::shared::{Call, Noted};
use crate::symmetric::Using;
use crate::transport::{LINE, lines_at};
use crate::window::Window;

/// How many signals each rank can send to each other.
pub const SIGNALS: usize = 16;

/// A window that all ranks have opened: memory that each can read and write.
///
/// What is read while another rank writes it is old, new or a mixture of both. Signals put an order into it: what a rank
/// wrote before a signal is there for whoever has waited for that signal.
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
    /// None when it is closed.
    using: Option<Using>,
}

/// Every rank's signals to every other, once a window has been opened.
pub(super) struct Signals {
    counters: Vec<Counter<'static>>,
    /// How often this rank has signalled each rank, and waited for each.
    sent: Vec<u32>,
    awaited: Vec<u32>,
    /// Unmapped last: the counters point into it.
    _memory: SharedMemory,
}

impl Communicator {
    /// Opens a window for reading and writing by all ranks, does the work, and closes it. All ranks call it; it begins when
    /// all have, and returns when all are done. If the work fails, the communicator does: what peers are doing with the
    /// window is not known then.
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
            return Err(Error::Misuse(
                "a window is opened to ranks of one host, and these are on several".to_owned(),
            ));
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
        // If the window was taken back by a call of another communicator, it has aborted this one, and opening fails.
        let using = Using::begin(&self.windows, [Some(window.number()), None]).unwrap_or_default();
        if let Err(error) = self.run(opening(window.number())) {
            drop(using);
            // A rank that heard of the failure later may have found all there, and writes.
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

    /// A barrier that only meets barriers for the same purpose.
    fn tagged_barrier(&mut self, tag: u32) -> Result<(), Error> {
        self.run(Request { tag, ..Request::new(&Collective::Barrier, Buffers::none()) })
    }
}

pub(crate) const OPENS: u32 = 1;
pub(crate) const CLOSES: u32 = 2;

/// The call that opens a window.
fn opening(window: u16) -> Request<'static> {
    Request { tag: tag(window, OPENS), ..Request::new(&Collective::Barrier, Buffers::none()) }
}

fn tag(window: u16, what: u32) -> u32 {
    u32::from(window) << 2 | what
}

impl<T: Data> Open<'_, T> {
    /// Writes elements into a rank's part, from a place on.
    pub fn put(&mut self, rank: usize, at: usize, elements: &[T]) -> Result<(), Error> {
        let target = self.place(rank, at, elements.len())?;
        // SAFETY: the place is within the window, whose slice nobody has while it is open.
        unsafe { foreign::copy(target.cast(), elements.as_ptr().cast(), size_of_val(elements)) };
        Ok(())
    }

    /// Reads elements from a rank's part, from a place on.
    pub fn get(&self, rank: usize, at: usize, into: &mut [T]) -> Result<(), Error> {
        let source = self.place(rank, at, into.len())?;
        // SAFETY: the place is within the window; the target is the caller's. A mixture of values that ranks wrote is only
        // seen where the caller let them write at the same time, and plain data takes it.
        unsafe { foreign::copy(into.as_mut_ptr().cast(), source.cast(), size_of_val(into)) };
        Ok(())
    }

    /// Copies elements of one rank's part to another's. The two places must not overlap.
    pub fn copy(
        &mut self,
        (from, source): (usize, Range<usize>),
        (to, target): (usize, usize),
    ) -> Result<(), Error> {
        let (length, start) = (source.len(), source.start);
        let overlap = from == to && start.abs_diff(target) < length;
        if overlap {
            let what =
                format!("elements {source:?} of rank {from} overlap where they are copied to, {target}");
            return Err(Error::Misuse(what));
        }
        let (source, target) = (self.place(from, start, length)?, self.place(to, target, length)?);
        // SAFETY: both places are within the window, whose slice nobody has while it is open.
        unsafe { foreign::copy(target.cast(), source.cast(), length * size_of::<T>()) };
        Ok(())
    }

    /// Sends a rank a signal: what was written before, anywhere, is there for it once it has waited for this.
    pub fn signal(&mut self, rank: usize, number: usize) -> Result<(), Error> {
        let at = self.signal_place(rank, number)?;
        let (size, me) = (self.comm.size, self.comm.rank);
        let Some(signals) = &mut self.comm.signals else { unreachable!("opening makes them") };
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
        let Some(signals) = &mut self.comm.signals else { unreachable!("opening makes them") };
        let wanted = signals.awaited[from].wrapping_add(1);
        let counter = signals.counters[to * size + rank];
        let here = || if counter.has_reached(wanted) { Poll::Ready } else { Poll::Pending };
        let shared = &self.comm.shared;
        let doubt = || {
            let left = shared.departures[rank].poll(1, 0, 1) == Poll::Ready && !counter.has_reached(wanted);
            left.then_some(Stop::Left { rank: rank as u32 })
        };
        let waiting = Waiting::Reached { rank: rank as u32, counter: number as u32 };
        let noted = Noted::new(shared, self.comm.calls, None, waiting);
        let waited = shared.waiter.wait_doubting(Park::Line(counter.line()), here, |waited| {
            noted.again(waited);
            doubt()
        });
        noted.over(waited.is_ok());
        match waited {
            Ok(()) => {
                signals.awaited[from] = wanted;
                Ok(())
            }
            Err(stop) => Err(self.fail(stop, rank as u32, number as u32)),
        }
    }

    /// Closes the window, when all ranks do: it is this rank's again, as a slice.
    fn close(mut self) -> Result<(), Error> {
        let closed = self.comm.tagged_barrier(tag(self.window.number(), CLOSES));
        self.using = None;
        if let Err(error) = &closed {
            self.take_back(&Failure::from(error));
        }
        closed
    }

    /// Leaves this rank with a copy of its part, after a failure. It does not use the window any more.
    fn take_back(&self, why: &Failure) {
        let Communicator { shared, windows, rank, identity, .. } = &*self.comm;
        take_back(shared, windows, [Some(self.window.number()), None], (*rank, *identity), why);
    }

    /// How many elements each rank's part has.
    pub fn len(&self) -> usize {
        self.window.length()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn place(&self, rank: usize, at: usize, length: usize) -> Result<*mut T, Error> {
        let within = at.checked_add(length).is_some_and(|end| end <= self.len());
        if rank >= self.comm.size || !within {
            let (size, has) = (self.comm.size, self.len());
            return Err(Error::Misuse(format!(
                "{length} elements from {at} on of rank {rank}: there are {size} ranks with {has} elements each"
            )));
        }
        let window = self.comm.shared.windows[usize::from(self.window.number())];
        Ok(window.base.wrapping_add(rank * window.stride).cast::<T>().wrapping_add(at))
    }

    /// Where this rank counts the signals that it exchanges with another.
    fn signal_place(&self, rank: usize, number: usize) -> Result<usize, Error> {
        if rank >= self.comm.size || number >= SIGNALS {
            let size = self.comm.size;
            return Err(Error::Misuse(format!(
                "signal {number} and rank {rank}: there are {SIGNALS} signals and {size} ranks, both from 0"
            )));
        }
        Ok(rank * SIGNALS + number)
    }

    #[cold]
    fn fail(&mut self, stop: Stop, rank: u32, counter: u32) -> Error {
        // The call that is still going on is the opening, as it was announced.
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
