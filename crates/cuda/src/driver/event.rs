//! Events: points in a stream, to wait for and to measure between.

use std::ops::RangeInclusive;
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUevent_flags};

use super::{Context, RelaxedCapture, Stream};
use crate::error::Error;

const NOT_READY: u32 = 600;
/// The errors of calls that a capture does not allow.
const CAPTURE_ERRORS: RangeInclusive<u32> = 900..=908;

/// A point in a stream, set by [`Event::record`].
#[derive(Debug)]
pub struct Event {
    context: Context,
    handle: CUevent,
}

// SAFETY: the handle is a name for the driver, whose functions may be called with it from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: the event was created by `create`, and nothing else has it.
        self.context
            .release(|| unsafe { (cu.cuEventDestroy_v2)(self.handle) }, || "destroy an event".to_owned());
    }
}

impl Event {
    /// An event that only orders work: cheaper than one that also measures.
    pub fn new(context: &Context) -> Result<Event, Error> {
        Event::create(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event for [`Event::elapsed_since`].
    pub fn with_timing(context: &Context) -> Result<Event, Error> {
        Event::create(context, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create(context: &Context, flags: CUevent_flags) -> Result<Event, Error> {
        let _entered = context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address is of a handle, and the context is current.
        let code = unsafe { (context.driver().cu().cuEventCreate)(&raw mut handle, flags as u32) };
        context.check(code, || "create an event".to_owned())?;
        Ok(Event { context: context.clone(), handle })
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUevent {
        self.handle
    }

    /// Sets the event to the work submitted to a stream so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: event and stream are valid.
        let code = unsafe { (self.context.driver().cu().cuEventRecord)(self.handle, stream.raw()) };
        self.context.check(code, || "record an event".to_owned())
    }

    /// Whether that work is done. An event that was never recorded is.
    pub fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the event is valid.
        let code = unsafe { (self.context.driver().cu().cuEventQuery)(self.handle) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.context.check(code, || "query an event".to_owned()).map(|()| true)
    }

    /// Whether that work is done, or never will be, because the context is lost. It may be asked while a graph is captured.
    pub fn is_over(&self) -> bool {
        let _relaxed = RelaxedCapture::begin(self.context.driver());
        match self.is_done() {
            Ok(is_done) => is_done,
            Err(Error::Cuda { code, .. }) => !CAPTURE_ERRORS.contains(&code),
            Err(_) => true,
        }
    }

    /// Waits until that work is done.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the event is valid.
        let code = unsafe { (self.context.driver().cu().cuEventSynchronize)(self.handle) };
        self.context.check(code, || "wait for an event".to_owned())
    }

    /// The time between two events that are done, both made with timing.
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration, Error> {
        let mut milliseconds = 0.0;
        let others = &self.context.driver().table.others;
        // SAFETY: the address is of a float, and both events are valid.
        let code = unsafe { (others.cuEventElapsedTime)(&raw mut milliseconds, start.handle, self.handle) };
        self.context.check(code, || "measure between two events".to_owned())?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}
