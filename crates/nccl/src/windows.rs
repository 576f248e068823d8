//! Windows: buffers that all ranks register together.
//!
//! Calls map every buffer at its first use, so a window makes no call faster. One-sided calls on them are not offered.

// Writes to the program's memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{self, Stream, WaitSignal, Window};
use crate::failure::{Failure, check_place};
use crate::lock::lock;
use crate::registry;

/// The flags that NCCL 2.30 knows: symmetric, and strictly ordered.
const FLAGS: c_int = 3;
/// The alignment that NCCL requires of a window.
const ALIGNMENT: usize = 4096;

nccl! {
    /// Checks the buffer. All ranks call it in NCCL; here none waits for another.
    fn ncclCommWindowRegister(comm: abi::Comm, buffer: *mut c_void, bytes: usize, window: *mut Window, flags: c_int) {
        check_place(window, "the window")?;
        let comm = registry::find(comm)?;
        if flags & !FLAGS != 0 {
            return Err(Failure::argument(format!("the flags of a window are {flags:#x}, and only {FLAGS:#x} are known")));
        }
        if buffer.is_null() || !(buffer as usize).is_multiple_of(ALIGNMENT) {
            return Err(Failure::argument(format!("a window begins at a multiple of {ALIGNMENT}, not at {buffer:p}")));
        }
        if bytes == 0 {
            return Err(Failure::argument("a window has at least one byte"));
        }
        let number = comm.windows.add(buffer as usize);
        // SAFETY: the program's place.
        unsafe { window.write_unaligned(number as Window) };
        Ok(())
    }
}

nccl! {
    /// Lets other processes unmap the buffers of this rank, as the program may free them next.
    fn ncclCommWindowDeregister(comm: abi::Comm, window: Window) {
        let comm = registry::find(comm)?;
        comm.windows.remove(window as usize).ok_or_else(|| unknown(window))?;
        let open = comm.open()?;
        if let Some(gpu) = &mut *lock(&open.gpu) {
            gpu.collectives_mut().release_buffers()?;
        }
        Ok(())
    }
}

nccl! {
    fn ncclWinGetUserPtr(comm: abi::Comm, window: Window, place: *mut *mut c_void) {
        check_place(place, "the address")?;
        let comm = registry::find(comm)?;
        let address = comm.windows.get(window as usize);
        // SAFETY: the program's place.
        unsafe { place.write_unaligned(address.ok_or_else(|| unknown(window))? as *mut c_void) };
        Ok(())
    }
}

fn unknown(window: Window) -> Failure {
    Failure::argument(format!(
        "ncclCommWindowRegister did not return the window {window:p}, or it was deregistered"
    ))
}

/// Why there are no one-sided calls.
fn one_sided() -> Failure {
    Failure::usage("one-sided calls on windows are not offered: use ncclSend and ncclRecv")
}

nccl! {
    fn ncclPutSignal(
        _local: *const c_void, _count: usize, _data_type: c_int, _peer: c_int, _window: Window, _offset: usize, _signal: c_int,
        _context: c_int, _flags: c_uint, _comm: abi::Comm, _stream: Stream,
    ) {
        Err(one_sided())
    }
}

nccl! {
    fn ncclSignal(_peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, _comm: abi::Comm, _stream: Stream) {
        Err(one_sided())
    }
}

nccl! {
    fn ncclWaitSignal(_count: c_int, _signals: *mut WaitSignal, _comm: abi::Comm, _stream: Stream) {
        Err(one_sided())
    }
}
