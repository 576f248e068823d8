//! Errors as Python raises them: `weftlink/errors.py` has the classes, which carry rank, peer, operation and call.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use weftlink::Error;
use weftlink::bootstrap::BootstrapError;

/// The module that has the classes.
static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// What an error says beside its text.
struct Facts {
    class: &'static str,
    call: Option<u32>,
    rank: Option<u32>,
    peer: Option<u32>,
}

impl Facts {
    fn of(error: &Error) -> Self {
        let about = |class, call: &u32, rank: &u32, peer: Option<u32>| Self {
            class,
            call: Some(*call),
            rank: Some(*rank),
            peer,
        };
        let only = |class| Self { class, call: None, rank: None, peer: None };
        match error {
            Error::Misuse(_) => only("UsageError"),
            Error::Refused(_) => only("PlanError"),
            Error::Bootstrap(error) => Self::of_meeting(error),
            Error::QueueFull { .. } => only("QueueFullError"),
            Error::Failed(_) => only("FailedError"),
            Error::Mismatch { call, rank, other, .. } => about("MismatchError", call, rank, Some(*other)),
            Error::Deadline { call, rank, .. } => about("DeadlineError", call, rank, None),
            Error::Left { call, rank, left } => about("LeftError", call, rank, Some(*left)),
            Error::Died { call, rank, died, .. } => about("DiedError", call, rank, Some(*died)),
            Error::Unreadable { call, rank, peer, .. } => about("LostError", call, rank, Some(*peer)),
            Error::Broken { call, rank, .. } => about("LostError", call, rank, None),
            Error::Unfit { call, rank, .. } => about("PlanError", call, rank, None),
            Error::Aborted { call, rank, by, .. } => about("AbortedError", call, rank, Some(*by)),
            Error::Cancelled { call, rank, by, .. } => about("CancelledError", call, rank, Some(*by)),
            Error::Panicked { call, rank, .. } => about("PanickedError", call, rank, None),
        }
    }
}

impl Facts {
    /// Ranks also meet for the first call of a kind, and what goes wrong there is what goes wrong in calls.
    fn of_meeting(error: &BootstrapError) -> Self {
        let about = |class, peer: Option<&usize>| {
            let peer = peer.and_then(|peer| u32::try_from(*peer).ok());
            Self { class, call: None, rank: None, peer }
        };
        match error {
            BootstrapError::Died { rank, .. } => about("DiedError", Some(rank)),
            BootstrapError::Left { rank, .. } => about("LeftError", Some(rank)),
            BootstrapError::Lost { rank, .. } => about("LostError", Some(rank)),
            BootstrapError::GaveUp { rank, .. } => about("AbortedError", Some(rank)),
            BootstrapError::NoAnswer { rank, .. } => about("DeadlineError", Some(rank)),
            BootstrapError::Missing { ranks, .. } | BootstrapError::Late { ranks, .. } => {
                about("DeadlineError", ranks.first())
            }
            BootstrapError::Mismatch { .. } => about("MismatchError", None),
            _ => about("MeetingError", None),
        }
    }
}

/// The exception for an error of an operation.
pub(crate) fn raised(py: Python<'_>, error: &Error, operation: Option<&str>) -> PyErr {
    exception(py, error, operation).map_or_else(|failed| failed, PyErr::from_value)
}

/// The same, as an object.
pub(crate) fn exception<'py>(
    py: Python<'py>,
    error: &Error,
    operation: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let Facts { class, call, rank, peer } = Facts::of(error);
    let module = ERRORS.get_or_try_init(py, || py.import("weftlink.errors").map(Bound::unbind))?;
    let facts = PyDict::new(py);
    facts.set_item("rank", rank)?;
    facts.set_item("peer", peer)?;
    facts.set_item("operation", operation)?;
    facts.set_item("call", call)?;
    module.bind(py).getattr(class)?.call((error.to_string(),), Some(&facts))
}
