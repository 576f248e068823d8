//! The end of a successful call: the finishing pass over its result, the recorder, and what the next call reuses.

// Kernels take addresses.
#![allow(unsafe_code)]

use weftlink_kernels::Finish;
use weftlink_plan::collective::Promise;
use weftlink_plan::{Collective, DataType};

use super::Communicator;
use super::choose::Chosen;
use super::current::Current;
use crate::request::CallArgs;

impl Communicator {
    /// Records a call, and keeps its engine if a repetition can run without waiting for the other ranks first.
    #[inline]
    pub(super) fn finish(&mut self, chosen: Chosen) {
        if chosen.is_again {
            self.shared.recorder.end();
            return;
        }
        // Ranks that have to compare headers do so in every call.
        let is_private = !chosen.is_symmetric && self.engines[chosen.engine].is_private();
        self.current.private = is_private.then_some(chosen.engine);
        self.shared.recorder.end_timed();
    }

    /// The finishing pass of a call.
    pub(super) fn finishing(&self, request: &CallArgs<'_>, data_type: Option<DataType>) -> Option<Finish> {
        self.shared.kernels.finish(data_type?, request.operation?.reduction)
    }
}

/// Runs the finishing pass over the result, which is this rank's alone: it divides an average, and turns the result of a logical operation into
/// 1 or 0.
#[inline]
pub(super) fn finish_result(current: &Current, collective: &Collective, of: (usize, usize)) {
    if let Some(finish) = current.finishing {
        complete(finish, current, collective, of);
    }
}

#[cold]
fn complete(finish: Finish, current: &Current, collective: &Collective, (rank, size): (usize, usize)) {
    let fitted = &current.fitted;
    if let Some(Promise::Reduction { block, below }) = collective.promise(rank as u32, size as u32, 0) {
        let length = match &fitted.shape.uneven {
            Some(lengths) => lengths.input.get(block as usize).copied().unwrap_or(0),
            None => fitted.shape.count,
        };
        // SAFETY: the output is one block of `length` elements, as `fit` checked, and the call is over.
        unsafe { finish(fitted.output, length, below) };
    }
}
