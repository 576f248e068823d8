//! Errors
//!
//! Every function that can fail returns a status. weft_last_error has the sentence that explains it:
//! what happened, on which rank, and what to do.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use weftlink::bootstrap::BootstrapError;
use weftlink::cuda;
use weftlink::{Blame, BlameKind, Error};

use crate::any::Status;

/// How a function ended. After WEFT_MISUSE, WEFT_REFUSED and WEFT_QUEUE_FULL a communicator can be
/// used as before. After the others it has failed: shrink it, or free it and make a new one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weft_status {
    /// Success.
    WEFT_OK = 0,
    /// An argument is wrong. Fix the call; nothing has been sent.
    WEFT_MISUSE = 1,
    /// The verifier refused a plan, or the plan cannot carry the call.
    WEFT_REFUSED = 2,
    /// Too many started calls: wait for some of them.
    WEFT_QUEUE_FULL = 3,
    /// The ranks could not meet.
    WEFT_RENDEZVOUS = 4,
    /// Ranks make different calls. Fix the program.
    WEFT_MISMATCH = 5,
    /// A rank did not do its part in time.
    WEFT_TIMEOUT = 6,
    /// The process of a rank ended.
    WEFT_DIED = 7,
    /// A rank freed its communicator before the call was over.
    WEFT_LEFT = 8,
    /// The connection to a rank is broken, or its memory cannot be read.
    WEFT_LOST = 9,
    /// Another rank failed first. The sentence has its error.
    WEFT_ABORTED = 10,
    /// A rank aborted the communicator on purpose.
    WEFT_CANCELLED = 11,
    /// The system refused a thread, a descriptor or memory.
    WEFT_RESOURCES = 12,
    /// An earlier call failed.
    WEFT_FAILED = 13,
    /// The GPU, its driver or its compiler failed.
    WEFT_CUDA = 14,
    /// A defect of Weft. Report it with the text on standard error.
    WEFT_INTERNAL = 15,
}

/// What a rank did to be blamed for an error.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weft_blame_kind {
    /// Its process ended.
    WEFT_BLAME_DIED = 0,
    /// It did not do its part before the timeout.
    WEFT_BLAME_LATE = 1,
    /// It made another call.
    WEFT_BLAME_DIFFERS = 2,
    /// It left the communicator before the call was over.
    WEFT_BLAME_LEFT = 3,
    /// It cannot be reached.
    WEFT_BLAME_UNREACHABLE = 4,
    /// It failed by itself.
    WEFT_BLAME_FAILED = 5,
    /// Its program aborted the communicator.
    WEFT_BLAME_ABORTED = 6,
}

/// A rank that is the reason for an error.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weft_blame {
    /// The rank.
    pub rank: c_int,
    /// What it did.
    pub kind: weft_blame_kind,
    /// Its process; 0 if unknown.
    pub pid: c_int,
    /// Its host; empty if unknown or if all ranks are on one host. Valid until the next error of this
    /// thread.
    pub host: *const c_char,
}

/// Why a function failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: weft_status,
    pub(crate) text: String,
    pub(crate) blamed: Vec<Blame>,
}

/// The last failure of a thread.
#[derive(Default)]
struct Last {
    text: CString,
    blamed: Vec<(Blame, CString)>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Runs the body of an exported function. A panic ends here.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> weft_status {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return weft_status::WEFT_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::panicked(&*panic),
    };
    let Failure { status, text, blamed } = failure;
    let named = |blame: Blame| {
        let host = c_string(blame.host.as_deref().unwrap_or_default());
        (blame, host)
    };
    let last = Last { text: c_string(&text), blamed: blamed.into_iter().map(named).collect() };
    // A thread that is exiting has no place for it any more.
    let _ = LAST.try_with(|place| *place.borrow_mut() = last);
    status
}

/// The sentence of the last function that failed on this thread; empty if none has. Valid until the
/// next error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The rank that caused the last error of this thread, where to look first; -1 if no rank is to blame.
#[unsafe(no_mangle)]
pub extern "C" fn weft_last_blamed_rank() -> c_int {
    let first = LAST.try_with(|last| last.borrow().blamed.first().map(|(blame, _)| blame.rank as c_int));
    first.ok().flatten().unwrap_or(-1)
}

/// Writes the ranks that caused the last error of this thread, the first cause first, at most
/// `capacity` of them. Returns how many there are. `blamed` may be null if `capacity` is 0.
///
/// # Safety
/// `blamed` has room for `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_last_blamed(blamed: *mut weft_blame, capacity: usize) -> usize {
    let write = |last: &RefCell<Last>| {
        let last = last.borrow();
        let capacity = if blamed.is_null() { 0 } else { capacity };
        for (at, (blame, host)) in last.blamed.iter().enumerate().take(capacity) {
            let (rank, pid) = (blame.rank as c_int, blame.pid.unwrap_or(0) as c_int);
            let written = weft_blame { rank, kind: kind_of(blame.kind), pid, host: host.as_ptr() };
            // SAFETY: the caller's.
            unsafe { blamed.add(at).write(written) };
        }
        last.blamed.len()
    };
    LAST.try_with(write).unwrap_or(0)
}

