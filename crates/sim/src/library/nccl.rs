//! NVIDIA's NCCL.

use weftlink_plan::plan::Protocol;

use crate::estimate::Machine;
use crate::setup::{LibraryAlgorithm, Operation, Setup, Version};

/// GPUs of a domain from which on switches sum sooner than rings do.
const NVLS_GPUS: f64 = 5.0;

/// Whether NCCL would take an algorithm with a protocol, or was told to.
pub(super) fn allows(
    setup: &Setup,
    machine: &Machine,
    operation: Operation,
    algorithm: LibraryAlgorithm,
    protocol: Protocol,
) -> bool {
    use LibraryAlgorithm as A;
    let switched = matches!(algorithm, A::Nvls | A::NvlsTree | A::CollnetDirect | A::CollnetChain);
    if switched && protocol != Protocol::Simple {
        return false;
    }
    if protocol == Protocol::Ll128 && !machine.keeps_lines {
        return false;
    }
    if operation.is_copy() || matches!(operation, Operation::AllToAll | Operation::SendReceive) {
        // Messages take LL below 16 KiB only, which the closed form does not tell apart.
        return algorithm == A::Direct && protocol == Protocol::Simple;
    }
    if setup.protocol.is_some_and(|told| told != protocol && !switched) {
        return false;
    }
    if let Some(told) = setup.algorithm {
        return told == algorithm;
    }
    match algorithm {
        A::Ring => true,
        A::Tree => operation == Operation::AllReduce,
        A::Nvls | A::NvlsTree => {
            let since = Version { major: 2, minor: if algorithm == A::Nvls { 17 } else { 18 } };
            operation == Operation::AllReduce
                && machine.switch_sums
                && machine.island >= NVLS_GPUS
                && (algorithm == A::Nvls) == (machine.islands == 1)
                && setup.version.is_none_or(|version| version >= since)
        }
        // Sums in the network need its plugin: only where it is asked for.
        A::CollnetDirect | A::CollnetChain | A::Direct => false,
    }
}
