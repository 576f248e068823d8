//! Version 4: NCCL 2.24 and later. It also says whether buffers are registered, which the tuner does not use.

#![allow(unsafe_code)] // Addresses of NCCL.

use std::ffi::{c_int, c_void};

use weftlink_nccl_plugin::log::LoggerFunction;
use weftlink_nccl_plugin::text::Name;

/// `getCollInfo`, the same in all later versions.
pub(super) type GetCollInfo = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// `ncclTuner_v4_t`.
#[repr(C)]
pub(super) struct Tuner {
    pub(super) name: Name,
    pub(super) init: unsafe extern "C" fn(usize, usize, Option<LoggerFunction>, *mut *mut c_void) -> c_int,
    pub(super) get_coll_info: GetCollInfo,
    pub(super) destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
static ncclTunerPlugin_v4: Tuner = Tuner { name: super::NAME, init, get_coll_info, destroy };

/// # Safety
/// NCCL calls it, with addresses as its interface says.
unsafe extern "C" fn init(
    ranks: usize,
    nodes: usize,
    logger: Option<LoggerFunction>,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { super::init(context, ranks, nodes, logger) }
}

/// # Safety
/// NCCL calls it, with addresses as its interface says.
pub(super) unsafe extern "C" fn get_coll_info(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    _operations: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    _are_registered: c_int,
    channels: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { super::tune(context, function, bytes, (costs, algorithms, protocols), channels) }
}

/// # Safety
/// NCCL calls it, with a context that it got from `init`.
pub(super) unsafe extern "C" fn destroy(context: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { super::end(context) }
}
