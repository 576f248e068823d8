//! The end of a call that went well: its result is completed, and the call recorded and remembered.

// Kernels take addresses.
#![allow(unsafe_code)]

use weftlink_kernels::Finish;
use weftlink_plan::collective::Promise;
use weftlink_plan::{Collective, DataType};

use super::choose::Chosen;
use super::current::Current;
use super::{Communicator, Request};

impl Communicator {
    /// Records a call that has run, and remembers its engine if the next call of its kind can be run without meeting the other ranks.
    #[inline]
    pub(super) fn finish(&mut self, chosen: Chosen) {
        if chosen.is_again {
            self.shared.recorder.end();
            return;
        }
        // Where ranks have to find out about each other first, they do so every time.
        let is_plain = !chosen.is_symmetric && self.engines[chosen.engine].is_of_packets();
        self.current.packets = is_plain.then_some(chosen.engine);
        self.shared.recorder.end_timed();
    }

    /// What will be left to do with the result of a call.
    pub(super) fn finishing(
        &self,
        request: &Request<'_>,
        data_type: Option<DataType>,
    ) -> [Option<Finish>; 2] {
        let (Some(operation), Some(data_type)) = (request.operation, data_type) else { return [None; 2] };
        let (kernels, reduction) = (&self.shared.kernels, operation.reduction);
        let settle =
            if self.options.deterministic { kernels.canonicalize_nans(data_type, reduction) } else { None };
        [kernels.finish(data_type, reduction), settle]
    }
}

/// Does what is left to do with the result of a call, which is this rank's alone: an average is divided, NaNs are made one.
#[inline]
pub(super) fn finish_result(current: &Current, collective: &Collective, of: (usize, usize)) {
    if current.finishes {
        complete(current, collective, of);
    }
}

#[cold]
fn complete(current: &Current, collective: &Collective, (rank, size): (usize, usize)) {
    let fitted = &current.fitted;
    if let Some(Promise::Reduction { block, below }) = collective.promise(rank as u32, size as u32, 0) {
        let length = match &fitted.shape.uneven {
            Some(lengths) => lengths.input.get(block as usize).copied().unwrap_or(0),
            None => fitted.shape.count,
        };
        for finish in current.finishing.iter().flatten() {
            // SAFETY: the output holds one block of so many elements, as `fit` checked, and the call is over.
            unsafe { finish(fitted.output, length, below) };
        }
    }
}
