//! Collectives, started
//!
//! The same calls, which return at once.

use std::ffi::{c_int, c_void};

use weftlink::plan::Collective;

use crate::any::{Op, Type};
use crate::call::Call;
use crate::comm::weft_comm;
use crate::error::{guard, weft_status};
use crate::request::weft_request;

/// Starts weft_all_reduce.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_reduce_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllReduce, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_reduce.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    root: c_int,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Reduce { root: weft_comm::root(root)? }, input, output, count, data_type)
                .op(op);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_reduce_scatter.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_scatter_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::ReduceScatter, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_scan.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scan_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::Scan, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_exclusive_scan.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_exclusive_scan_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::ExclusiveScan, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_broadcast.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_broadcast_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
    request: *mut *mut weft_request,
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
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_all_gather.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_gather_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllGather, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_gather.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gather_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Gather { root: weft_comm::root(root)? }, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_scatter.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scatter_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Scatter { root: weft_comm::root(root)? }, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_all_to_all.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_to_all_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllToAll, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_barrier.
///
/// # Safety
/// `comm` is null or a communicator, `request` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_barrier_start(
    comm: *mut weft_comm,
    request: *mut *mut weft_request,
) -> weft_status {
    // SAFETY: the caller's.
    guard(|| unsafe { Call::barrier().start(comm, request) })
}
