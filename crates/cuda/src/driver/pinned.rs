//! Host memory that a GPU can use: allocated by the driver, or memory of the process that is registered with it.

use std::ffi::c_void;
use std::ptr::NonNull;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE,
};

use super::{Context, DeviceAddress};
use crate::error::Error;

/// Page-locked host memory from the driver, at first of any content. Dropping it waits for every kernel of the context.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Context,
    host: NonNull<u8>,
    device: DeviceAddress,
    bytes: usize,
}

// SAFETY: it is memory; access to it goes through raw addresses, whose users synchronise.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates.
    pub fn new(context: &Context, bytes: usize) -> Result<PinnedMemory, Error> {
        let _entered = context.enter()?;
        let attempt = || format!("allocate {bytes} bytes of pinned host memory");
        let mut host: *mut c_void = std::ptr::null_mut();
        let flags = CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the address is of a pointer, and the context is current.
        let code = unsafe { (context.driver().cu().cuMemHostAlloc)(&raw mut host, bytes, flags) };
        context.check(code, attempt)?;
        let null = || Error::Misuse { attempt: attempt(), why: "the driver returned no memory".to_owned() };
        let pointer = NonNull::new(host.cast::<u8>()).ok_or_else(null)?;
        // From here on, an error frees the memory.
        let mut memory = PinnedMemory { context: context.clone(), host: pointer, device: 0, bytes };
        memory.device = device_address(context, host)?;
        Ok(memory)
    }

    /// Its address on the host, valid for [`PinnedMemory::bytes`].
    pub fn host(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// Its address for kernels.
    pub fn device(&self) -> DeviceAddress {
        self.device
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: the memory was allocated by `new`, and the value was its owner.
        let free = || unsafe { (cu.cuMemFreeHost)(self.host.as_ptr().cast()) };
        self.context.release(free, || format!("free {} bytes of pinned host memory", self.bytes));
    }
}

/// Memory of the process that a GPU can use while this lives: shared memory, for example. Dropping it waits for every kernel of the context.
#[derive(Debug)]
pub struct Registration {
    context: Context,
    host: *mut c_void,
    device: DeviceAddress,
    bytes: usize,
}

// SAFETY: it is a range of addresses; access to it goes through raw addresses, whose users synchronise.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory and maps it for kernels.
    ///
    /// # Safety
    /// The memory stays mapped at this address while the value lives.
    pub unsafe fn new(context: &Context, host: *mut u8, bytes: usize) -> Result<Registration, Error> {
        let _entered = context.enter()?;
        let host: *mut c_void = host.cast();
        let flags = CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the driver checks that the range is mapped; that it stays so is the caller's promise.
        let code = unsafe { (context.driver().cu().cuMemHostRegister_v2)(host, bytes, flags) };
        context.check(code, || format!("register {bytes} bytes of host memory"))?;
        // From here on, an error unregisters the memory.
        let mut registration = Registration { context: context.clone(), host, device: 0, bytes };
        registration.device = device_address(context, host)?;
        Ok(registration)
    }

    /// Its address for kernels.
    pub fn device(&self) -> DeviceAddress {
        self.device
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: the memory was registered by `new`, and is still mapped.
        let unregister = || unsafe { (cu.cuMemHostUnregister)(self.host) };
        self.context.release(unregister, || format!("unregister {} bytes of host memory", self.bytes));
    }
}

/// The address for kernels of memory that is mapped for them. The context is current.
fn device_address(context: &Context, host: *mut c_void) -> Result<DeviceAddress, Error> {
    let mut device = 0;
    // SAFETY: the address is of an integer; the flags must be 0.
    let code = unsafe { (context.driver().cu().cuMemHostGetDevicePointer_v2)(&raw mut device, host, 0) };
    context.check(code, || "map host memory".to_owned())?;
    Ok(device)
}
