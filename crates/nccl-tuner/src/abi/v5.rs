//! Version 5: NCCL 2.28 and later. A communicator has a number, and NCCL passes the NVLink domains and the constants of its own model, which
//! the tuner leaves as they are.

#![allow(unsafe_code)] // Addresses of NCCL.

use std::ffi::{c_int, c_void};

use weftlink_nccl_plugin::log::LoggerFunction;
use weftlink_nccl_plugin::text::Name;

use super::v4::{GetCollInfo, destroy, get_coll_info};

/// `init`: its last two arguments are structures that the tuner does not read.
pub(super) type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    usize,
    usize,
    Option<LoggerFunction>,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// `ncclTuner_v5_t`.
#[repr(C)]
pub(super) struct Tuner {
    pub(super) name: Name,
    pub(super) init: Init,
    pub(super) get_coll_info: GetCollInfo,
    pub(super) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
static ncclTunerPlugin_v5: Tuner = Tuner { name: super::NAME, init, get_coll_info, finalize: destroy };

/// # Safety
/// NCCL calls it, with addresses as its interface says.
pub(super) unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    nodes: usize,
    logger: Option<LoggerFunction>,
    _domains: *mut c_void,
    _constants: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { super::init(context, ranks, nodes, logger) }
}
