//! CUDA graphs: work that is captured once and launched again and again.

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::{Context, Stream};
use crate::error::Error;

/// A graph that is ready to be launched.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    executable: CUgraphExec,
}

// SAFETY: the handle is a name for the driver, whose functions may be called with it from any thread.
unsafe impl Send for Graph {}

impl Stream {
    /// Begins to capture the stream's work, and that of streams which wait for its events. Other threads are not affected.
    pub fn begin_capture(&self) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is valid.
        let code = unsafe { (self.context().driver().cu().cuStreamBeginCapture_v2)(self.raw(), mode) };
        self.context().check(code, || "capture a stream".to_owned())
    }

    /// Ends the capture.
    pub fn end_capture(&self) -> Result<Graph, Error> {
        let context = self.context();
        let _entered = context.enter()?;
        let cu = context.driver().cu();
        let mut captured: CUgraph = std::ptr::null_mut();
        // SAFETY: the stream is valid, and the address is of a handle.
        let code = unsafe { (cu.cuStreamEndCapture)(self.raw(), &raw mut captured) };
        context.check(code, || "end the capture of a stream".to_owned())?;
        let mut executable: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph is valid, and the address is of a handle.
        let code = unsafe { (cu.cuGraphInstantiateWithFlags)(&raw mut executable, captured, 0) };
        // SAFETY: the executable graph does not need the captured one.
        let destroyed = unsafe { (cu.cuGraphDestroy)(captured) };
        context.check(code, || "instantiate a graph".to_owned())?;
        let graph = Graph { context: context.clone(), executable };
        context.check(destroyed, || "destroy a captured graph".to_owned())?;
        Ok(graph)
    }
}

impl Graph {
    /// Launches the graph in the order of a stream.
    ///
    /// # Safety
    /// What the captured work uses is still there, until it has ended: buffers, and the communicators of calls.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: both are valid, and the rest is the caller's.
        let code = unsafe { (self.context.driver().cu().cuGraphLaunch)(self.executable, stream.raw()) };
        self.context.check(code, || "launch a graph".to_owned())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: this value owns the graph.
        let destroy = || unsafe { (cu.cuGraphExecDestroy)(self.executable) };
        self.context.release(destroy, || "destroy a graph".to_owned());
    }
}
