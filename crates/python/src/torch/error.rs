//! Errors as PyTorch programs expect them from a CPU backend.
//!
//! Programs, and PyTorch's own tests, recognize errors by gloo's words: `Timed out waiting 500ms`, `Connection closed by peer`. An error's
//! text starts with these words where they are true; Weft's own text, which names the ranks, follows. The classes, in
//! `weftlink/torch/errors.py`, are also `torch.distributed.DistBackendError`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use weftlink::bootstrap::{BlameKind, BootstrapError};
use weftlink::{Blame, Error, Identities, cuda};

use crate::error::{Classes, exception_of};

static CLASSES: Classes = Classes::new("weftlink.torch.errors");

/// Timeouts are measured on both sides of a call; a wait this much shorter than the timeout still lasted as long as the timeout.
const TOLERANCE: Duration = Duration::from_millis(1);

/// The system's error of a process that does not exist, on Linux.
const ESRCH: i32 = 3;

/// What an error says beside its own text.
#[derive(Clone, Default)]
pub(super) struct Context {
    pub(super) operation: Option<&'static str>,
    /// How long the operation may take.
    pub(super) timeout: Duration,
    /// The ranks of the group, once they have met.
    pub(super) identities: Option<Identities>,
}

impl Context {
    /// The exception for an error.
    pub(super) fn raised(&self, py: Python<'_>, error: &Error) -> PyErr {
        self.exception(py, error).map_or_else(|failed| failed, PyErr::from_value)
    }

    /// The same as an object.
    pub(super) fn exception<'py>(&self, py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
        let text = match gloo_words(error, self.timeout) {
            Some(words) => format!("{words}: {error}"),
            None => error.to_string(),
        };
        exception_of(py, &CLASSES, text, error, self.operation, self.identities.as_ref())
    }
}

/// The exception for an error on a GPU: the text names the rank.
pub(super) fn cuda_exception(py: Python<'_>, operation: Option<&str>, error: &cuda::Error) -> PyErr {
    let (class, peer) = match error {
        cuda::Error::Misuse { .. } => ("UsageError", None),
        cuda::Error::ContextLost { dead, .. } if !dead.is_empty() => ("DiedError", dead.first().copied()),
        _ => ("Error", None),
    };
    let made = || {
        let facts = PyDict::new(py);
        facts.set_item("operation", operation)?;
        facts.set_item("peer", peer)?;
        CLASSES.module(py)?.getattr(class)?.call((error.to_string(),), Some(&facts))
    };
    made().map_or_else(|failed| failed, PyErr::from_value)
}

/// What gloo says in this situation, if it knows it.
fn gloo_words(error: &Error, timeout: Duration) -> Option<String> {
    match error {
        Error::Deadline { waited, .. } => Some(timed_out(timeout, *waited)),
        Error::Bootstrap(error) => match error {
            BootstrapError::Late { waited, .. } => Some(timed_out(timeout, *waited)),
            BootstrapError::Missing { limit, .. }
            | BootstrapError::NoAnswer { limit, .. }
            | BootstrapError::NobodyListens { limit, .. } => Some(timed_out(*limit, *limit)),
            _ => is_closed(&Error::Bootstrap(error.clone())).then(closed),
        },
        _ => is_closed(error).then(closed),
    }
}

/// The timeout, unless the wait was shorter: another rank's timeout ends this rank's wait too.
fn timed_out(timeout: Duration, waited: Duration) -> String {
    let shown = if waited + TOLERANCE < timeout { waited } else { timeout };
    format!("Timed out waiting {}ms", shown.as_millis())
}

fn closed() -> String {
    "Connection closed by peer".to_owned()
}

/// Whether a peer ended its part of the group: it died, left, cannot be reached, or aborted the group.
fn is_closed(error: &Error) -> bool {
    let closes =
        |blame: &Blame| matches!(blame.kind, BlameKind::Died | BlameKind::Left | BlameKind::Unreachable);
    match error {
        Error::Died { .. } | Error::Left { .. } | Error::Broken { .. } => true,
        // With other errors the kernel refused to read, and the peer may live.
        Error::Unreadable { errno, .. } => *errno == ESRCH,
        Error::Aborted { rank, by, .. } => rank != by,
        Error::Cancelled { rank, by, .. } => *rank != by.rank,
        Error::Failed { blamed, .. } => blamed.iter().any(closes),
        Error::Bootstrap(error) => matches!(
            error,
            BootstrapError::Died { .. }
                | BootstrapError::Left { .. }
                | BootstrapError::Lost { .. }
                | BootstrapError::GaveUp { .. }
        ),
        _ => false,
    }
}
