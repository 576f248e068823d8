//! Version 6: NCCL 2.30 and later. It may ask for the size of chunks, which the tuner leaves to NCCL.

#![allow(unsafe_code)] // The name of a symbol.

use std::ffi::{c_int, c_void};

use weftlink_nccl_plugin::text::Name;

use super::v4::{GetCollInfo, destroy, get_coll_info};
use super::v5::{Init, init};

/// `ncclTuner_v6_t`.
#[repr(C)]
pub(super) struct Tuner {
    pub(super) name: Name,
    pub(super) init: Init,
    pub(super) get_coll_info: GetCollInfo,
    pub(super) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) get_chunk_size:
        Option<unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int>,
}

#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
static ncclTunerPlugin_v6: Tuner =
    Tuner { name: super::NAME, init, get_coll_info, finalize: destroy, get_chunk_size: None };
