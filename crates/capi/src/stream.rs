//! Collectives on a stream of a GPU
//!
//! The same calls on memory of an NVIDIA GPU, enqueued on a CUDA stream (a cudaStream_t or CUstream):
//! they return when the call is enqueued, and the buffers belong to the call until it has ended there.
//! The first one joins the ranks on their GPUs and the first one of a kind loads its plan: both wait
//! for the other ranks. weft_comm_check has the error of a call that failed. Ranks that are threads of
//! one process need a stream each, not the default stream. These functions are unverified on a GPU.

use std::ffi::{c_int, c_void};

use weftlink::plan::Collective;

use crate::any::{Op, Type};
use crate::call::Call;
use crate::comm::weft_comm;
use crate::error::{guard, weft_status};

/// Enqueues weft_all_reduce.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_reduce_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllReduce, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_reduce.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    root: c_int,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Reduce { root: weft_comm::root(root)? }, input, output, count, data_type)
                .op(op);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_reduce_scatter.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_scatter_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::ReduceScatter, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_scan.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scan_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::Scan, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_exclusive_scan.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_exclusive_scan_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::ExclusiveScan, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_broadcast.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_broadcast_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(
            Collective::Broadcast { root: weft_comm::root(root)? },
            input,
            output,
            count,
            data_type,
        );
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_all_gather.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_gather_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllGather, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_gather.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gather_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Gather { root: weft_comm::root(root)? }, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_scatter.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scatter_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Scatter { root: weft_comm::root(root)? }, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}

/// Enqueues weft_all_to_all.
///
/// # Safety
/// As for the blocking call, on memory of a GPU, until the call has ended on its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_to_all_on_stream(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    stream: *mut c_void,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllToAll, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.enqueue(comm, stream) }
    })
}
