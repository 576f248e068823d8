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

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The offset of a field, by its name in C.
    fn offset(structure: &str, field: &str) -> usize {
        match (structure, field) {
            ("ncclConfig_t", "magic") => offset_of!(Config, magic),
            ("ncclConfig_t", "version") => offset_of!(Config, version),
            ("ncclConfig_t", "blocking") => offset_of!(Config, blocking),
            ("ncclConfig_t", "cgaClusterSize") => offset_of!(Config, cga_cluster_size),
            ("ncclConfig_t", "netName") => offset_of!(Config, net_name),
            ("ncclConfig_t", "splitShare") => offset_of!(Config, split_share),
            ("ncclConfig_t", "trafficClass") => offset_of!(Config, traffic_class),
            ("ncclConfig_t", "commName") => offset_of!(Config, comm_name),
            ("ncclConfig_t", "collnetEnable") => offset_of!(Config, collnet_enable),
            ("ncclConfig_t", "shrinkShare") => offset_of!(Config, shrink_share),
            ("ncclConfig_t", "nChannelsPerNetPeer") => offset_of!(Config, channels_per_net_peer),
            ("ncclConfig_t", "graphStreamOrdering") => offset_of!(Config, graph_stream_ordering),
            ("ncclSimInfo_t", "estimatedTime") => offset_of!(SimInfo, estimated_time),
            ("ncclCommProperties_t", "rank") => offset_of!(Properties, rank),
            ("ncclCommProperties_t", "deviceApiSupport") => offset_of!(Properties, has_device_api),
            ("ncclCommProperties_t", "multimemSupport") => offset_of!(Properties, has_multimem),
            ("ncclCommProperties_t", "ginType") => offset_of!(Properties, gin_type),
            ("ncclCommProperties_t", "hostRmaSupport") => offset_of!(Properties, has_host_rma),
            ("ncclCommProperties_t", "railedGinType") => offset_of!(Properties, railed_gin_type),
            _ => panic!("{structure}.{field} is not listed here"),
        }
    }

    #[test]
    fn structures_are_those_of_c() {
        let mut compared = 0;
        for line in include_str!("../tests/layout.h").lines() {
            let Some((kind, rest)) = line.trim_end_matches(')').split_once('(') else { continue };
            let words: Vec<&str> = rest.split(", ").collect();
            let (found, wanted) = match (kind, &words[..]) {
                ("FIELD", [structure, field, at]) => (offset(structure, field), at),
                ("SIZE", ["ncclUniqueId", bytes]) => (size_of::<UniqueId>(), bytes),
                ("SIZE", ["ncclConfig_t", bytes]) => (size_of::<Config>(), bytes),
                ("SIZE", ["ncclSimInfo_t", bytes]) => (size_of::<SimInfo>(), bytes),
                ("SIZE", ["ncclTeam_t", bytes]) => (size_of::<Team>(), bytes),
                ("SIZE", ["ncclCommProperties_t", bytes]) => (size_of::<Properties>(), bytes),
                _ => panic!("{line}"),
            };
            assert_eq!(found.to_string(), **wanted, "{line}");
            compared += 1;
        }
        assert_eq!(compared, 24);
    }
}
