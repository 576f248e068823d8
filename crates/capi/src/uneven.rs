//! Collectives with blocks of different lengths
//!
//! Counts are in elements, one for each rank. Blocks lie one after the other, without gaps.

use std::ffi::{c_int, c_void};

use weftlink::plan::Collective;

use crate::any::{Op, Type};
use crate::call::Call;
use crate::comm::weft_comm;
use crate::error::{Failure, guard, weft_status};
use crate::pointer::{check_not_null, reference, slice};
use crate::request::weft_request;

/// weft_all_gather with blocks of different lengths: `counts` has the elements of each rank's block.
///
/// # Safety
/// `comm` is null or a communicator; counts and buffers are as long as described, and nothing else uses the buffers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_gather_v(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let counts = unsafe { Counts::new(comm, counts, "counts") }?;
        let call =
            Call::new(Collective::AllGather, input, output, 0, data_type).uneven(counts.own, counts.all);
        // SAFETY: as above.
        unsafe { call.run(comm) }
    })
}

/// weft_reduce_scatter with blocks of different lengths: `counts` has the elements of each rank's block.
///
/// # Safety
/// `comm` is null or a communicator; counts and buffers are as long as described, and nothing else uses the buffers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_scatter_v(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    op: Op,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let counts = unsafe { Counts::new(comm, counts, "counts") }?;
        let call = Call::new(Collective::ReduceScatter, input, output, 0, data_type)
            .uneven(counts.all, counts.own)
            .op(op);
        // SAFETY: as above.
        unsafe { call.run(comm) }
    })
}

/// weft_all_to_all with blocks of different lengths: the number of elements sent to each rank, and
/// received from each. In place, both are the same.
///
/// # Safety
/// `comm` is null or a communicator; counts and buffers are as long as described, and nothing else uses the buffers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_to_all_v(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    sent: *const usize,
    received: *const usize,
    data_type: Type,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let sent = unsafe { Counts::new(comm, sent, "sent") }?.all;
        // SAFETY: as above.
        let received = unsafe { Counts::new(comm, received, "received") }?.all;
        let call = Call::new(Collective::AllToAll, input, output, 0, data_type).uneven(sent, received);
        // SAFETY: as above.
        unsafe { call.run(comm) }
    })
}

/// weft_gather with blocks of different lengths: `counts` has the elements of each rank's block. Ranks
/// other than `root` read only their own.
///
/// # Safety
/// `comm` is null or a communicator; counts and buffers are as long as described, and nothing else uses the buffers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gather_v(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    root: c_int,
) -> weft_status {
    guard(|| {
        let root = weft_comm::root(root)?;
        // SAFETY: the caller's.
        let counts = unsafe { Counts::rooted(comm, counts, root) }?;
        let call = Call::new(Collective::Gather { root }, input, output, 0, data_type)
            .uneven(counts.own, counts.at_root);
        // SAFETY: as above.
        unsafe { call.run(comm) }
    })
}

/// weft_scatter with blocks of different lengths: `counts` has the elements of each rank's block. Ranks
/// other than `root` read only their own.
///
/// # Safety
/// `comm` is null or a communicator; counts and buffers are as long as described, and nothing else uses the buffers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scatter_v(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    root: c_int,
) -> weft_status {
    guard(|| {
        let root = weft_comm::root(root)?;
        // SAFETY: the caller's.
        let counts = unsafe { Counts::rooted(comm, counts, root) }?;
        let call = Call::new(Collective::Scatter { root }, input, output, 0, data_type)
            .uneven(counts.at_root, counts.own);
        // SAFETY: as above.
        unsafe { call.run(comm) }
    })
}

/// Starts weft_all_gather_v.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_gather_v_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let counts = unsafe { Counts::new(comm, counts, "counts") }?;
        let call =
            Call::new(Collective::AllGather, input, output, 0, data_type).uneven(counts.own, counts.all);
        // SAFETY: as above.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_reduce_scatter_v.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_reduce_scatter_v_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    op: Op,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let counts = unsafe { Counts::new(comm, counts, "counts") }?;
        let call = Call::new(Collective::ReduceScatter, input, output, 0, data_type)
            .uneven(counts.all, counts.own)
            .op(op);
        // SAFETY: as above.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_all_to_all_v.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_all_to_all_v_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    sent: *const usize,
    received: *const usize,
    data_type: Type,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let sent = unsafe { Counts::new(comm, sent, "sent") }?.all;
        // SAFETY: as above.
        let received = unsafe { Counts::new(comm, received, "received") }?.all;
        let call = Call::new(Collective::AllToAll, input, output, 0, data_type).uneven(sent, received);
        // SAFETY: as above.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_gather_v.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gather_v_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    root: c_int,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let root = weft_comm::root(root)?;
        // SAFETY: the caller's.
        let counts = unsafe { Counts::rooted(comm, counts, root) }?;
        let call = Call::new(Collective::Gather { root }, input, output, 0, data_type)
            .uneven(counts.own, counts.at_root);
        // SAFETY: as above.
        unsafe { call.start(comm, request) }
    })
}

/// Starts weft_scatter_v.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_scatter_v_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: Type,
    root: c_int,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        let root = weft_comm::root(root)?;
        // SAFETY: the caller's.
        let counts = unsafe { Counts::rooted(comm, counts, root) }?;
        let call = Call::new(Collective::Scatter { root }, input, output, 0, data_type)
            .uneven(counts.at_root, counts.own);
        // SAFETY: as above.
        unsafe { call.start(comm, request) }
    })
}

/// The lengths of the blocks of all ranks.
struct Counts<'a> {
    all: &'a [usize],
    /// Those that the root needs: all of them there, none on other ranks.
    at_root: &'a [usize],
    /// That of this rank.
    own: &'a [usize],
}

impl<'a> Counts<'a> {
    /// # Safety
    /// `comm` is null or a communicator; `counts` is null or has a length for each of its ranks.
    unsafe fn new(comm: *const weft_comm, counts: *const usize, name: &str) -> Result<Self, Failure> {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // SAFETY: as above.
        let all = unsafe { slice(counts, comm.size as usize, name) }?;
        let own = std::slice::from_ref(&all[comm.rank as usize]);
        Ok(Self { all, at_root: all, own })
    }

    /// The same, for a rank that may know only its own length.
    ///
    /// # Safety
    /// As for `new`, except that ranks other than the root need only their own length.
    unsafe fn rooted(comm: *const weft_comm, counts: *const usize, root: u32) -> Result<Self, Failure> {
        // SAFETY: the caller's.
        let one = unsafe { reference(comm, "comm") }?;
        if one.rank == root {
            // SAFETY: as above.
            return unsafe { Self::new(comm, counts, "counts") };
        }
        check_not_null(counts, "counts")?;
        // SAFETY: as above.
        let own = std::slice::from_ref(unsafe { &*counts.add(one.rank as usize) });
        Ok(Self { all: own, at_root: &[], own })
    }
}
