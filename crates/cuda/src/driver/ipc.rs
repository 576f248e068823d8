//! IPC handles: how processes of a host share memory from `cuMemAlloc`, PyTorch's default allocator included.

use cudarc::driver::sys::{CUipcMem_flags, CUipcMemHandle};

use super::{Context, DeviceAddress, DeviceBuffer};
use crate::error::Error;

/// Names an allocation for other processes of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

impl IpcHandle {
    /// The handle of the allocation of an address. It names the whole allocation: see [`Context::allocation_of`] for the offset.
    pub fn of(context: &Context, address: DeviceAddress) -> Result<IpcHandle, Error> {
        let _entered = context.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the address is of a structure of 64 bytes. Any address may be asked about.
        let code = unsafe { (context.driver().cu().cuIpcGetMemHandle)(&raw mut handle, address) };
        context.check(code, || format!("share the memory at address {address:#x} by an IPC handle"))?;
        Ok(IpcHandle(handle.reserved.map(|byte| byte as u8)))
    }
}

/// Memory of another process. A process cannot open its own.
#[derive(Debug)]
pub struct IpcMemory {
    context: Context,
    address: DeviceAddress,
    bytes: usize,
}

impl IpcMemory {
    /// Maps the allocation that a handle names. `bytes` is its length, as its owner knows it.
    pub fn open(context: &Context, handle: &IpcHandle, bytes: usize) -> Result<IpcMemory, Error> {
        let _entered = context.enter()?;
        let handle = CUipcMemHandle { reserved: handle.0.map(|byte| byte as _) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the address is of an integer; the driver checks the handle.
        let code = unsafe { (context.driver().cu().cuIpcOpenMemHandle_v2)(&raw mut address, handle, flags) };
        context.check(code, || "map memory of another process by its IPC handle".to_owned())?;
        // From here on, an error closes the handle.
        let memory = IpcMemory { context: context.clone(), address, bytes };
        let (_, mapped) = context.allocation_of(address)?;
        if mapped < bytes {
            let attempt = "map memory of another process by its IPC handle".to_owned();
            let why = format!("it has {mapped} bytes, and its owner reported {bytes}");
            return Err(Error::Misuse { attempt, why });
        }
        Ok(memory)
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: the memory was mapped by `open`. Each opening of a handle is closed once.
        let close = || unsafe { (cu.cuIpcCloseMemHandle)(self.address) };
        self.context.release(close, || "unmap memory of another process".to_owned());
    }
}

impl DeviceBuffer for IpcMemory {
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
