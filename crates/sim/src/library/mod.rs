//! Models of the libraries' choices: algorithm and protocol, by version, GPU generation, wiring and size.

mod nccl;
mod rccl;
mod spec;

use weftlink_plan::Kind;
use weftlink_plan::plan::Protocol;

pub use spec::{LibrarySpec, LibrarySpecError, known, parse_library, version_of};

use crate::constants::Constants;
use crate::estimate::{Estimate, Machine, View, estimate};
use crate::setup::{Library, LibraryAlgorithm, Operation, Setup};

/// A library's choice for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: LibraryAlgorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Its cost.
    pub estimate: Estimate,
}

/// The library's choice and its cost. `None` if its settings force an algorithm that does not exist for the operation, and for libraries
/// that choose by tables, not by cost.
pub fn predict(constants: &Constants, setup: &Setup, operation: Operation, bytes: u64) -> Option<Prediction> {
    predict_on(constants, &Machine::new(constants, setup), setup, operation, bytes)
}

/// The same with a prepared machine.
pub fn predict_on(
    constants: &Constants,
    machine: &Machine,
    setup: &Setup,
    operation: Operation,
    bytes: u64,
) -> Option<Prediction> {
    let bytes = bytes as f64;
    let charge =
        |view, algorithm, protocol| estimate(constants, machine, view, operation, bytes, algorithm, protocol);
    let mut best: Option<(f64, LibraryAlgorithm, Protocol)> = None;
    for &algorithm in LibraryAlgorithm::ALL {
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            let allowed = match setup.library {
                Library::Nccl => nccl::allows(setup, machine, operation, algorithm, protocol),
                Library::Rccl | Library::OneCcl => {
                    rccl::allows(setup, machine, operation, algorithm, protocol)
                }
                // Copy engines execute copies, whatever the library.
                Library::Msccl | Library::Gloo | Library::OpenMpi | Library::Weft => {
                    operation.is_copy() && algorithm == LibraryAlgorithm::Direct
                }
            };
            if !allowed {
                continue;
            }
            if let Some(cost) = charge(View::Tuner, algorithm, protocol) {
                let cost = cost.device_us();
                if best.is_none_or(|(least, ..)| cost < least) {
                    best = Some((cost, algorithm, protocol));
                }
            }
        }
    }
    let (_, algorithm, protocol) = best?;
    let estimate = charge(View::Actual, algorithm, protocol)?;
    Some(Prediction { algorithm, protocol, estimate })
}

impl Library {
    /// What people run instead of an operation that it does not have; `None` if it has one. Gathers, scatters and all-to-alls are groups of
    /// its messages.
    pub fn lacks(self, kind: Kind) -> Option<&'static str> {
        let is_for_gpus = matches!(self, Library::Nccl | Library::Rccl | Library::OneCcl | Library::Msccl);
        match kind {
            Kind::AllGatherV if is_for_gpus => Some("torch.distributed broadcasts each rank's block instead"),
            Kind::ReduceScatterV if is_for_gpus => {
                Some("torch.distributed reduces each rank's block instead")
            }
            Kind::AllGatherV | Kind::ReduceScatterV | Kind::AllToAllV
                if matches!(self, Library::Gloo | Library::OpenMpi) =>
            {
                Some("the model has no blocks of different lengths")
            }
            Kind::Scan | Kind::ExclusiveScan if is_for_gpus => {
                Some("an all-gather of the buffers and a local sum do the same")
            }
            Kind::Barrier if is_for_gpus => {
                Some("torch.distributed runs an all-reduce of one element instead (all-reduce --size 4)")
            }
            Kind::Neighbours if is_for_gpus => Some("programs send messages instead (send-receive)"),
            _ => None,
        }
    }

    /// The evidence behind its predictions, in words.
    pub fn evidence(self) -> &'static str {
        match self {
            Library::Nccl => "checked against about 3,000 published measurements of 40 machines",
            Library::Rccl => {
                "thin evidence (61 published all-reduce measurements of 3 machines with MI300X and MI325X)"
            }
            Library::OneCcl => {
                "no evidence (no known measurements; rings at Xe Link's line rates with the constants of xGMI)"
            }
            Library::Msccl => {
                "no evidence (the program's steps with the constants of NCCL's links, lanes and hops; no measurements)"
            }
            Library::Gloo | Library::OpenMpi => {
                "between cores of one host checked against runs on two virtual machines; GPU buffer copies and networks unverified"
            }
            Library::Weft => {
                "between cores of one host checked against runs on two virtual machines; on GPUs unverified, with the constants of NCCL's links"
            }
        }
    }
}
