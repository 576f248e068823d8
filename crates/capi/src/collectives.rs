//! Collectives
//!
//! They return when the call is done. `count` is the number of elements of one block, as in NCCL: what
//! one rank contributes to a gather and gets from a scatter. All ranks pass the same count, type,
//! operation and root.
//!
//! A call works in place if input and output are the same address, on all ranks. Where one side is
//! larger (gather and scatter of any kind), that address is the larger buffer, and the rank's own block
//! in it is the smaller side; the address of that block is accepted too, as in NCCL. Otherwise the
//! buffers must not overlap. Elements need not be aligned.

use std::ffi::{c_double, c_int, c_void};

use weftlink::plan::Collective;

use crate::any::{Op, Type};
use crate::call::Call;
use crate::comm::{lock, weft_comm};
use crate::error::{guard, weft_status};
use crate::pointer::{check_not_null, reference};

/// Combines the inputs of all ranks, element by element; every rank gets the result, the same bits
/// everywhere. Input and output have `count` elements.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_reduce(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllReduce, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Combines the inputs of all ranks into the output of `root`. The other ranks may pass a null output.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    root: c_int,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Reduce { root: weft_comm::root(root)? }, input, output, count, data_type)
                .op(op);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Combines the inputs of all ranks, `count` elements for each rank, and gives rank r block r of the
/// result: `count` elements.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_scatter(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::ReduceScatter, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Gives every rank the combination of the inputs of all ranks up to itself.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scan(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::Scan, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Gives every rank the combination of the inputs of all ranks before itself. The output of rank 0 is
/// not written.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_exclusive_scan(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::ExclusiveScan, input, output, count, data_type).op(op);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Gives every rank the input of `root`: `count` elements. The other ranks may pass a null input.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_broadcast(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
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
        unsafe { call.run(comm) }
    })
}

/// Gives every rank the inputs of all ranks in rank order: `count` elements of each.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_gather(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllGather, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Gives `root` the inputs of all ranks in rank order: `count` elements of each. The other ranks may
/// pass a null output.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gather(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Gather { root: weft_comm::root(root)? }, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Gives rank r block r of the input of `root`: `count` elements. The other ranks may pass a null input.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scatter(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    root: c_int,
) -> weft_status {
    guard(|| {
        let call =
            Call::new(Collective::Scatter { root: weft_comm::root(root)? }, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Sends block r of every rank's input to rank r, which stores the blocks in rank order: `count`
/// elements each.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_to_all(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
) -> weft_status {
    guard(|| {
        let call = Call::new(Collective::AllToAll, input, output, count, data_type);
        // SAFETY: the caller's.
        unsafe { call.run(comm) }
    })
}

/// Returns when all ranks have called it.
///
/// # Safety
/// `comm` is null or a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_barrier(comm: *mut weft_comm) -> weft_status {
    // SAFETY: the caller's.
    guard(|| unsafe { Call::barrier().run(comm) })
}

/// Makes an operation that sums the inputs of all ranks, this rank's multiplied by `factor` first. It
/// belongs to the communicator; ranks may pass different factors. A call in place multiplies the whole
/// buffer.
///
/// # Safety
/// `comm` is null or a communicator, `op` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_op_premultiplied_sum(
    comm: *mut weft_comm,
    factor: c_double,
    op: *mut Op,
) -> weft_status {
    guard(|| {
        check_not_null(op, "op")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        let made = lock(&comm.factors).add(factor)?;
        // SAFETY: as above.
        unsafe { op.write(made) };
        Ok(())
    })
}

/// Frees an operation that weft_op_premultiplied_sum made. Calls that were started keep it.
///
/// # Safety
/// `comm` is null or a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_op_free(comm: *mut weft_comm, op: Op) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        lock(&comm.factors).remove(op)
    })
}
