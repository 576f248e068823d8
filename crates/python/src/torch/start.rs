//! Who runs a call: its caller, the workers, or both if it is in parts.

// Raw calls, on the memory of tensors.
#![allow(unsafe_code)]

use std::sync::Arc;

use pyo3::prelude::*;
use weftlink::{Background, RawHandle};

use super::call::Call;
use super::error::Context;
use super::lanes::{Lanes, Parts};
use super::pieces::Staged;
use super::record;
use crate::raw::{RawRequest, run_on_caller};

/// A call to run, in one part or several.
pub(super) struct Start<'a> {
    pub(super) lanes: &'a Lanes,
    pub(super) context: Context,
    /// In the flight record.
    pub(super) entry: u64,
    /// Called after success, before the call completes.
    pub(super) finish: Option<Py<PyAny>>,
    /// The tensors, which must live until the call is done.
    pub(super) kept: Vec<Py<PyAny>>,
    pub(super) staged: Vec<Staged>,
}

impl Start<'_> {
    /// Queues it for the workers.
    pub(super) fn on_workers(self, parts: Vec<RawRequest>) -> Call {
        let Self { lanes, context, entry, finish, kept, staged } = self;
        let (call, pending) = Call::new(context, entry, finish, kept, staged);
        let (_, handles) = hand_out(lanes, 0, parts.len(), parts, pending);
        call.in_parts(handles)
    }

    /// Runs it, or its first part, on the caller's thread unless another call is in progress. Returns nothing if it is done.
    pub(super) fn on_caller(self, py: Python<'_>, mut parts: Vec<RawRequest>) -> PyResult<Option<Call>> {
        if parts.len() > 1 {
            return self.on_both(py, parts).map(Some);
        }
        let Some(request) = parts.pop() else { return Ok(None) };
        record::mark_started(self.entry);
        // SAFETY: `kept` keeps the tensors alive; the program must not touch them until the call is done, as with every backend.
        match unsafe { run_on_caller(py, self.lanes.all(), request) }? {
            Ok(result) => {
                record::mark_ended(self.entry, result.is_ok());
                result.map_err(|error| self.context.raised(py, &error))?;
                self.staged.iter().for_each(Staged::copy_back);
                self.finish.map_or(Ok(None), |finish| finish.call0(py).map(|_| None))
            }
            Err(request) => Ok(Some(self.on_workers(vec![*request]))),
        }
    }

    /// The caller runs the first part, and the workers the others in parallel.
    fn on_both(self, py: Python<'_>, mut parts: Vec<RawRequest>) -> PyResult<Call> {
        let Self { lanes, context, entry, finish, kept, staged } = self;
        let (call, pending) = Call::new(context, entry, finish, kept, staged);
        let own = parts.remove(0);
        let (progress, mut handles) = hand_out(lanes, 1, parts.len() + 1, parts, pending);
        // SAFETY: as in `hand_out`.
        match unsafe { run_on_caller(py, lanes.all(), own) }? {
            Ok(result) => progress.part_done(result),
            Err(request) => {
                // SAFETY: as in `hand_out`.
                handles.push(unsafe {
                    lanes.first().start_raw(*request, move |result| progress.part_done(result))
                });
            }
        }
        Ok(call.in_parts(handles).nearly_done())
    }
}

/// Queues parts of a call for the workers of the lanes from `first` on. `count` is the number of all parts.
fn hand_out(
    lanes: &Lanes,
    first: usize,
    count: usize,
    parts: Vec<RawRequest>,
    pending: super::call::Pending,
) -> (Arc<Parts>, Vec<RawHandle>) {
    let progress = Parts::new(count, pending);
    let start = |(request, background): (RawRequest, &Background)| {
        let part = Arc::clone(&progress);
        // SAFETY: `pending` keeps the tensors alive until the last part is done; the program must not touch them until then, as with
        // every backend.
        unsafe { background.start_raw(request, move |result| part.part_done(result)) }
    };
    let handles = parts.into_iter().zip(&lanes.all()[first..]).map(start).collect();
    (progress, handles)
}
