//! The GPUs of this process.

// Copies memory of the program.
#![allow(unsafe_code)]

use weftlink::cuda::driver::{Context, Driver, Stream};

use crate::failure::Failure;

/// The GPU that is current on this thread, if the program uses CUDA.
pub(crate) fn current_device() -> Option<usize> {
    Driver::if_loaded()?.current_device()
}

/// Whether a GPU uses the memory at an address: also host memory that is registered with CUDA. Programs without CUDA have none.
pub(crate) fn uses(address: u64) -> Result<bool, Failure> {
    match Driver::if_loaded() {
        Some(driver) => Ok(driver.pointer(address)?.is_some()),
        None => Ok(false),
    }
}

/// The context of a GPU.
pub(crate) fn context(device: usize) -> Result<Context, Failure> {
    let devices = Driver::load()?.devices()?;
    let missing =
        || Failure::argument(format!("there is no GPU {device}: this process sees {}", devices.len()));
    Ok(Context::primary(devices.get(device).ok_or_else(missing)?)?)
}

/// Reads memory of a GPU, after all work that the program has enqueued there.
pub(crate) fn read(device: usize, address: u64, into: &mut [u8]) -> Result<(), Failure> {
    let context = context(device)?;
    context.synchronize()?;
    let stream = Stream::new(&context)?;
    // SAFETY: the program's value has this length, and the stream is waited for.
    unsafe { stream.copy_to_host(into.as_mut_ptr().cast(), address, into.len()) }?;
    Ok(stream.synchronize()?)
}
