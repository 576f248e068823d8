//! The GPUs of this process.

// Copies memory of the program.
#![allow(unsafe_code)]

use weftlink::cuda::driver::{Capture, Context, Driver, Stream};

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

/// Reads memory of a GPU, after what is on a stream of the program. Waits for that stream alone: others may wait for this thread.
pub(crate) fn read(device: usize, stream: u64, address: u64, into: &mut [u8]) -> Result<(), Failure> {
    let context = context(device)?;
    // SAFETY: the program's stream, of this GPU.
    let stream = unsafe { Stream::borrowed(&context, stream as *mut _) };
    if stream.capture()? != Capture::None {
        return Err(Failure::usage(
            "a factor in memory of a GPU cannot be read while its stream is captured in a graph",
        ));
    }
    // SAFETY: the program's value has this length, and the stream is waited for.
    unsafe { stream.copy_to_host(into.as_mut_ptr().cast(), address, into.len()) }?;
    Ok(stream.synchronize()?)
}
