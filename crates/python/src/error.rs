//! Errors as Python exceptions. `weftlink/errors.py` has the classes, with rank, peer, operation and call as attributes.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use weftlink::bootstrap::BootstrapError;
use weftlink::{Blame, Error, Identities};

/// A Python module that has a class for each kind of error.
pub(crate) struct Classes {
    name: &'static str,
    module: PyOnceLock<Py<PyModule>>,
}

impl Classes {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, module: PyOnceLock::new() }
    }

    pub(crate) fn module<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyModule>> {
        let module = self.module.get_or_try_init(py, || py.import(self.name).map(Bound::unbind))?;
        Ok(module.bind(py))
    }
}

static CLASSES: Classes = Classes::new("weftlink.errors");

/// The class of an error, and its attributes.
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
            Error::Bootstrap(error) => Self::of_bootstrap(error),
            Error::QueueFull { .. } => only("QueueFullError"),
            Error::Failed { .. } => only("FailedError"),
            Error::System { rank, .. } => Self { rank: Some(*rank), ..only("ResourceError") },
            Error::Mismatch { call, rank, other, .. } => about("MismatchError", call, rank, Some(other.rank)),
            Error::Deadline { call, rank, blamed, .. } => about("DeadlineError", call, rank, first(blamed)),
            Error::Left { call, rank, left } => about("LeftError", call, rank, Some(left.rank)),
            Error::Died { call, rank, died, .. } => about("DiedError", call, rank, Some(died.rank)),
            Error::Unreadable { call, rank, peer, .. } => about("LostError", call, rank, Some(peer.rank)),
            Error::Broken { call, rank, blamed, .. } => about("LostError", call, rank, first(blamed)),
            Error::Unfit { call, rank, .. } => about("PlanError", call, rank, None),
            Error::Aborted { call, rank, by, .. } => about("AbortedError", call, rank, Some(*by)),
            Error::Cancelled { call, rank, by, .. } => about("CancelledError", call, rank, Some(by.rank)),
            Error::Panicked { call, rank, .. } => about("PanickedError", call, rank, None),
            _ => only("Error"),
        }
    }
}

/// The first rank that is blamed.
fn first(blamed: &[Blame]) -> Option<u32> {
    blamed.first().map(|blame| blame.rank)
}

impl Facts {
    /// The first call of a kind also exchanges data through the bootstrap, so its errors are those of calls too.
    fn of_bootstrap(error: &BootstrapError) -> Self {
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
            BootstrapError::Missing { ranks, .. } => about("DeadlineError", ranks.first()),
            BootstrapError::Late { blamed, .. } => {
                Self { peer: first(blamed), ..about("DeadlineError", None) }
            }
            BootstrapError::Mismatch { .. } => about("MismatchError", None),
            BootstrapError::System { .. } => about("ResourceError", None),
            _ => about("MeetingError", None),
        }
    }
}

/// The exception for an error of an operation.
pub(crate) fn raised(py: Python<'_>, error: &Error, operation: Option<&str>) -> PyErr {
    raised_in(py, error, operation, None)
}

/// The same for an error of a communicator whose ranks are known.
pub(crate) fn raised_in(
    py: Python<'_>,
    error: &Error,
    operation: Option<&str>,
    identities: Option<&Identities>,
) -> PyErr {
    exception(py, error, operation, identities).map_or_else(|failed| failed, PyErr::from_value)
}

/// The exception for an error outside of calls: the base class.
pub(crate) fn failed(py: Python<'_>, why: &str) -> PyErr {
    let exception = CLASSES.module(py).and_then(|module| module.getattr("Error")?.call1((why,)));
    exception.map_or_else(|failed| failed, PyErr::from_value)
}

/// The same as [`raised_in`], as an object.
pub(crate) fn exception<'py>(
    py: Python<'py>,
    error: &Error,
    operation: Option<&str>,
    identities: Option<&Identities>,
) -> PyResult<Bound<'py, PyAny>> {
    exception_of(py, &CLASSES, error.to_string(), error, operation, identities)
}

/// An exception of one of these classes, with a text.
pub(crate) fn exception_of<'py>(
    py: Python<'py>,
    classes: &Classes,
    text: String,
    error: &Error,
    operation: Option<&str>,
    identities: Option<&Identities>,
) -> PyResult<Bound<'py, PyAny>> {
    let Facts { class, call, rank, peer } = Facts::of(error);
    let module = classes.module(py)?;
    let facts = PyDict::new(py);
    facts.set_item("rank", rank)?;
    facts.set_item("peer", peer)?;
    facts.set_item("operation", operation)?;
    facts.set_item("call", call)?;
    facts.set_item("blamed", blamed(module, error, identities)?)?;
    module.getattr(class)?.call((text,), Some(&facts))
}

/// The ranks that an error blames, as Python tuples.
fn blamed<'py>(
    module: &Bound<'py, PyModule>,
    error: &Error,
    identities: Option<&Identities>,
) -> PyResult<Bound<'py, PyTuple>> {
    let class = module.getattr("Blame")?;
    let one = |blame: Blame| {
        let Blame { rank, kind, host, pid, .. } = blame;
        class.call1((rank, kind.name(), host, pid))
    };
    let blamed = identities.map_or_else(|| error.blamed(), |identities| identities.blamed(error));
    let blamed = blamed.into_iter().map(one).collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(module.py(), blamed)
}
