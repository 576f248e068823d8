//! The end of communicators, and what programs ask of them: ranks, errors.

// Writes to the program's memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use crate::abi::{self, ResultCode};
use crate::comm::Unfinished;
use crate::failure::{self, Failure, check_place};
use crate::lock::lock;
use crate::{log, registry};

/// Writes a number to the program's memory.
fn give<T>(place: *mut T, value: T, what: &str) -> Result<(), Failure> {
    check_place(place, what)?;
    // SAFETY: the program's place.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

nccl! {
    fn ncclCommCount(comm: abi::Comm, count: *mut c_int) {
        give(count, registry::find(comm)?.open()?.size as c_int, "the number of ranks")
    }
}

nccl! {
    fn ncclCommUserRank(comm: abi::Comm, rank: *mut c_int) {
        give(rank, registry::find(comm)?.open()?.rank as c_int, "the rank")
    }
}

nccl! {
    fn ncclCommCuDevice(comm: abi::Comm, device: *mut c_int) {
        let own = registry::find(comm)?.device;
        let none = || Failure::usage("the communicator has no GPU: none was current where it was made");
        give(device, own.ok_or_else(none)? as c_int, "the GPU")
    }
}

/// What `ncclCommMemStats` counts: memory that can be suspended, whether it is, memory that cannot, and all.
const CAN_BE_SUSPENDED: c_int = 0;
const IS_SUSPENDED: c_int = 1;
const CANNOT_BE_SUSPENDED: c_int = 2;
const ALL: c_int = 3;

nccl! {
    /// Device memory of this rank's own communicator. None of it can be suspended.
    fn ncclCommMemStats(comm: abi::Comm, statistic: c_int, value: *mut u64) {
        let open = registry::find(comm)?.open()?;
        let allocated = || lock(&open.gpu).as_mut().map_or(0, |gpu| gpu.device_bytes() as u64);
        let number = match statistic {
            CAN_BE_SUSPENDED | IS_SUSPENDED => 0,
            CANNOT_BE_SUSPENDED | ALL => allocated(),
            _ => return Err(Failure::argument(format!("there is no statistic {statistic}"))),
        };
        give(value, number, "the statistic")
    }
}

nccl! {
    fn ncclCommGetAsyncError(comm: abi::Comm, error: *mut c_int) {
        give(error, registry::find(comm)?.status() as c_int, "the error")
    }
}

nccl! {
    /// Waits for the calls of this rank and leaves. Does not wait if the communicator does not block.
    fn ncclCommFinalize(comm: abi::Comm) {
        let comm = registry::find(comm)?;
        comm.open()?;
        comm.settle();
        if comm.config.blocking {
            return comm.close();
        }
        let unfinished = Unfinished::new(vec![Arc::clone(&comm)]);
        let work = move || unfinished.end(&comm.close());
        let started = std::thread::Builder::new().name("weft leave".to_owned()).spawn(work);
        started.map_err(|error| Failure::system(format!("cannot start a thread: {error}")))?;
        Err(Failure::in_progress())
    }
}

nccl! {
    /// Finalizes the communicator if the program has not, and forgets it.
    fn ncclCommDestroy(pointer: abi::Comm) {
        if pointer.is_null() {
            return Ok(());
        }
        let comm = registry::remove(pointer)?;
        comm.settle();
        let left = comm.close();
        log::info(comm.device, &format!("comm {pointer:p} - Destroy COMPLETE"));
        left
    }
}

nccl! {
    /// Ends all calls, of the other ranks too, and forgets the communicator.
    fn ncclCommAbort(pointer: abi::Comm) {
        if pointer.is_null() {
            return Ok(());
        }
        let comm = registry::remove(pointer)?;
        let text = "its program called ncclCommAbort".to_owned();
        comm.abort(Failure { code: ResultCode::InvalidUsage, text });
        log::info(comm.device, &format!("comm {pointer:p} - Abort COMPLETE"));
        Ok(())
    }
}

fn text_of(code: c_int) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the Weft developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
}

nccl! {
    fn ncclGetErrorString(code: c_int) -> *const c_char, or_if_it_panics c"".as_ptr(); {
        text_of(code).as_ptr()
    }
}

nccl! {
    /// The last error of the communicator, or else of this thread, or else of the process. The text is valid until the next error on this
    /// thread.
    fn ncclGetLastError(comm: abi::Comm) -> *const c_char, or_if_it_panics c"".as_ptr(); {
        failure::last(registry::find(comm).ok().and_then(|comm| comm.error_text()))
    }
}

nccl! {
    /// NCCL reads NCCL_DEBUG again. Here it is read once; the call is from 2.24 on a relic in NCCL, too.
    fn ncclResetDebugInit() -> (), or_if_it_panics (); {
        log::info(None, "ncclResetDebugInit: NCCL_DEBUG is read once");
    }
}

nccl! {
    fn ncclResetDebugInitInternal() -> (), or_if_it_panics (); {
        log::info(None, "ncclResetDebugInitInternal: NCCL_DEBUG is read once");
    }
}
