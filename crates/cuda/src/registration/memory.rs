//! Memory of other processes as the CUDA driver shares it.

use std::os::fd::OwnedFd;

use super::exports::{Exporter, Refusal};
use super::imports::{Importer, Shared};
use super::message::{Handle, Part, Range};
use crate::Error;
use crate::driver::{
    Allocation, Context, DeviceBuffer, IpcHandle, IpcMemory, MemoryKind, Pointer, Reservation,
};

/// The memory of a context.
#[derive(Clone, Debug)]
pub(crate) struct DriverMemory {
    pub(crate) context: Context,
}

impl DriverMemory {
    fn pointer(&self, address: u64) -> Result<Pointer, Refusal> {
        let refused = |what: &str| {
            Err(Refusal::Unshareable(format!(
                "the buffer at {address:#x} is {what}, which other processes cannot map. Allocate it with cudaMalloc"
            )))
        };
        match self.context.driver().pointer(address).map_err(failed)? {
            Some(pointer) if pointer.kind == MemoryKind::Device => Ok(pointer),
            Some(pointer) if pointer.kind == MemoryKind::Managed => refused("managed memory"),
            _ => refused("not memory of a GPU"),
        }
    }
}

impl Exporter for DriverMemory {
    fn id_at(&self, address: u64) -> Result<u64, Refusal> {
        self.pointer(address).map(|pointer| pointer.buffer_id)
    }

    fn part_at(&self, address: u64) -> Result<Part, Refusal> {
        let pointer = self.pointer(address)?;
        let unshareable = |why: &str| Refusal::Unshareable(format!("the buffer at {address:#x} {why}"));
        let mapped = if pointer.has_legacy_ipc {
            Ok(None)
        } else {
            Allocation::retain(&self.context, address).map(Some)
        };
        let mapped = mapped.map_err(|why| {
            unshareable(&format!(
                "cannot be shared with other processes; memory of cudaMallocAsync cannot. Allocate it with cudaMalloc ({why})"
            ))
        })?;
        let (start, bytes) = self.context.allocation_of(address).map_err(failed)?;
        let handle = match mapped {
            None => Handle::Ipc(IpcHandle::of(&self.context, start).map_err(failed)?.0.to_vec()),
            Some(allocation) => {
                let info = allocation.info().map_err(failed)?;
                let range = Range { start: pointer.start, bytes: pointer.bytes as u64 };
                if info.has_descriptor {
                    Handle::Descriptor { range }
                } else if info.has_fabric_handle {
                    Handle::Fabric { range, handle: allocation.export_fabric().map_err(failed)?.to_vec() }
                } else {
                    return Err(unshareable(
                        "was allocated without a handle for other processes. With PyTorch's expandable segments, unset \
                         TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC or set it to 1",
                    ));
                }
            }
        };
        Ok(Part { id: pointer.buffer_id, start, bytes: bytes as u64, handle })
    }

    fn descriptor_of(&self, part: &Part) -> Result<Option<OwnedFd>, String> {
        if !matches!(part.handle, Handle::Descriptor { .. }) {
            return Ok(None);
        }
        let allocation = Allocation::retain(&self.context, part.start).map_err(text)?;
        allocation.export_descriptor().map(Some).map_err(text)
    }
}

impl Importer for DriverMemory {
    type Opened = IpcMemory;
    type Reserved = Reservation;

    fn open(&self, handle: &[u8], bytes: u64) -> Result<(IpcMemory, u64), String> {
        let handle = handle.try_into().map(IpcHandle).map_err(|_| "an IPC handle has 64 bytes")?;
        let memory = IpcMemory::open(&self.context, &handle, bytes as usize).map_err(text)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn reserve(&self, bytes: u64) -> Result<(Reservation, u64), String> {
        let reserved = Reservation::new(&self.context, bytes as usize).map_err(text)?;
        let address = reserved.address();
        Ok((reserved, address))
    }

    fn map(
        &self,
        reserved: &mut Reservation,
        offset: u64,
        bytes: u64,
        shared: Shared<'_>,
    ) -> Result<(), String> {
        let (driver, length, offset) = (self.context.driver(), bytes as usize, offset as usize);
        let allocation = match shared {
            Shared::Descriptor(descriptor) => Allocation::import_descriptor(driver, descriptor, length),
            Shared::Fabric(handle) => {
                let handle = handle.try_into().map_err(|_| "a fabric handle has 64 bytes")?;
                Allocation::import_fabric(driver, handle, length)
            }
        };
        reserved.map(offset, &allocation.map_err(text)?).map_err(text)?;
        reserved.allow(offset, length, &[]).map_err(|why| {
            reserved.unmap(offset);
            text(why)
        })
    }

    fn unmap(reserved: &mut Reservation, offset: u64) {
        reserved.unmap(offset as usize);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
fn text(why: Error) -> String {
    why.to_string()
}

fn failed(why: Error) -> Refusal {
    Refusal::Failed(text(why))
}
