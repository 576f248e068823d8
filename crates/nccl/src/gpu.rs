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

/// Waits for a stream of the program, if the communicator has a GPU.
pub(crate) fn finish(device: Option<usize>, stream: u64) -> Result<(), Failure> {
    match uncaptured(device, stream)? {
        Some(stream) => Ok(stream.synchronize()?),
        None => Ok(()),
    }
}

/// Refuses a stream that is captured: a signal on the host would come once, and not with each launch of the graph. Returns the stream, if the
/// communicator has a GPU.
pub(crate) fn uncaptured(device: Option<usize>, stream: u64) -> Result<Option<Stream>, Failure> {
    let Some(device) = device else { return Ok(None) };
    let context = context(device)?;
    // SAFETY: the program's stream, of this GPU.
    let stream = unsafe { Stream::borrowed(&context, stream as *mut _) };
    match stream.capture()? {
        Capture::None => Ok(Some(stream)),
        _ => Err(Failure::usage("signals that are not on a GPU cannot be captured in a graph")),
    }
}

/// Refuses a buffer that exceeds its allocation, if the driver knows that.
pub(crate) fn check_within(address: u64, bytes: usize) -> Result<(), Failure> {
    let known = Driver::if_loaded().map(|driver| driver.pointer(address)).transpose()?.flatten();
    if let Some(known) = known
        && address.checked_add(bytes as u64).is_none_or(|end| end > known.start + known.bytes as u64)
    {
        let (start, length) = (known.start, known.bytes);
        return Err(Failure::argument(format!(
            "{bytes} bytes at {address:#x} exceed their allocation, which has {length} bytes at {start:#x}"
        )));
    }
    Ok(())
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
