//! NCCL: the algorithms and protocols it may use, by version, GPU generation and wiring. Cost decides among them.
//!
//! Sources: the release notes of the versions in `tuner.rs`, and the tuner of 2.30 (`src/graph/tuning.cc`).

use weftlink_plan::plan::Protocol;

use crate::estimate::Machine;
use crate::gpu::Generation;
use crate::setup::{LibraryAlgorithm, Operation, Setup};
use crate::tuner::{is_at_least, since};

/// Whether NCCL considers an algorithm with a protocol, by default or because its settings force it.
pub(super) fn allows(
    setup: &Setup,
    machine: &Machine,
    operation: Operation,
    algorithm: LibraryAlgorithm,
    protocol: Protocol,
) -> bool {
    use LibraryAlgorithm as A;
    let simple_only =
        matches!(algorithm, A::Nvls | A::NvlsTree | A::CollnetDirect | A::CollnetChain | A::Pat);
    if simple_only && protocol != Protocol::Simple {
        return false;
    }
    if protocol == Protocol::Ll128 && (!machine.ll128 || algorithm == A::Symmetric) {
        return false;
    }
    if operation.is_copy() || operation.is_messages() {
        // Messages below 16 KiB use LL; the closed form handles that itself.
        return algorithm == A::Direct && protocol == Protocol::Simple;
    }
    if setup.protocol.is_some_and(|forced| forced != protocol && !simple_only) {
        return false;
    }
    if let Some(forced) = setup.algorithm {
        return forced == algorithm;
    }
    let parts = matches!(operation, Operation::AllGather | Operation::ReduceScatter);
    match algorithm {
        A::Ring => true,
        A::Tree => operation == Operation::AllReduce,
        A::Nvls | A::NvlsTree => {
            let is_nvls = algorithm == A::Nvls;
            operation == Operation::AllReduce
                && machine.has_nvls
                && machine.island >= machine.nvls_gpus
                && is_nvls == (machine.islands == 1)
                && is_at_least(setup, if is_nvls { since::NVLS } else { since::NVLS_TREE })
        }
        A::Pat => parts && machine.island == 1.0 && machine.islands > 1 && is_at_least(setup, since::PAT),
        A::Symmetric => {
            (parts || operation == Operation::AllReduce)
                && setup.what_if.symmetric
                && machine.islands == 1
                && !machine.pcie
                && machine.generation >= Generation::Volta
                && is_at_least(setup, since::SYMMETRIC)
        }
        // Reductions in the network need a plugin: only if the settings force them.
        A::CollnetDirect | A::CollnetChain | A::Direct => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::Constants;
    use crate::gpu::gpu;
    use crate::library::{Prediction, predict};
    use crate::setup::{Intra, Network, Version};
    use crate::tuner::supports_ll128;

    fn node() -> Setup {
        Setup { gpus_per_node: 8, pcie_generation: 5, ..Setup::pair(gpu("h100"), Intra::NvSwitch) }
    }

    fn cluster(nodes: u32) -> Setup {
        Setup { nodes, network: Network::InfiniBand, nics_per_node: 8, nic_gbits_per_second: 400.0, ..node() }
    }

    fn of(setup: &Setup, minor: u32, operation: Operation, bytes: u64) -> Prediction {
        let setup = Setup { version: Some(Version { major: 2, minor }), ..setup.clone() };
        predict(&Constants::shipped(), &setup, operation, bytes).unwrap()
    }

    /// The choices of the versions before and after a change, and the slowdown of the older one.
    fn change(
        setup: &Setup,
        since: u32,
        operation: Operation,
        bytes: u64,
    ) -> (LibraryAlgorithm, LibraryAlgorithm, f64) {
        let (before, after) = (of(setup, since - 1, operation, bytes), of(setup, since, operation, bytes));
        (before.algorithm, after.algorithm, before.estimate.total_us() / after.estimate.total_us())
    }

    #[test]
    fn nvls_since_2_17_and_nvls_tree_since_2_18() {
        use LibraryAlgorithm::{Nvls, NvlsTree, Ring, Tree};
        let (before, after, longer) = change(&node(), since::NVLS, Operation::AllReduce, 1 << 30);
        assert_eq!((before, after), (Ring, Nvls));
        assert!((1.2..1.6).contains(&longer), "{longer}");
        let (before, after, longer) = change(&cluster(2), since::NVLS_TREE, Operation::AllReduce, 1 << 30);
        assert_eq!(after, NvlsTree);
        assert!(matches!(before, Ring | Tree) && (1.05..2.5).contains(&longer), "{before:?} {longer}");
        // The switches of Ampere cannot reduce.
        let older = Setup { gpu: gpu("a100"), ..node() };
        assert_eq!(change(&older, since::NVLS, Operation::AllReduce, 1 << 30), (Ring, Ring, 1.0));
    }

    #[test]
    fn pat_since_2_23_with_one_gpu_per_node() {
        use LibraryAlgorithm::{Pat, Ring};
        let alone = Setup { gpus_per_node: 1, nics_per_node: 1, intra: Intra::None, ..cluster(64) };
        for operation in [Operation::AllGather, Operation::ReduceScatter] {
            let (before, after, longer) = change(&alone, since::PAT, operation, 64 << 10);
            assert_eq!((before, after), (Ring, Pat));
            assert!((1.5..20.0).contains(&longer), "{longer}");
            // Rings are faster for large parts.
            assert_eq!(change(&alone, since::PAT, operation, 4 << 30), (Ring, Ring, 1.0));
            assert_eq!(change(&cluster(64), since::PAT, operation, 64 << 10), (Ring, Ring, 1.0));
        }
    }

    #[test]
    fn pxn_since_2_12() {
        let (_, _, longer) = change(&cluster(16), since::PXN, Operation::AllToAll, 128 << 10);
        assert!((1.5..2.1).contains(&longer), "{longer}");
        let cards = Setup { intra: Intra::PciePeers, gpu: gpu("l40s"), ..cluster(16) };
        assert_eq!(change(&cards, since::PXN, Operation::AllToAll, 128 << 10).2, 1.0);
    }

    #[test]
    fn symmetric_kernels_need_2_27_and_windows() {
        use LibraryAlgorithm::Symmetric;
        let mut windows = node();
        windows.what_if.symmetric = true;
        for operation in [Operation::AllReduce, Operation::AllGather, Operation::ReduceScatter] {
            let (before, after, longer) = change(&windows, since::SYMMETRIC, operation, 8 << 10);
            assert!(before != Symmetric && after == Symmetric, "{before:?} {after:?}");
            assert!((1.3..4.0).contains(&longer), "{operation:?} {longer}");
            assert_ne!(of(&node(), 30, operation, 8 << 10).algorithm, Symmetric);
        }
        let mut across = cluster(2);
        across.what_if.symmetric = true;
        assert_ne!(of(&across, 30, Operation::AllReduce, 8 << 10).algorithm, Symmetric);
    }

    #[test]
    fn ll128_needs_2_5_volta_nvlink_and_gpudirect() {
        let at = |setup: &Setup, minor| {
            supports_ll128(&Setup { version: Some(Version { major: 2, minor }), ..setup.clone() })
        };
        assert!(!at(&node(), 4) && at(&node(), 5) && at(&cluster(2), 30));
        assert!(!at(&Setup { gpu: gpu("p100"), ..node() }, 30));
        assert!(!at(&Setup { intra: Intra::PciePeers, ..node() }, 30));
        let mut staged = cluster(2);
        staged.what_if.no_gpudirect = true;
        assert!(!at(&staged, 30) && !at(&cluster(2).over_sockets(), 30));
        // A version without LL128 cannot be forced to use it.
        let forced = Setup { protocol: Some(Protocol::Ll128), ..cluster(2) };
        assert_eq!(of(&forced, 30, Operation::AllReduce, 1 << 20).protocol, Protocol::Ll128);
        let forced = Setup { version: Some(Version { major: 2, minor: 4 }), ..forced };
        assert!(predict(&Constants::shipped(), &forced, Operation::AllReduce, 1 << 20).is_none());
    }

    #[test]
    fn collnet_is_used_only_if_forced() {
        use LibraryAlgorithm::{CollnetChain, CollnetDirect};
        for bytes in [8, 1 << 20, 1 << 30] {
            let chosen = of(&cluster(8), 30, Operation::AllReduce, bytes).algorithm;
            assert!(!matches!(chosen, CollnetChain | CollnetDirect));
        }
        let forced = Setup { algorithm: Some(CollnetDirect), ..cluster(8) };
        assert_eq!(of(&forced, 30, Operation::AllReduce, 1 << 30).algorithm, CollnetDirect);
    }
}
