//! The primary context of a GPU, which PyTorch and the CUDA runtime use too.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUcontext;

use super::{Device, Driver};
use crate::error::Error;

const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;

/// A reference to the primary context of a GPU. Clones share it; the last one releases it.
#[derive(Clone)]
pub struct Context {
    retained: Arc<Retained>,
}

struct Retained {
    device: Device,
    handle: CUcontext,
}

// SAFETY: the handle is a name for the driver, whose functions may be called with it from any thread.
unsafe impl Send for Retained {}
// SAFETY: as above.
unsafe impl Sync for Retained {}

impl Drop for Retained {
    fn drop(&mut self) {
        let driver = self.device.driver();
        // SAFETY: this is the one release of the retain in `Context::primary`.
        let code = unsafe { (driver.cu().cuDevicePrimaryCtxRelease_v2)(self.device.handle()) };
        driver.released(code, || format!("release the context of GPU {}", self.device.ordinal));
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(GPU {})", self.device().ordinal)
    }
}

impl Context {
    /// The primary context of a GPU. The first one in a process takes a fraction of a second.
    pub fn primary(device: &Device) -> Result<Context, Error> {
        let driver = device.driver();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address is of a handle, and the device is valid.
        let code = unsafe { (driver.cu().cuDevicePrimaryCtxRetain)(&raw mut handle, device.handle()) };
        driver.check(code, || format!("use GPU {} ({})", device.ordinal, device.name))?;
        Ok(Context { retained: Arc::new(Retained { device: device.clone(), handle }) })
    }

    /// Its GPU.
    pub fn device(&self) -> &Device {
        &self.retained.device
    }

    /// The driver.
    pub fn driver(&self) -> Driver {
        self.device().driver()
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUcontext {
        self.retained.handle
    }

    /// Makes the context current on this thread for good: for threads of our own.
    pub fn make_current(&self) -> Result<(), Error> {
        // SAFETY: the context is retained.
        let code = unsafe { (self.driver().cu().cuCtxSetCurrent)(self.raw()) };
        self.check(code, || "select the GPU".to_owned())
    }

    /// Makes the context current on this thread until the guard is dropped. Where it is current already, this takes nanoseconds.
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        let cu = self.driver().cu();
        let mut current = std::ptr::null_mut();
        // SAFETY: the address is of a handle.
        let code = unsafe { (cu.cuCtxGetCurrent)(&raw mut current) };
        self.check(code, || "read the current context".to_owned())?;
        let is_pushed = current != self.raw();
        if is_pushed {
            // SAFETY: the context is retained.
            let code = unsafe { (cu.cuCtxPushCurrent_v2)(self.raw()) };
            self.check(code, || "select the GPU".to_owned())?;
        }
        Ok(Entered { context: self, is_pushed, of_this_thread: PhantomData })
    }

    /// Waits until all work of the context is done.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the context is current.
        self.check(unsafe { (self.driver().cu().cuCtxSynchronize)() }, || "wait for the GPU".to_owned())
    }

    /// Free and total memory of the GPU, in bytes.
    pub fn memory_info(&self) -> Result<(usize, usize), Error> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the addresses are of two `size_t`.
        let code = unsafe { (self.driver().cu().cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.check(code, || "read the free memory".to_owned())?;
        Ok((free, total))
    }

    /// Lets kernels of this context use the memory of another GPU's context in this process.
    pub fn enable_peer_access(&self, peer: &Context) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: both contexts are retained; the flags must be 0.
        let code = unsafe { (self.driver().cu().cuCtxEnablePeerAccess)(peer.raw(), 0) };
        if code == PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        self.check(code, || format!("use the memory of GPU {}", peer.device().ordinal))
    }

    /// An error that names the GPU, unless the call succeeded.
    pub(super) fn check(&self, code: u32, attempt: impl FnOnce() -> String) -> Result<(), Error> {
        self.driver().check(code, || format!("{} on GPU {}", attempt(), self.device().ordinal))
    }

    /// Calls a function that releases something, and logs an error.
    pub(super) fn release(&self, release: impl FnOnce() -> u32, attempt: impl FnOnce() -> String) {
        match self.enter() {
            Ok(_entered) => self
                .driver()
                .released(release(), || format!("{} on GPU {}", attempt(), self.device().ordinal)),
            // The process is exiting, or the context is lost: nothing is left to release.
            Err(error) => tracing::debug!(target: "weft::fault", "{error}"),
        }
    }
}

/// While it lives, its context is current on the thread.
#[derive(Debug)]
pub struct Entered<'a> {
    context: &'a Context,
    is_pushed: bool,
    /// The current context is a property of the thread.
    of_this_thread: PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            let driver = self.context.driver();
            // SAFETY: the address is of a handle; the context on top is the one that `enter` pushed.
            let code = unsafe { (driver.cu().cuCtxPopCurrent_v2)(&raw mut popped) };
            driver.released(code, || "restore the current context".to_owned());
        }
    }
}
