//! What-if questions: properties that a measurement's columns do not give, and changes that an owner may consider.
//!
//! Some change the machine itself ([`Setup::over_sockets`](crate::setup::Setup::over_sockets) and similar) and yield an ordinary setup. The
//! rest is in [`WhatIf`], whose default matches the measurements of the fit.

/// Vendor of a host's CPUs, which NCCL's tuner considers between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuVendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
}

impl CpuVendor {
    /// From `intel` or `amd`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "intel" => Some(Self::Intel),
            "amd" => Some(Self::Amd),
            _ => None,
        }
    }
}

/// Deviations from the usual machine. By default NICs use GPUDirect where their network supports it, PCIe slots carry no other traffic,
/// the CPU vendor is unknown, buffers are not registered, and the library's channels are not limited.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct WhatIf {
    /// No GPUDirect: network traffic is staged in host memory (`NCCL_NET_GDR_LEVEL=LOC`, no peermem, no dmabuf).
    pub no_gpudirect: bool,
    /// Bandwidth that storage takes of every GPU's slot, each way.
    pub storage_gbytes_per_second: f64,
    /// Vendor of the CPUs, if known.
    pub cpu: Option<CpuVendor>,
    /// Buffers are registered as symmetric windows, so that NCCL can use its symmetric kernels.
    pub symmetric: bool,
    /// Maximum number of channels (CTAs) of the library (`NCCL_MAX_CTAS`).
    pub channels_max: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::Constants;
    use crate::gpu::gpu;
    use crate::library::predict;
    use crate::setup::{Intra, Launch, Network, Operation, Setup};

    fn cluster() -> Setup {
        Setup {
            gpus_per_node: 8,
            nodes: 4,
            pcie_generation: 5,
            network: Network::InfiniBand,
            nics_per_node: 8,
            nic_gbits_per_second: 400.0,
            ..Setup::pair(gpu("h100"), Intra::NvSwitch)
        }
    }

    fn time_us(setup: &Setup, bytes: u64) -> f64 {
        predict(&Constants::shipped(), setup, Operation::AllReduce, bytes).unwrap().estimate.total_us()
    }

    /// Slowdown of the changed setup with 1 KiB and with 1 GiB.
    fn longer(usual: &Setup, otherwise: &Setup) -> (f64, f64) {
        let of = |bytes| time_us(otherwise, bytes) / time_us(usual, bytes);
        (of(1 << 10), of(1 << 30))
    }

    fn within(value: f64, least: f64, most: f64) {
        assert!((least..=most).contains(&value), "{value} is outside {least} to {most}");
    }

    fn with(change: impl Fn(&mut WhatIf)) -> Setup {
        let mut setup = cluster();
        change(&mut setup.what_if);
        setup
    }

    #[test]
    fn without_gpudirect_pcie_and_host_memory_limit() {
        let (small, large) = longer(&cluster(), &with(|what_if| what_if.no_gpudirect = true));
        within(small, 1.1, 1.8);
        within(large, 1.5, 4.0);
        // A single node has no network traffic.
        let node = Setup { nodes: 1, network: Network::None, nics_per_node: 0, ..cluster() };
        let mut otherwise = node.clone();
        otherwise.what_if.no_gpudirect = true;
        assert_eq!(longer(&node, &otherwise), (1.0, 1.0));
    }

    #[test]
    fn sockets_are_an_order_of_magnitude_slower() {
        let (small, large) = longer(&cluster(), &cluster().over_sockets());
        within(small, 1.5, 6.0);
        within(large, 8.0, 25.0);
    }

    #[test]
    fn without_peer_access_traffic_goes_through_host_memory() {
        let node = Setup { nodes: 1, network: Network::None, nics_per_node: 0, ..cluster() };
        let (small, large) = longer(&node, &node.clone().without_peer_access());
        within(small, 1.0, 5.0);
        within(large, 10.0, 40.0);
    }

    #[test]
    fn twice_the_nics_are_up_to_twice_as_fast() {
        let half = Setup { nics_per_node: 4, ..cluster() };
        let (small, large) = longer(&cluster(), &half);
        within(small, 0.9, 1.1);
        within(large, 1.6, 2.5);
        assert_eq!(half.with_nics_per_gpu(1).nics_per_node, 8);
    }

    #[test]
    fn storage_takes_bandwidth_of_pcie_slots() {
        let (small, large) = longer(&cluster(), &with(|what_if| what_if.storage_gbytes_per_second = 25.0));
        within(small, 1.0, 1.01);
        within(large, 1.1, 2.0);
        let cards =
            Setup { gpus_per_node: 4, pcie_generation: 5, ..Setup::pair(gpu("l40s"), Intra::PciePeers) };
        let mut shared = cards.clone();
        shared.what_if.storage_gbytes_per_second = 31.5;
        within(longer(&cards, &shared).1, 1.9, 2.1);
    }

    #[test]
    fn amd_hosts_have_longer_network_steps() {
        let of = |vendor| with(|what_if| what_if.cpu = Some(vendor));
        let ring = |setup: Setup| Setup { algorithm: Some(crate::setup::LibraryAlgorithm::Ring), ..setup };
        let (small, large) = longer(&ring(of(CpuVendor::Intel)), &ring(of(CpuVendor::Amd)));
        within(small, 1.1, 2.0);
        within(large, 1.0, 1.1);
    }

    #[test]
    fn fewer_channels_carry_less() {
        let node = Setup { nodes: 1, network: Network::None, nics_per_node: 0, ..cluster() };
        let ring = Setup { algorithm: Some(crate::setup::LibraryAlgorithm::Ring), ..node };
        let mut few = ring.clone();
        few.what_if.channels_max = Some(4);
        let (small, large) = longer(&ring, &few);
        within(small, 0.99, 1.01);
        within(large, 3.0, 7.0);
    }

    #[test]
    fn launching_from_one_thread_slows_small_calls() {
        let node = Setup { nodes: 1, network: Network::None, nics_per_node: 0, ..cluster() };
        let by_hand = Setup { launch: Some(Launch::OneThread), ..node.clone() };
        let (small, large) = longer(&node, &by_hand);
        within(small, 1.5, 5.0);
        within(large, 1.0, 1.05);
    }
}
