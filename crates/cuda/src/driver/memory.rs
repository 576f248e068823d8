//! Memory of a GPU, and copies in stream order.

use std::ffi::c_void;

use super::{Context, Stream};
use crate::error::Error;

/// An address of device memory, or of host memory that the device can use.
pub type DeviceAddress = u64;

/// Memory from `cuMemAlloc`: peers open it by IPC. Dropping it waits for every kernel of the context, so never drop one while a kernel
/// waits for this process.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: DeviceAddress,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates memory of any content.
    pub fn new(context: &Context, bytes: usize) -> Result<DeviceMemory, Error> {
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: the address is of an integer, and the context is current.
        let code = unsafe { (context.driver().cu().cuMemAlloc_v2)(&raw mut address, bytes) };
        context.check(code, || format!("allocate {bytes} bytes of memory"))?;
        Ok(DeviceMemory { context: context.clone(), address, bytes })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: the memory was allocated by `new`, and the value was its owner.
        let free = || unsafe { (cu.cuMemFree_v2)(self.address) };
        self.context.release(free, || format!("free {} bytes of memory", self.bytes));
    }
}

impl DeviceBuffer for DeviceMemory {
    fn context(&self) -> &Context {
        &self.context
    }

    fn address(&self) -> DeviceAddress {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory with an address and a length on a GPU. Kernels of this and other processes may use it at the same time, so these methods promise
/// nothing about the bytes, only that they stay inside.
pub trait DeviceBuffer: sealed::Sealed {
    /// The context that uses it.
    fn context(&self) -> &Context;
    /// The address of its first byte.
    fn address(&self) -> DeviceAddress;
    /// Its length.
    fn bytes(&self) -> usize;

    /// Copies host memory to a place in it, after the work of the stream, and waits until that is done.
    fn write(&self, stream: &Stream, offset: usize, source: &[u8]) -> Result<(), Error> {
        let target = self.place(offset, source.len(), "write")?;
        // SAFETY: the target lies inside this memory; the source is borrowed until the copy is done.
        let started = unsafe { stream.copy_from_host(target, source.as_ptr().cast(), source.len()) };
        // The copy must be over before the borrow ends, if the first call failed, too.
        stream.synchronize().and(started)
    }

    /// Copies a place in it to host memory, after the work of the stream, and waits until that is done.
    fn read(&self, stream: &Stream, offset: usize, target: &mut [u8]) -> Result<(), Error> {
        let source = self.place(offset, target.len(), "read")?;
        // A copy to pageable memory waits in the driver, where it keeps other threads from launching what a kernel may wait for.
        stream.synchronize()?;
        // SAFETY: the source lies inside this memory; the target is borrowed until the copy is done.
        let started = unsafe { stream.copy_to_host(target.as_mut_ptr().cast(), source, target.len()) };
        stream.synchronize().and(started)
    }

    /// Sets bytes of it in the order of the stream.
    fn fill(&self, stream: &Stream, offset: usize, bytes: usize, value: u8) -> Result<(), Error> {
        let target = self.place(offset, bytes, "fill")?;
        // SAFETY: the target lies inside this memory of a GPU, which is no memory of the process.
        unsafe { stream.fill_bytes(target, value, bytes) }
    }

    /// The address of a part, if it lies inside.
    fn place(&self, offset: usize, bytes: usize, verb: &str) -> Result<DeviceAddress, Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(self.address() + offset as u64),
            _ => Err(Error::Misuse {
                attempt: format!("{verb} {bytes} bytes at offset {offset}"),
                why: format!("the memory has {} bytes", self.bytes()),
            }),
        }
    }
}

pub(super) mod sealed {
    /// Only this module's types know their length.
    pub trait Sealed {}
    impl Sealed for super::DeviceMemory {}
    impl Sealed for super::super::Mapping {}
    impl Sealed for super::super::IpcMemory {}
}

/// Copies and fills in the order of the stream, between any addresses.
impl Stream {
    /// Copies between two places that the GPU can use.
    ///
    /// # Safety
    /// Both are valid for the length until the copy is done.
    pub unsafe fn copy(
        &self,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
    ) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the caller's.
        let code = unsafe { (self.driver().cu().cuMemcpyAsync)(target, source, bytes, self.raw()) };
        self.context().check(code, || format!("copy {bytes} bytes"))
    }

    /// Copies from the host. Pageable memory is read before the call returns, pinned memory later.
    ///
    /// # Safety
    /// Both are valid for the length, and the source is not changed, until the copy is done.
    pub unsafe fn copy_from_host(
        &self,
        target: DeviceAddress,
        source: *const c_void,
        bytes: usize,
    ) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the caller's.
        let code = unsafe { (self.driver().cu().cuMemcpyHtoDAsync_v2)(target, source, bytes, self.raw()) };
        self.context().check(code, || format!("copy {bytes} bytes from the host"))
    }

    /// Copies to the host.
    ///
    /// # Safety
    /// Both are valid for the length, and nothing uses the target, until the copy is done.
    pub unsafe fn copy_to_host(
        &self,
        target: *mut c_void,
        source: DeviceAddress,
        bytes: usize,
    ) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the caller's.
        let code = unsafe { (self.driver().cu().cuMemcpyDtoHAsync_v2)(target, source, bytes, self.raw()) };
        self.context().check(code, || format!("copy {bytes} bytes to the host"))
    }

    /// Sets bytes.
    ///
    /// # Safety
    /// The target is valid for the length until they are set.
    pub unsafe fn fill_bytes(&self, target: DeviceAddress, value: u8, bytes: usize) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the caller's.
        let code = unsafe { (self.driver().cu().cuMemsetD8Async)(target, value, bytes, self.raw()) };
        self.context().check(code, || format!("fill {bytes} bytes"))
    }

    /// Sets 32-bit words.
    ///
    /// # Safety
    /// The target is a multiple of 4 and valid for the words until they are set.
    pub unsafe fn fill_words(&self, target: DeviceAddress, value: u32, words: usize) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        // SAFETY: the caller's.
        let code = unsafe { (self.driver().cu().cuMemsetD32Async)(target, value, words, self.raw()) };
        self.context().check(code, || format!("fill {words} words"))
    }
}
