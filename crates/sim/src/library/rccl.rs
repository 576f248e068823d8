//! RCCL: NCCL's rings and trees on xGMI. The evidence is thin: two systems, all-reduce only.

use weftlink_plan::plan::Protocol;

use crate::estimate::Machine;
use crate::setup::{LibraryAlgorithm, Operation, Setup};

/// Whether RCCL considers an algorithm with a protocol, by default or because its settings force it.
pub(super) fn allows(
    setup: &Setup,
    machine: &Machine,
    operation: Operation,
    algorithm: LibraryAlgorithm,
    protocol: Protocol,
) -> bool {
    let rings_and_trees =
        matches!(algorithm, LibraryAlgorithm::Ring | LibraryAlgorithm::Tree | LibraryAlgorithm::Direct);
    rings_and_trees && super::nccl::allows(setup, machine, operation, algorithm, protocol)
}
