//! What went wrong: a result code, and a sentence that `ncclGetLastError` returns.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use weftlink::bootstrap::BootstrapError;
use weftlink::{Error, cuda};

use crate::abi::ResultCode;
use crate::lock::lock;
use crate::log;

/// An error of a function.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: ResultCode,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure { code: ResultCode::InvalidArgument, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { code: ResultCode::InvalidUsage, text: text.into() }
    }

    pub(crate) fn system(text: impl Into<String>) -> Failure {
        Failure { code: ResultCode::SystemError, text: text.into() }
    }

    /// Not an error: the communicator works on it.
    pub(crate) fn in_progress() -> Failure {
        Failure { code: ResultCode::InProgress, text: String::new() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Misuse(_) | Error::Refused(_) | Error::Unfit { .. } => ResultCode::InvalidArgument,
            Error::Mismatch { .. } => ResultCode::InvalidUsage,
            Error::System { .. } | Error::QueueFull { .. } => ResultCode::SystemError,
            Error::Deadline { .. } => ResultCode::Timeout,
            Error::Panicked { .. } => ResultCode::InternalError,
            Error::Bootstrap(error) => return Failure::from(error.clone()),
            _ => ResultCode::RemoteError,
        };
        Failure { code, text: error.to_string() }
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Failure {
        use BootstrapError as E;
        let code = match &error {
            E::Died { .. } | E::Lost { .. } | E::Left { .. } | E::GaveUp { .. } | E::Excluded { .. } => {
                ResultCode::RemoteError
            }
            E::Missing { .. } | E::NoAnswer { .. } | E::Late { .. } | E::NobodyListens { .. } => {
                ResultCode::Timeout
            }
            E::BadCall { .. } | E::Mismatch { .. } | E::Refused { .. } => ResultCode::InvalidUsage,
            E::Protocol { .. } => ResultCode::InternalError,
            _ => ResultCode::SystemError,
        };
        Failure { code, text: error.to_string() }
    }
}

impl From<cuda::Error> for Failure {
    fn from(error: cuda::Error) -> Failure {
        use cuda::Error as E;
        let code = match &error {
            E::Misuse { .. } => ResultCode::InvalidArgument,
            E::Failed { .. } | E::Group { .. } => ResultCode::RemoteError,
            E::ContextLost { dead, .. } if !dead.is_empty() => ResultCode::RemoteError,
            E::NoNvrtc { .. } | E::BadNvrtc { .. } | E::Cache { .. } => ResultCode::SystemError,
            _ => ResultCode::UnhandledCudaError,
        };
        Failure { code, text: error.to_string() }
    }
}

thread_local! {
    /// The sentence of the last error on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The sentence of the last error in this process, for threads that had none.
static LAST_OF_ALL: Mutex<String> = Mutex::new(String::new());

const PANICKED: &str = "a defect of Weft: it panicked, and the text above says where";

/// Runs a function and returns its result code. The sentence of an error is kept and logged.
pub(crate) fn code_of(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> ResultCode {
    let ended = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(Failure { code: ResultCode::InternalError, text: PANICKED.to_owned() }));
    match ended {
        Ok(()) => ResultCode::Success,
        Err(failure) => {
            if failure.code != ResultCode::InProgress {
                remember(&format!("{name}: {}", failure.text));
                log::warn(&format!("{name}: {}", failure.text));
            }
            failure.code
        }
    }
}

/// Runs a function that has no result code. If it panics, it returns `otherwise`.
pub(crate) fn value_of<T>(name: &str, otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        remember(&format!("{name}: {PANICKED}"));
        otherwise
    })
}

/// Keeps the sentence of an error. A thread that ends, and runs the program's destructors, keeps none of its own.
pub(crate) fn remember(text: &str) {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let _ = LAST.try_with(|last| {
        // The program may hold its address.
        if last.borrow().as_bytes() != bytes {
            *last.borrow_mut() = CString::new(bytes).unwrap_or_default();
        }
    });
    text.clone_into(&mut lock(&LAST_OF_ALL));
}

/// The sentence of the last error: of this one, or else of this thread, or else of the process. It is valid until the next error on this thread.
pub(crate) fn last(own: Option<String>) -> *const c_char {
    let has_own = LAST.try_with(|last| !last.borrow().is_empty()).unwrap_or(false);
    match own {
        Some(text) => remember(&text),
        None if !has_own => {
            let text = lock(&LAST_OF_ALL).clone();
            remember(&text);
        }
        None => {}
    }
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Refuses places that are NULL.
pub(crate) fn check_place<T>(place: *const T, what: &str) -> Result<(), Failure> {
    if place.is_null() { Err(Failure::argument(format!("the place for {what} is NULL"))) } else { Ok(()) }
}
