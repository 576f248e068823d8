//! NCCL's features by version, and the figures of its tuner that the closed form uses.
//!
//! Sources: the release notes of the versions named, and the tuner of 2.30 (`src/graph/tuning.cc`). `library/nccl.rs` has the rules for
//! choosing an algorithm.

use weftlink_plan::plan::Protocol;

use crate::gpu::Generation;
use crate::setup::{Intra, Network, Setup, Version};
use crate::what_if::CpuVendor;

/// The share of a NIC's bandwidth that PAT gets (`tuning.cc`: PAT's bandwidth).
pub(crate) const PAT_SHARE: f64 = 0.75;

/// The minimum time of a ring step where the ring crosses the network (`NCCL_NET_OVERHEAD`): one microsecond on Intel hosts, two on AMD
/// hosts, three times as long with Simple.
pub(crate) fn network_overhead_us(vendor: CpuVendor, protocol: Protocol) -> f64 {
    let overhead = match vendor {
        CpuVendor::Intel => 1.0,
        CpuVendor::Amd => 2.0,
    };
    if protocol == Protocol::Simple { 3.0 * overhead } else { overhead }
}

/// The LL bandwidth that the tuner assumes between nodes, relative to Intel hosts (`llMaxBws`, rows by vendor: 39.0 and 20.4 GB/s, 22.5
/// and 19.0).
pub(crate) fn ll_relative_to_intel(vendor: CpuVendor, islands: u32) -> f64 {
    match vendor {
        CpuVendor::Intel => 1.0,
        CpuVendor::Amd if islands <= 2 => 22.5 / 39.0,
        CpuVendor::Amd => 19.0 / 20.4,
    }
}

/// The minor version of 2 that introduced each feature.
pub(crate) mod since {
    /// LL128: NVLink delivers 128-byte lines whole (release notes of 2.5).
    pub(crate) const LL128: u32 = 5;
    /// PXN: a GPU sends through another GPU's NIC ("Doubling all2all performance with NCCL 2.12").
    pub(crate) const PXN: u32 = 12;
    /// NVLS: the switches of a node reduce (release notes of 2.17).
    pub(crate) const NVLS: u32 = 17;
    /// NVLSTree: NVLS inside nodes, trees between them (release notes of 2.18).
    pub(crate) const NVLS_TREE: u32 = 18;
    /// PAT with one GPU per node (release notes of 2.23).
    pub(crate) const PAT: u32 = 23;
    /// Kernels for symmetric windows (release notes of 2.27).
    pub(crate) const SYMMETRIC: u32 = 27;
}

/// Whether the setup's version is at least 2.`minor`. An unspecified version is the newest.
pub(crate) fn is_at_least(setup: &Setup, minor: u32) -> bool {
    setup.version.is_none_or(|version| version >= Version { major: 2, minor })
}

/// Whether messages to the GPUs of a node are aggregated over NVLink at the GPU on their rail (PXN). Rings and trees stay on their rails
/// anyway.
pub(crate) fn uses_pxn(setup: &Setup) -> bool {
    let nvlink = !matches!(setup.intra, Intra::None | Intra::PciePeers | Intra::PcieHost);
    nvlink && is_at_least(setup, since::PXN)
}

/// Whether LL128 may be used: every link from GPU to GPU must deliver 128-byte lines whole. The tuner requires Volta or later, NVLink
/// inside a node, and NICs below the GPUs' PCIe switches (from Hopper on, NICs reached over NVLink too). NICs fed from host memory do
/// not qualify. Neither do sockets and libfabric: the tuner does not know their plugins, but their users turn LL128 off.
pub(crate) fn supports_ll128(setup: &Setup) -> bool {
    let inside = match setup.intra {
        Intra::PciePeers | Intra::PcieHost => false,
        Intra::None => !setup.gpu.is_card(),
        _ => true,
    };
    let across = match setup.network {
        Network::None => true,
        Network::InfiniBand | Network::Roce | Network::Efa => !setup.what_if.no_gpudirect,
        Network::Slingshot | Network::Tcp | Network::Tcpx | Network::Tcpxo => false,
    };
    inside && across && setup.gpu.generation() >= Generation::Volta && is_at_least(setup, since::LL128)
}
