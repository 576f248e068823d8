//! Streams: our own, and those of the program that calls us.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags, CUstreamCaptureMode};

use super::{Context, Driver, Event};
use crate::error::Error;

const NOT_READY: u32 = 600;

/// A stream of a context.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
}

struct Shared {
    context: Context,
    handle: CUstream,
    is_owned: bool,
}

// SAFETY: the handle is a name for the driver, whose functions may be called with it from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_owned {
            let cu = self.context.driver().cu();
            // SAFETY: the stream was created by `create`, and nothing else has it. Work in it goes on.
            self.context.release(
                || unsafe { (cu.cuStreamDestroy_v2)(self.handle) },
                || "destroy a stream".to_owned(),
            );
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p}, {:?})", self.raw(), self.context())
    }
}

/// Whether the work of a stream is recorded into a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// It is run.
    None,
    /// It is recorded.
    Active,
    /// It was recorded, and a call has made the graph invalid.
    Invalidated,
}

impl Stream {
    /// A new stream that does not wait for the default stream.
    pub fn new(context: &Context) -> Result<Stream, Error> {
        Stream::create(context, |_| 0)
    }

    /// A new stream whose blocks are scheduled before those of ordinary streams.
    pub fn with_high_priority(context: &Context) -> Result<Stream, Error> {
        Stream::create(context, |highest| highest)
    }

    fn create(context: &Context, priority: impl Fn(i32) -> i32) -> Result<Stream, Error> {
        let _entered = context.enter()?;
        let cu = context.driver().cu();
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: the addresses are of two integers, and the context is current.
        let code = unsafe { (cu.cuCtxGetStreamPriorityRange)(&raw mut lowest, &raw mut highest) };
        context.check(code, || "read the priorities of streams".to_owned())?;
        let mut handle = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the address is of a handle, and the context is current.
        let code = unsafe { (cu.cuStreamCreateWithPriority)(&raw mut handle, flags, priority(highest)) };
        context.check(code, || "create a stream".to_owned())?;
        Ok(Stream { shared: Arc::new(Shared { context: context.clone(), handle, is_owned: true }) })
    }

    /// A stream that the program owns, such as PyTorch's current one; null is the default stream.
    ///
    /// # Safety
    /// The handle is a stream of this context and stays one as long as the value and its clones are used.
    pub unsafe fn borrowed(context: &Context, handle: CUstream) -> Stream {
        Stream { shared: Arc::new(Shared { context: context.clone(), handle, is_owned: false }) }
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Whether the program owns it.
    pub fn is_borrowed(&self) -> bool {
        !self.shared.is_owned
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUstream {
        self.shared.handle
    }

    /// Waits until all work submitted so far is done.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the stream is valid.
        let code = unsafe { (self.driver().cu().cuStreamSynchronize)(self.raw()) };
        self.context().check(code, || "wait for a stream".to_owned())
    }

    /// Whether all work submitted so far is done.
    pub fn is_idle(&self) -> Result<bool, Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the stream is valid.
        let code = unsafe { (self.driver().cu().cuStreamQuery)(self.raw()) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.context().check(code, || "query a stream".to_owned()).map(|()| true)
    }

    /// Makes later work of this stream wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: stream and event are valid; the flags must be 0.
        let code = unsafe { (self.driver().cu().cuStreamWaitEvent)(self.raw(), event.raw(), 0) };
        self.context().check(code, || "make a stream wait for an event".to_owned())
    }

    /// Whether work of this stream is being recorded into a graph.
    pub fn capture(&self) -> Result<Capture, Error> {
        let _entered = self.context().enter()?;
        let mut status: u32 = 0;
        // SAFETY: the address is of an integer with the size of the enum, whose values are not trusted.
        let code = unsafe { (self.driver().cu().cuStreamIsCapturing)(self.raw(), (&raw mut status).cast()) };
        self.context().check(code, || "ask whether a stream is captured".to_owned())?;
        Ok(match status {
            0 => Capture::None,
            1 => Capture::Active,
            _ => Capture::Invalidated,
        })
    }

    /// The number of the graph that this stream is captured into, if it is and the driver can say.
    pub(crate) fn capture_id(&self) -> Result<Option<u64>, Error> {
        let Some(functions) = &self.driver().table.captures else { return Ok(None) };
        let _entered = self.context().enter()?;
        let (mut status, mut id): (u32, u64) = (0, 0);
        let [graph, nodes, length] = [const { std::ptr::null_mut::<c_void>() }; 3];
        // SAFETY: the addresses are of integers with the sizes of their types; the driver writes nothing to null.
        let code = unsafe {
            (functions.cuStreamGetCaptureInfo_v2)(
                self.raw(),
                (&raw mut status).cast(),
                &raw mut id,
                graph.cast(),
                nodes.cast(),
                length.cast(),
            )
        };
        self.context().check(code, || "ask which graph a stream is captured into".to_owned())?;
        Ok((status == 1).then_some(id))
    }

    pub(super) fn driver(&self) -> Driver {
        self.context().driver()
    }
}

/// While it lives, this thread may allocate and load although some thread captures a graph in global mode, as PyTorch does; without it such
/// a call fails and ends the capture.
#[derive(Debug)]
pub struct RelaxedCapture {
    driver: Driver,
    before: u32,
    /// The mode is a property of the thread.
    of_this_thread: PhantomData<*mut ()>,
}

impl RelaxedCapture {
    /// Relaxes the mode of this thread.
    pub fn begin(driver: Driver) -> Result<RelaxedCapture, Error> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        // SAFETY: the address is of an integer with the size of the enum; the driver stores the mode before into it.
        let code = unsafe { (driver.cu().cuThreadExchangeStreamCaptureMode)((&raw mut mode).cast()) };
        driver.check(code, || "relax the capture mode of this thread".to_owned())?;
        Ok(RelaxedCapture { driver, before: mode, of_this_thread: PhantomData })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as in `begin`; the mode is one that the driver has returned.
        let code =
            unsafe { (self.driver.cu().cuThreadExchangeStreamCaptureMode)((&raw mut self.before).cast()) };
        self.driver.released(code, || "restore the capture mode of this thread".to_owned());
    }
}
