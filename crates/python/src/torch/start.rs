//! How a call is made: by its caller, by workers, or by both where it is in parts.

// Calls are made on the memory of tensors, which is known by its address.
#![allow(unsafe_code)]

use std::sync::Arc;

use pyo3::prelude::*;
use weftlink::{Background, RawHandle};

use super::call::Call;
use super::lanes::{Lanes, Parts};
use super::pieces::Staged;
use super::record;
use crate::error::raised;
use crate::vouched::{RawRequest, run_here};

/// A call that is about to be made, in one part or several.
pub(super) struct Start<'a> {
    pub(super) lanes: &'a Lanes,
    pub(super) name: &'static str,
    /// In the flight record.
    pub(super) entry: u64,
    /// Called when it went well, before anybody is told.
    pub(super) finish: Option<Py<PyAny>>,
    /// The tensors, which must be there until it is over.
    pub(super) kept: Vec<Py<PyAny>>,
    pub(super) staged: Vec<Staged>,
}

impl Start<'_> {
    /// The workers make it.
    pub(super) fn later(self, parts: Vec<RawRequest>) -> Call {
        let Self { lanes, name, entry, finish, kept, staged } = self;
        let (call, pending) = Call::new(name, entry, finish, kept, staged);
        let (_, handles) = hand_out(lanes, 0, parts.len(), parts, pending);
        call.in_parts(handles)
    }

    /// The caller makes it, or the first part of it, if no other is under way. Nothing is left to wait for if that was all.
    pub(super) fn now(self, py: Python<'_>, mut parts: Vec<RawRequest>) -> PyResult<Option<Call>> {
        if parts.len() > 1 {
            return self.together(py, parts).map(Some);
        }
        let Some(request) = parts.pop() else { return Ok(None) };
        record::starts(self.entry);
        // SAFETY: the tensors are kept, and what else uses them meanwhile is the program's own fault, as with every backend.
        match unsafe { run_here(py, self.lanes.all(), request) }? {
            Ok(result) => {
                record::ends(self.entry, result.is_ok());
                result.map_err(|error| raised(py, &error, Some(self.name)))?;
                self.staged.iter().for_each(Staged::bring_back);
                self.finish.map_or(Ok(None), |finish| finish.call0(py).map(|_| None))
            }
            Err(request) => Ok(Some(self.later(vec![*request]))),
        }
    }

    /// The caller makes the first part, and the workers the others meanwhile.
    fn together(self, py: Python<'_>, mut parts: Vec<RawRequest>) -> PyResult<Call> {
        let Self { lanes, name, entry, finish, kept, staged } = self;
        let (call, pending) = Call::new(name, entry, finish, kept, staged);
        let own = parts.remove(0);
        let (under_way, mut handles) = hand_out(lanes, 1, parts.len() + 1, parts, pending);
        // SAFETY: as in `hand_out`.
        match unsafe { run_here(py, lanes.all(), own) }? {
            Ok(result) => under_way.over(result),
            Err(request) => {
                // SAFETY: as in `hand_out`.
                handles
                    .push(unsafe { lanes.first().start_raw(*request, move |result| under_way.over(result)) });
            }
        }
        Ok(call.in_parts(handles).soon())
    }
}

/// Gives parts of a call to the workers of the lanes from `first` on. There are so many parts in all.
fn hand_out(
    lanes: &Lanes,
    first: usize,
    count: usize,
    parts: Vec<RawRequest>,
    pending: super::call::Pending,
) -> (Arc<Parts>, Vec<RawHandle>) {
    let under_way = Parts::new(count, pending);
    let start = |(request, background): (RawRequest, &Background)| {
        let part = Arc::clone(&under_way);
        // SAFETY: `pending` keeps the tensors until the last part is over. What else uses them meanwhile is the program's own fault, as
        // with every backend.
        unsafe { background.start_raw(request, move |result| part.over(result)) }
    };
    let handles = parts.into_iter().zip(&lanes.all()[first..]).map(start).collect();
    (under_way, handles)
}
