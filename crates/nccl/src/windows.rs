//! Windows, which all ranks register together, and calls that write to them: checks what the program passes.
//!
//! Collectives and messages map every buffer at its first use, so a window makes none of them faster.

// Reads and writes the program's memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use crate::abi::{self, Stream, WaitSignal, Window as Handle};
use crate::calls::peer;
use crate::comm::Comm;
use crate::failure::{Failure, check_place};
use crate::lock::lock;
use crate::open::Open;
use crate::operations::type_of;
use crate::window::Window;
use crate::work::{Call, OneSided, Put};
use crate::{gpu, group, registry};

/// The flags that NCCL 2.30 knows: symmetric, and strictly ordered.
const FLAGS: c_int = 3;
/// The alignment that NCCL requires of a window.
const ALIGNMENT: usize = 4096;

nccl! {
    /// All ranks call it, and wait for each other.
    fn ncclCommWindowRegister(comm: abi::Comm, buffer: *mut c_void, bytes: usize, window: *mut Handle, flags: c_int) {
        let (comm, made) = new_window(comm, buffer, bytes, window, flags).inspect_err(group::note)?;
        group::call(comm, Call::OneSided(OneSided::Register(made)))
    }
}

fn new_window(
    comm: abi::Comm,
    buffer: *mut c_void,
    bytes: usize,
    place: *mut Handle,
    flags: c_int,
) -> Result<(Arc<Comm>, Arc<Window>), Failure> {
    check_place(place, "the window")?;
    let comm = registry::find(comm)?;
    if flags & !FLAGS != 0 {
        return Err(Failure::argument(format!(
            "the flags of a window are {flags:#x}, and only {FLAGS:#x} are known"
        )));
    }
    if buffer.is_null() || !(buffer as usize).is_multiple_of(ALIGNMENT) {
        return Err(Failure::argument(format!(
            "a window begins at a multiple of {ALIGNMENT}, not at {buffer:p}"
        )));
    }
    if bytes == 0 {
        return Err(Failure::argument("a window has at least one byte"));
    }
    if (buffer as usize).checked_add(bytes).is_none() {
        return Err(Failure::argument(format!("{bytes} bytes are more than there is memory")));
    }
    gpu::check_within(buffer as u64, bytes)?;
    let (address, on_gpu) = (buffer as u64, gpu::uses(buffer as u64)?);
    let new = |number| Arc::new(Window { number, address, bytes, on_gpu, peers: OnceLock::new() });
    let made = comm.windows.add(new);
    // SAFETY: the program's place.
    unsafe { place.write_unaligned(made.number as Handle) };
    Ok((comm, made))
}

nccl! {
    /// Lets other processes unmap the buffers of this rank, as the program may free them next.
    fn ncclCommWindowDeregister(comm: abi::Comm, window: Handle) {
        let comm = registry::find(comm)?;
        let found = comm.windows.get(window as usize).ok_or_else(|| unknown(window))?;
        if group::has(|call| matches!(call, Call::OneSided(OneSided::Register(pending)) if Arc::ptr_eq(pending, &found))) {
            return Err(Failure::usage("the window is not registered yet: its group has not ended"));
        }
        // It must not overtake calls before, which may register the window.
        comm.settle();
        let window = comm.windows.remove(window as usize).ok_or_else(|| unknown(window))?;
        let open = comm.open()?;
        open.end_window(window.number as u64)?;
        if let Some(gpu) = &mut *lock(&open.gpu) {
            if let Some(Ok(_)) = window.peers.get().filter(|_| window.on_gpu) {
                gpu.collectives_mut().communicator().unshare_buffer(window.address, window.bytes);
            }
            gpu.collectives_mut().release_buffers()?;
        }
        Ok(())
    }
}

nccl! {
    fn ncclWinGetUserPtr(comm: abi::Comm, window: Handle, place: *mut *mut c_void) {
        check_place(place, "the address")?;
        let comm = registry::find(comm)?;
        let found = comm.windows.get(window as usize).ok_or_else(|| unknown(window))?;
        // SAFETY: the program's place.
        unsafe { place.write_unaligned(found.address as *mut c_void) };
        Ok(())
    }
}

