//! Long calls in parallel parts: each part is a call on a communicator of its own, with its own worker.
//!
//! One thread does not saturate the memory bandwidth. Where ranks have spare cores, long calls whose elements are independent are cut into
//! one part per lane. Rank 0 chooses the number of lanes when the ranks join, and whether a call is cut depends only on arguments that
//! are the same on all ranks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weftlink::plan::Collective;
use weftlink::{Background, Communicator, Error, RawBuffers, Request, Window};

use super::call::Pending;
use crate::raw::RawRequest;

/// Shorter calls are not cut: handing a part to a worker takes about ten microseconds.
const BYTES_MIN: usize = 1 << 20;
/// Parts begin at multiples of this many elements, so that they share no cache line.
const ALIGNED: usize = 256;
/// More lanes than this gain nothing.
pub(super) const LANES_MAX: usize = 4;

/// The communicators of a group; the first one runs all calls that are not cut.
#[derive(Clone)]
pub(super) struct Lanes(Arc<Vec<Background>>);

impl Lanes {
    /// Splits a communicator into `count` lanes. All ranks call it.
    pub(super) fn new(mut comm: Communicator, count: usize) -> Result<Self, Error> {
        let key = comm.rank() as i64;
        let others = (1..count).map(|_| comm.split(Some(0), key)).collect::<Result<Vec<_>, _>>()?;
        let all = std::iter::once(comm).chain(others.into_iter().flatten());
        Ok(Self(Arc::new(all.map(Communicator::into_background).collect::<Result<_, _>>()?)))
    }

    pub(super) fn first(&self) -> &Background {
        &self.0[0]
    }

    pub(super) fn all(&self) -> &[Background] {
        &self.0
    }

    /// Allocates symmetric memory for all lanes. All ranks call it. If a call on it fails in one lane, all lanes fail.
    pub(super) fn window(&self, bytes: usize) -> Result<Window<u8>, Error> {
        let mut window = self.first().with(move |comm| comm.window::<u8>(bytes))?;
        for lane in &self.0[1..] {
            window = lane.with(move |comm| comm.adopt(&window).map(|()| window))?;
        }
        Ok(window)
    }

    /// Cuts a call into one part per lane, if that pays.
    pub(super) fn cut(&self, request: RawRequest) -> Vec<RawRequest> {
        let RawBuffers { data_type, input_length, output_length, .. } = request.buffers;
        // A rank without a buffer gets the length of the others' as `count`.
        let length = request.count.unwrap_or(input_length.max(output_length));
        let independent = match &*request.collective {
            Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. } => true,
            Collective::SendReceive { messages } => messages.len() == 1,
            _ => false,
        };
        let lanes = self.0.len();
        if lanes == 1 || !independent || length * data_type.bytes() < BYTES_MIN {
            return vec![request];
        }
        let share = length.div_ceil(lanes).next_multiple_of(ALIGNED);
        let part = |lane: usize| {
            let (start, end) = ((lane * share).min(length), ((lane + 1) * share).min(length));
            let count = request.count.map(|_| end - start);
            Request { buffers: part_of(request.buffers, start, end), count, ..request.clone() }
        };
        (0..lanes).map(part).collect()
    }

    /// Leaves when all calls are done.
    pub(super) fn close(self) {
        // A thread in a call holds a copy, and leaves when it drops that.
        for background in Arc::into_inner(self.0).into_iter().flatten() {
            let _ = background.close();
        }
    }
}

/// The elements from `start` to `end` of the buffers that are not empty.
fn part_of(whole: RawBuffers, start: usize, end: usize) -> RawBuffers {
    let bytes = start * whole.data_type.bytes();
    let length = |side: usize| if side == 0 { 0 } else { end - start };
    RawBuffers {
        input: if whole.input.is_null() { whole.input } else { whole.input.wrapping_add(bytes) },
        input_length: length(whole.input_length),
        output: if whole.output.is_null() { whole.output } else { whole.output.wrapping_add(bytes) },
        output_length: length(whole.output_length),
        ..whole
    }
}

/// The unfinished parts of a call, and their first error.
pub(super) struct Parts {
    left: AtomicUsize,
    end: Mutex<(Option<Error>, Option<Pending>)>,
}

impl Parts {
    pub(super) fn new(count: usize, pending: Pending) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(count), end: Mutex::new((None, Some(pending))) })
    }

    /// A part is done. The last one completes the call.
    pub(super) fn part_done(&self, result: Result<(), Error>) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = result {
            end.0.get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let (error, pending) = (end.0.take(), end.1.take());
        drop(end);
        if let Some(pending) = pending {
            pending.complete(error.map_or(Ok(None), Err));
        }
    }
}
