//! Memory that NCCL allocates for the program, and buffers that the program registers.

// Gives out memory by its address.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use weftlink::cuda::devices;
use weftlink::cuda::driver::{Allocation, DeviceBuffer, HandleKind, Mapping};

use crate::abi;
use crate::failure::{Failure, check_place};
use crate::gpu::{check_within, context, current_device};
use crate::lock::lock;
use crate::registry;

/// What `ncclMemAlloc` has given out, by address.
static ALLOCATED: Mutex<Option<HashMap<usize, Memory>>> = Mutex::new(None);

enum Memory {
    /// Memory that ranks in other processes can map.
    Gpu(Mapping),
    /// Of programs without CUDA.
    Host(Vec<u64>),
}

// SAFETY: only its address is used.
unsafe impl Send for Memory {}

nccl! {
    /// Memory of the current GPU that other ranks can map; host memory in programs without CUDA.
    fn ncclMemAlloc(place: *mut *mut c_void, bytes: usize) {
        check_place(place, "the address")?;
        let (address, memory) = match current_device() {
            Some(device) => {
                let mapping = mapped(device, bytes)?;
                (mapping.address() as usize, Memory::Gpu(mapping))
            }
            None => {
                let words = vec![0_u64; bytes.div_ceil(size_of::<u64>()).max(1)];
                (words.as_ptr() as usize, Memory::Host(words))
            }
        };
        lock(&ALLOCATED).get_or_insert_with(HashMap::new).insert(address, memory);
        // SAFETY: the program's place.
        unsafe { place.write_unaligned(address as *mut c_void) };
        Ok(())
    }
}

fn mapped(device: usize, bytes: usize) -> Result<Mapping, Failure> {
    let all = devices()?;
    let own = &all[device];
    let unit = own.granularity(HandleKind::PosixDescriptor)?.minimum.max(1);
    let rounded = bytes.max(1).checked_next_multiple_of(unit);
    let rounded =
        rounded.ok_or_else(|| Failure::argument(format!("{bytes} bytes are more than there is memory")))?;
    let allocation = Allocation::create(own, rounded, HandleKind::PosixDescriptor)?;
    let mut readers = Vec::new();
    for other in &all {
        if other.uuid != own.uuid && own.link_to(other)?.is_some() {
            readers.push(other);
        }
    }
    Ok(Mapping::new(&context(device)?, &[&allocation], &readers)?)
}

nccl! {
    fn ncclMemFree(address: *mut c_void) {
        if address.is_null() {
            return Ok(());
        }
        let freed = lock(&ALLOCATED).as_mut().and_then(|allocated| allocated.remove(&(address as usize)));
        let unknown = || Failure::argument(format!("ncclMemAlloc did not return {address:p}, or it was freed"));
        match freed.ok_or_else(unknown)? {
            Memory::Gpu(mapping) => drop(mapping),
            Memory::Host(words) => drop(words),
        }
        Ok(())
    }
}

nccl! {
    /// Checks that the buffer is memory that calls can use. Other ranks map it in the first call that uses it, registered or not.
    fn ncclCommRegister(comm: abi::Comm, buffer: *mut c_void, bytes: usize, handle: *mut *mut c_void) {
        check_place(handle, "the handle")?;
        let comm = registry::find(comm)?;
        if buffer.is_null() || bytes == 0 {
            return Err(Failure::argument("there is nothing to register: the buffer is NULL or empty"));
        }
        check_within(buffer as u64, bytes)?;
        let number = comm.registrations.add(|number| number);
        // SAFETY: the program's place.
        unsafe { handle.write_unaligned(number as *mut c_void) };
        Ok(())
    }
}

nccl! {
    /// Lets other processes unmap the buffers of this rank, as the program may free them next.
    fn ncclCommDeregister(comm: abi::Comm, handle: *mut c_void) {
        let comm = registry::find(comm)?;
        let unknown = || Failure::argument(format!("ncclCommRegister did not return the handle {handle:p}"));
        comm.registrations.remove(handle as usize).ok_or_else(unknown)?;
        let open = comm.open()?;
        if let Some(gpu) = &mut *lock(&open.gpu) {
            gpu.collectives_mut().release_buffers()?;
        }
        Ok(())
    }
}
