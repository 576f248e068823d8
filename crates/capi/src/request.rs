//! Started calls
//!
//! A function whose name ends in _start returns at once and gives a request. The buffers belong to the
//! call until it is done: do not free or change them, and do not read the output. Calls run in the
//! order in which they were started.

use std::ffi::c_double;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weftlink::{Background, Error, Identities, RawBuffers, RawHandle, Request};

use crate::error::{Failure, guard, weft_status};
use crate::pointer::{check_not_null, reference};

/// A started call.
pub struct weft_request {
    shared: Arc<Shared>,
    handle: RawHandle,
    identities: Identities,
    process: u32,
}

/// What the thread that runs the call leaves.
#[derive(Default)]
struct Shared {
    result: Mutex<Option<Result<(), Error>>>,
    changed: Condvar,
}

/// Waits until the call is done, and returns its status.
///
/// # Safety
/// `request` is null or a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_request_wait(request: *mut weft_request) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        unsafe { reference(request, "request") }?.wait()
    })
}

/// Waits until the call is done, at most for `timeout_s` seconds. *done says whether it is; the call
/// continues if not. Returns the status of the call if it is done.
///
/// # Safety
/// `request` is null or a request, `done` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_request_wait_for(
    request: *mut weft_request,
    timeout_s: c_double,
    done: *mut bool,
) -> weft_status {
    guard(|| {
        check_not_null(done, "done")?;
        // SAFETY: the caller's.
        let request = unsafe { reference(request, "request") }?;
        request.check_process()?;
        let wrong = |_| Failure::misuse(format!("a timeout of {timeout_s} s is not possible"));
        let timeout = Duration::try_from_secs_f64(timeout_s).map_err(wrong)?;
        let result = request.result_within(Some(timeout));
        // SAFETY: as above.
        unsafe { done.write(result.is_some()) };
        result.map_or(Ok(()), |result| request.ended(result))
    })
}

/// Whether the call is done, without waiting. Returns the status of the call if it is.
///
/// # Safety
/// `request` is null or a request, `done` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_request_test(request: *mut weft_request, done: *mut bool) -> weft_status {
    // SAFETY: the caller's.
    unsafe { weft_request_wait_for(request, 0.0, done) }
}

/// Frees a request. The call continues if it is not done, and its buffers still belong to it. Does
/// nothing with a null pointer.
///
/// # Safety
/// `request` is null or a request that nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_request_free(request: *mut weft_request) -> weft_status {
    guard(|| {
        if !request.is_null() {
            // SAFETY: the caller's: it came from `Box::into_raw`, and nothing else uses it.
            drop(unsafe { Box::from_raw(request) });
        }
        Ok(())
    })
}

impl weft_request {
    /// Submits a call.
    ///
    /// # Safety
    /// As for `Background::start_raw`, until the call is done.
    pub(crate) unsafe fn start(
        background: &Background,
        request: Request<'static, RawBuffers>,
        identities: &Identities,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let completes = Arc::clone(&shared);
        let done = move |result| {
            *completes.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            completes.changed.notify_all();
        };
        // SAFETY: the caller's.
        let handle = unsafe { background.start_raw(request, done) };
        Self { shared, handle, identities: identities.clone(), process: std::process::id() }
    }

    /// Waits until the call is done. This thread runs queued calls up to it, unless the worker has begun them.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        self.check_process()?;
        while self.result_within(Some(Duration::ZERO)).is_none() && self.handle.help()? {}
        self.result_within(None).map_or(Ok(()), |result| self.ended(result))
    }

    /// The result, if there is one within the timeout.
    fn result_within(&self, timeout: Option<Duration>) -> Option<Result<(), Error>> {
        let began = Instant::now();
        let Shared { result, changed } = &*self.shared;
        let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
        while result.is_none() {
            result = match timeout {
                None => changed.wait(result).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let left = timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
                    changed.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        result.clone()
    }

    fn ended(&self, result: Result<(), Error>) -> Result<(), Failure> {
        result.map_err(|error| {
            let blamed = self.identities.blamed(&error);
            Failure { blamed, ..error.into() }
        })
    }

    fn check_process(&self) -> Result<(), Failure> {
        let (here, there) = (std::process::id(), self.process);
        if here == there {
            return Ok(());
        }
        Err(Failure::misuse(format!(
            "process {here} was forked from process {there}, which started the call; only that one may use it"
        )))
    }
}
