//! The types of NCCL 2.30, as programs see them.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A result code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum ResultCode {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
    Timeout = 8,
}

/// The bytes of an identifier.
pub(crate) const ID_BYTES: usize = 128;

/// What the ranks of a communicator are given to find each other. Functions take it by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId {
    pub(crate) bytes: [u8; ID_BYTES],
}

/// A communicator: a number that the [registry](crate::registry) knows.
pub(crate) type Comm = *mut c_void;
/// A window: likewise.
pub(crate) type Window = *mut c_void;
/// A stream of CUDA.
pub(crate) type Stream = *mut c_void;

/// An integer of a configuration that is not set.
pub(crate) const UNSET: c_int = c_int::MIN;
/// Marks configurations.
pub(crate) const MAGIC: c_uint = 0xcafe_beef;
/// Marks predictions.
pub(crate) const SIM_MAGIC: c_uint = 0x7468_5283;
/// The color of ranks that get no communicator.
pub(crate) const NO_COLOR: c_int = -1;

/// The configuration of a communicator. Older programs have a shorter one, and newer ones a longer one: `size` says.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) net_name: *const c_char,
    pub(crate) split_share: c_int,
    pub(crate) traffic_class: c_int,
    pub(crate) comm_name: *const c_char,
    pub(crate) collnet_enable: c_int,
    pub(crate) cta_policy: c_int,
    pub(crate) shrink_share: c_int,
    pub(crate) nvls_ctas: c_int,
    pub(crate) channels_per_net_peer: c_int,
    pub(crate) nvlink_centric_sched: c_int,
    pub(crate) graph_usage_mode: c_int,
    pub(crate) rma_contexts: c_int,
    pub max_p2p_peers: c_int,
    pub(crate) graph_stream_ordering: c_int,
}

/// A predicted time.
#[repr(C)]
pub(crate) struct SimInfo {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimated_time: f32,
}

/// How many signals to wait for, and whose.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WaitSignal {
    pub(crate) count: c_int,
    pub(crate) peer: c_int,
    pub(crate) signal: c_int,
    pub(crate) context: c_int,
}

/// Ranks at equal distances.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Team {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

/// What a communicator can do.
#[repr(C)]
pub(crate) struct Properties {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) rank: c_int,
    pub(crate) ranks: c_int,
    pub(crate) cuda_device: c_int,
    pub(crate) nvml_device: c_int,
    pub(crate) has_device_api: bool,
    pub(crate) has_multimem: bool,
    pub(crate) gin_type: c_int,
    pub(crate) lsa_teams: c_int,
    pub(crate) has_host_rma: bool,
    pub(crate) railed_gin_type: c_int,
}