/// The name of a status: "WEFT_OK".
#[unsafe(no_mangle)]
pub extern "C" fn weft_status_name(status: Status) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"WEFT_OK",
        c"WEFT_MISUSE",
        c"WEFT_REFUSED",
        c"WEFT_QUEUE_FULL",
        c"WEFT_RENDEZVOUS",
        c"WEFT_MISMATCH",
        c"WEFT_TIMEOUT",
        c"WEFT_DIED",
        c"WEFT_LEFT",
        c"WEFT_LOST",
        c"WEFT_ABORTED",
        c"WEFT_CANCELLED",
        c"WEFT_RESOURCES",
        c"WEFT_FAILED",
        c"WEFT_CUDA",
        c"WEFT_INTERNAL",
    ];
    NAMES.get(status as usize).copied().unwrap_or(c"unknown status").as_ptr()
}

impl Failure {
    /// A call whose arguments are wrong.
    pub(crate) fn misuse(text: impl Into<String>) -> Self {
        Self { status: weft_status::WEFT_MISUSE, text: text.into(), blamed: Vec::new() }
    }

    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!(
            "Weft panicked: {}. This is a bug, please report it with the location printed to standard error",
            text.unwrap_or("without a message")
        );
        Self { status: weft_status::WEFT_INTERNAL, text, blamed: Vec::new() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { status: status_of(&error), text: error.to_string(), blamed: error.blamed() }
    }
}

impl From<cuda::Error> for Failure {
    fn from(error: cuda::Error) -> Self {
        let status = match error {
            cuda::Error::Misuse { .. } => weft_status::WEFT_MISUSE,
            _ => weft_status::WEFT_CUDA,
        };
        Self { status, text: error.to_string(), blamed: Vec::new() }
    }
}

fn status_of(error: &Error) -> weft_status {
    match error {
        Error::Misuse(_) => weft_status::WEFT_MISUSE,
        Error::Refused(_) | Error::Unfit { .. } => weft_status::WEFT_REFUSED,
        Error::QueueFull { .. } => weft_status::WEFT_QUEUE_FULL,
        Error::Bootstrap(error) => status_of_bootstrap(error),
        Error::Mismatch { .. } => weft_status::WEFT_MISMATCH,
        Error::Deadline { .. } => weft_status::WEFT_TIMEOUT,
        Error::Died { .. } => weft_status::WEFT_DIED,
        Error::Left { .. } => weft_status::WEFT_LEFT,
        Error::Unreadable { .. } | Error::Broken { .. } => weft_status::WEFT_LOST,
        Error::Aborted { .. } => weft_status::WEFT_ABORTED,
        Error::Cancelled { .. } => weft_status::WEFT_CANCELLED,
        Error::System { .. } => weft_status::WEFT_RESOURCES,
        Error::Failed { .. } => weft_status::WEFT_FAILED,
        _ => weft_status::WEFT_INTERNAL,
    }
}

/// The first call of a kind also exchanges data through the bootstrap, so its errors are those of calls too.
fn status_of_bootstrap(error: &BootstrapError) -> weft_status {
    match error {
        BootstrapError::BadCall { .. } => weft_status::WEFT_MISUSE,
        BootstrapError::Died { .. } => weft_status::WEFT_DIED,
        BootstrapError::Left { .. } => weft_status::WEFT_LEFT,
        BootstrapError::Lost { .. } => weft_status::WEFT_LOST,
        BootstrapError::GaveUp { .. } => weft_status::WEFT_ABORTED,
        BootstrapError::NoAnswer { .. } | BootstrapError::Missing { .. } | BootstrapError::Late { .. } => {
            weft_status::WEFT_TIMEOUT
        }
        BootstrapError::Mismatch { .. } => weft_status::WEFT_MISMATCH,
        BootstrapError::System { .. } => weft_status::WEFT_RESOURCES,
        _ => weft_status::WEFT_RENDEZVOUS,
    }
}

fn kind_of(kind: BlameKind) -> weft_blame_kind {
    match kind {
        BlameKind::Died => weft_blame_kind::WEFT_BLAME_DIED,
        BlameKind::Late => weft_blame_kind::WEFT_BLAME_LATE,
        BlameKind::Differs => weft_blame_kind::WEFT_BLAME_DIFFERS,
        BlameKind::Left => weft_blame_kind::WEFT_BLAME_LEFT,
        BlameKind::Unreachable => weft_blame_kind::WEFT_BLAME_UNREACHABLE,
        BlameKind::Aborted => weft_blame_kind::WEFT_BLAME_ABORTED,
        _ => weft_blame_kind::WEFT_BLAME_FAILED,
    }
}

/// A text for C, which ends at the first zero byte.
pub(crate) fn c_string(text: &str) -> CString {
    let before = text.split('\0').next().unwrap_or_default();
    CString::new(before).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the text is valid until the next error.
        unsafe { CStr::from_ptr(weft_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_ends_in_the_guard() {
        assert_eq!(guard(|| panic!("by {}", "a test")), weft_status::WEFT_INTERNAL);
        assert!(last_error().starts_with("Weft panicked: by a test. "), "{}", last_error());
        assert_eq!(guard(|| Ok(())), weft_status::WEFT_OK);
        assert_eq!(guard(|| Err(Failure::misuse("cut\0here"))), weft_status::WEFT_MISUSE);
        assert_eq!(last_error(), "cut");
    }

    #[test]
    fn every_status_has_its_name() {
        for number in 0..16 {
            // SAFETY: the names are static.
            let name = unsafe { CStr::from_ptr(weft_status_name(number)) };
            assert!(name.to_str().unwrap().starts_with("WEFT_"));
        }
        assert_eq!(weft_status::WEFT_INTERNAL as u32, 15);
    }
}
