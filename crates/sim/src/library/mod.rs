//! What libraries choose: algorithm and protocol, by version, generation, wiring and size.

mod asked;
mod nccl;
mod rccl;

use weftlink_plan::plan::Protocol;

pub use asked::{Asked, AskedError, asked, known};

use crate::constants::Constants;
use crate::estimate::{Estimate, Machine, View, estimate};
use crate::setup::{Library, LibraryAlgorithm, Operation, Setup};

/// A call as a library would make it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: LibraryAlgorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// What it costs.
    pub estimate: Estimate,
}

/// What the library would choose, and what that costs; nothing where it was told to take what does not exist for the operation, and
/// nothing of libraries that choose by tables and not by costs.
pub fn predict(constants: &Constants, setup: &Setup, operation: Operation, bytes: u64) -> Option<Prediction> {
    predict_on(constants, &Machine::new(constants, setup), setup, operation, bytes)
}

/// The same on a machine that is known already.
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
                // Copy engines copy, whatever the library.
                Library::Msccl | Library::Gloo | Library::OpenMpi | Library::Weft => {
                    operation.is_copy() && algorithm == LibraryAlgorithm::Direct
                }
            };
            if !allowed {
                continue;
            }
            if let Some(cost) = charge(View::Chooser, algorithm, protocol) {
                let cost = cost.device_us();
                if best.is_none_or(|(least, ..)| cost < least) {
                    best = Some((cost, algorithm, protocol));
                }
            }
        }
    }
    let (_, algorithm, protocol) = best?;
    let estimate = charge(View::Real, algorithm, protocol)?;
    Some(Prediction { algorithm, protocol, estimate })
}

impl Library {
    /// What its predictions rest on, for whoever reads one.
    pub fn evidence(self) -> &'static str {
        match self {
            Library::Nccl => "held against some 3,000 published measurements of 40 systems",
            Library::Rccl => {
                "thin evidence: 61 published rows of a few systems with MI300X and MI325X, all of them all-reduces"
            }
            Library::OneCcl => {
                "no evidence: no measurement is known; rings at the vendor's line rates of Xe Link, charged as xGMI's are"
            }
            Library::Msccl => {
                "no evidence: the program's steps at what NCCL's links, lanes and hops are charged; none was measured"
            }
            Library::Gloo | Library::OpenMpi => {
                "between cores of one host held against runs on two virtual machines; copies of GPUs' buffers and networks were not"
            }
            Library::Weft => {
                "between cores of one host held against runs on two virtual machines; on GPUs unverified, at what NCCL's links are charged"
            }
        }
    }
}
