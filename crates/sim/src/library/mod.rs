//! Models of the libraries' choices: algorithm and protocol, by version, GPU generation, wiring and size.

mod nccl;
mod rccl;
mod spec;

use weftlink_plan::plan::Protocol;

pub use spec::{LibrarySpec, LibrarySpecError, known, newest, parse_library};

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