fn unknown(window: Handle) -> Failure {
    Failure::argument(format!(
        "ncclCommWindowRegister did not return the window {window:p}, or it was deregistered"
    ))
}

/// A rank that a call names, on an open communicator.
fn target(comm: &Comm, rank: c_int, signal: c_int, context: c_int) -> Result<usize, Failure> {
    for (what, number) in [("signal", signal), ("context", context)] {
        if number != 0 {
            return Err(Failure::argument(format!("there is no {what} {number}: the only one is 0")));
        }
    }
    peer(&*comm.open()?, rank, "peer")
}

fn check_flags(flags: c_uint) -> Result<(), Failure> {
    if flags == 0 {
        Ok(())
    } else {
        Err(Failure::argument(format!("the flags are {flags:#x}, and must be 0")))
    }
}

/// Checks the bytes of a put, if there are any. No error ends the communicator.
fn put(
    window: &Window,
    open: &Open,
    peer: usize,
    from: u64,
    offset: u64,
    bytes: usize,
) -> Result<Option<Put>, Failure> {
    let (place, on_gpu) = (window.place(peer, offset, bytes)?, window.on_gpu);
    if bytes == 0 {
        return Ok(None);
    }
    if from == 0 {
        return Err(Failure::argument("the buffer is NULL"));
    }
    if gpu::uses(from)? != on_gpu {
        return Err(Failure::argument("of the buffer and the window, one is host memory, and one is not"));
    }
    if on_gpu != lock(&open.gpu).is_some() {
        return Err(Failure::usage(
            "the window is host memory, and the signals of this communicator are on GPUs",
        ));
    }
    Ok(Some(Put { place, on_gpu, offset, from, bytes }))
}

/// Makes a call, now or when the group ends. An error of its arguments is that of the group, too.
fn make(comm: abi::Comm, checked: impl FnOnce(&Comm) -> Result<OneSided, Failure>) -> Result<(), Failure> {
    let comm = registry::find(comm).inspect_err(group::note)?;
    let call = checked(&comm).inspect_err(group::note)?;
    group::call(comm, Call::OneSided(call))
}

nccl! {
    fn ncclPutSignal(
        from: *const c_void, count: usize, data_type: c_int, peer: c_int, window: Handle, offset: usize, signal: c_int,
        context: c_int, flags: c_uint, comm: abi::Comm, stream: Stream,
    ) {
        make(comm, |comm| {
            check_flags(flags)?;
            let peer = target(comm, peer, signal, context)?;
            let bytes = count.checked_mul(type_of(data_type)?.bytes());
            let bytes = bytes.ok_or_else(|| Failure::argument(format!("{count} elements are more than there is memory")))?;
            let window = comm.windows.get(window as usize).ok_or_else(|| unknown(window))?;
            let put = put(&window, &*comm.open()?, peer, from as u64, offset as u64, bytes)?;
            Ok(OneSided::Signal { peer, put, stream: stream as u64 })
        })
    }
}

nccl! {
    fn ncclSignal(peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: abi::Comm, stream: Stream) {
        make(comm, |comm| {
            check_flags(flags)?;
            Ok(OneSided::Signal { peer: target(comm, peer, signal, context)?, put: None, stream: stream as u64 })
        })
    }
}

nccl! {
    fn ncclWaitSignal(count: c_int, signals: *mut WaitSignal, comm: abi::Comm, stream: Stream) {
        make(comm, |comm| {
            let count = usize::try_from(count).map_err(|_| Failure::argument(format!("there are {count} descriptors")))?;
            if count > 0 {
                check_place(signals, "the descriptors")?;
            }
            let mut all = Vec::new();
            for index in 0..count {
                // SAFETY: the program's array has this many.
                let WaitSignal { count, peer, signal, context } = unsafe { signals.add(index).read_unaligned() };
                let times = u32::try_from(count);
                let times = times.map_err(|_| Failure::argument(format!("descriptor {index} waits for {count} signals")))?;
                all.push((target(comm, peer, signal, context)?, times));
            }
            all.retain(|(_, times)| *times > 0);
            Ok(OneSided::Wait { signals: all, stream: stream as u64 })
        })
    }
}
