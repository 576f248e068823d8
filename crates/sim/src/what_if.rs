//! What if it were otherwise: what a machine's columns do not say, and what its owner may think of changing.
//!
//! Some of it changes the machine itself ([`Setup::over_sockets`](crate::setup::Setup::over_sockets) and the like) and is a setup like any other. The rest is in
//! [`WhatIf`], whose default is what the constants were fitted with.

/// Who made a host's CPUs: NCCL's tuner goes by it between nodes.
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

/// What is not as it usually is. By default NICs reach GPUs by themselves where their network can, slots carry nothing else, CPUs are
/// of either vendor, buffers are not registered, and a library takes as many channels as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct WhatIf {
    /// NICs do not reach GPUs: what crosses is copied to host memory first (`NCCL_NET_GDR_LEVEL=LOC`, no peermem, no dmabuf).
    pub no_gpudirect: bool,
    /// What storage takes of every GPU's slot, each way.
    pub storage_gbytes_per_second: f64,
    /// Who made the CPUs, where it is known.
    pub cpu: Option<CpuVendor>,
    /// Buffers are registered as symmetric windows, so that NCCL's symmetric kernels may be used.
    pub symmetric: bool,
    /// Channels, or CTAs, that a library is limited to (`NCCL_MAX_CTAS`).
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

    /// How much longer it takes otherwise: with 1 KiB and with 1 GiB.
    fn longer(usual: &Setup, otherwise: &Setup) -> (f64, f64) {
        let of = |bytes| time_us(otherwise, bytes) / time_us(usual, bytes);
        (of(1 << 10), of(1 << 30))
    }

    fn within(value: f64, least: f64, most: f64) {
        assert!((least..=most).contains(&value), "{value} is not from {least} to {most}");
    }

    fn with(change: impl Fn(&mut WhatIf)) -> Setup {
        let mut setup = cluster();
        change(&mut setup.what_if);
        setup
    }

    #[test]
    fn without_gpudirect_slots_and_host_memory_limit() {
        let (small, large) = longer(&cluster(), &with(|what_if| what_if.no_gpudirect = true));
        within(small, 1.1, 1.8);
        within(large, 1.5, 4.0);
        // Within a node nothing crosses.
        let node = Setup { nodes: 1, network: Network::None, nics_per_node: 0, ..cluster() };
        let mut otherwise = node.clone();
        otherwise.what_if.no_gpudirect = true;
        assert_eq!(longer(&node, &otherwise), (1.0, 1.0));
    }

    #[test]
    fn sockets_are_an_order_slower() {
        let (small, large) = longer(&cluster(), &cluster().over_sockets());
        within(small, 1.5, 6.0);
        within(large, 8.0, 25.0);
    }

    #[test]
    fn without_peer_access_a_node_falls_back_to_its_host() {
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
    fn storage_takes_its_part_of_slots() {
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
    fn amd_hosts_take_longer_to_feed_the_network() {
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
    fn one_thread_for_all_gpus_makes_small_calls_wait() {
        let node = Setup { nodes: 1, network: Network::None, nics_per_node: 0, ..cluster() };
        let by_hand = Setup { launch: Some(Launch::OneThread), ..node.clone() };
        let (small, large) = longer(&node, &by_hand);
        within(small, 1.5, 5.0);
        within(large, 1.0, 1.05);
    }
}
