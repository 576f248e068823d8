//! What the driver knows about an address: whose memory it is, and how it can be shared.

use std::ffi::c_void;

use cudarc::driver::sys::CUpointer_attribute;

use super::{Context, DeviceAddress, Driver};
use crate::error::Error;

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory that the driver allocated or that is registered.
    Host,
    /// Memory of a GPU.
    Device,
    /// Memory that the driver moves between host and GPU.
    Managed,
}

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Where it lies.
    pub kind: MemoryKind,
    /// The number of the GPU it belongs to, in this process.
    pub device: usize,
    /// Identifies the allocation: no other in this process ever has the same, not even at the same address, and the same memory mapped
    /// again has another.
    pub buffer_id: u64,
    /// The address of the allocation. For PyTorch's expandable segments this is the reservation.
    pub start: DeviceAddress,
    /// Its length; of expandable segments more than is mapped.
    pub bytes: usize,
    /// Whether [`IpcHandle`](super::IpcHandle) can share it. If not, [`Allocation::retain`](super::Allocation::retain) may.
    pub has_legacy_ipc: bool,
}

const ATTRIBUTES: [CUpointer_attribute; 7] = [
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
];

impl Driver {
    /// What the driver knows about an address; nothing if it does not know it, as with ordinary host memory.
    pub fn pointer(self, address: DeviceAddress) -> Result<Option<Pointer>, Error> {
        // Values have 1, 4 or 8 bytes; each gets a word of zeros, whose low bytes they are.
        let mut values = [0_u64; ATTRIBUTES.len()];
        let mut places = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
        let mut attributes = ATTRIBUTES;
        let count = ATTRIBUTES.len() as u32;
        // SAFETY: both arrays have this many elements, and each place has room for its value. Any address may be asked about.
        let code = unsafe {
            (self.cu().cuPointerGetAttributes)(count, attributes.as_mut_ptr(), places.as_mut_ptr(), address)
        };
        self.check(code, || format!("look up address {address:#x}"))?;
        let [kind, device, buffer_id, start, bytes, has_legacy_ipc, is_managed] = values;
        let kind = match kind as u32 {
            _ if is_managed as u8 != 0 => MemoryKind::Managed,
            1 => MemoryKind::Host,
            2 => MemoryKind::Device,
            _ => return Ok(None),
        };
        // A negative number is no device.
        let Ok(device) = usize::try_from(device as u32 as i32) else { return Ok(None) };
        let has_legacy_ipc = has_legacy_ipc as u8 != 0;
        Ok(Some(Pointer { kind, device, buffer_id, start, bytes: bytes as usize, has_legacy_ipc }))
    }
}

impl Context {
    /// Start and length of the allocation of an address: one `cuMemAlloc`, or one mapped handle.
    pub fn allocation_of(&self, address: DeviceAddress) -> Result<(DeviceAddress, usize), Error> {
        let _entered = self.enter()?;
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: the addresses are of two integers. Any address may be asked about.
        let code =
            unsafe { (self.driver().cu().cuMemGetAddressRange_v2)(&raw mut start, &raw mut bytes, address) };
        self.check(code, || format!("find the allocation of address {address:#x}"))?;
        Ok((start, bytes))
    }
}
