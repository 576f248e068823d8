//! The entry point: predicts a collective on a fabric, as a library would execute it.

mod json;
mod limit;

use thiserror::Error;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::catalog::gpus::Vendor;
use weftlink_fabric::{Fabric, PeerAccess};
use weftlink_plan::Kind;
use weftlink_plan::plan::Protocol;

use crate::accuracy::{Class, band, expected, is_measured};
use crate::change;
use crate::constants::Constants;
use crate::execute::{ExecuteError, Execution, Runner};
use crate::library::LibrarySpec;
use crate::setup::{Launch, Library, LibraryAlgorithm, Operation, Setup};
use crate::survey::SurveyError;
use crate::what_if::WhatIf;

/// The library and its settings, and changes to the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The library; the newest known NCCL, RCCL or oneCCL for the fabric's GPUs if none is given.
    pub library: Option<LibrarySpec>,
    /// Text of the program that MSCCL runs.
    pub program: Option<String>,
    /// The algorithm that the library is set to use (`NCCL_ALGO`).
    pub algorithm: Option<LibraryAlgorithm>,
    /// The protocol that the library is set to use (`NCCL_PROTO`).
    pub protocol: Option<Protocol>,
    /// How kernels are launched.
    pub launch: Option<Launch>,
    /// Use sockets instead of RDMA on the same NICs.
    pub sockets: bool,
    /// GPUs exchange all data through host memory, whatever links connect them.
    pub no_peer_access: bool,
    /// Whether GPUs can access each other's memory over PCIe; as their driver usually allows if nothing is given.
    pub peer_access: Option<bool>,
    /// NICs per GPU.
    pub nics_per_gpu: Option<u32>,
    /// All other deviations from the usual machine.
    pub what_if: WhatIf,
}

/// Why a prediction is impossible.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The collective is not modelled.
    #[error("weft sim does not predict {kind}; it predicts {}", predicted())]
    Collective {
        /// The collective.
        kind: Kind,
    },
    /// The fabric cannot be modelled.
    #[error("{fabric}: {error}")]
    Survey {
        /// The fabric's name.
        fabric: String,
        /// The reason.
        error: SurveyError,
    },
    /// One GPU has no peer.
    #[error("{fabric} has one GPU and a collective needs two; name a fabric with more (`weft topo --list`)")]
    OneGpu {
        /// The fabric's name.
        fabric: String,
    },
    /// The library does not run on these GPUs.
    #[error("{library} does not run on {gpu}; choose another library")]
    Library {
        /// The library.
        library: &'static str,
        /// The GPU.
        gpu: &'static str,
    },
    /// The settings contradict the machine.
    #[error("{fabric}: {why}")]
    Setup {
        /// The fabric's name.
        fabric: String,
        /// The contradiction.
        why: String,
    },
    /// A call of no bytes.
    #[error("a call of 0 bytes has no bandwidth; give a size of 1 or more")]
    NoBytes,
    /// The buffer does not fit in the GPU's memory.
    #[error("{} do not fit: the memory of {gpu} is {memory}", Bytes(*bytes))]
    Memory {
        /// Size of the call.
        bytes: u64,
        /// The GPU.
        gpu: &'static str,
        /// Its memory.
        memory: Bytes,
    },
    /// The library cannot execute the call on the fabric.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

impl PredictError {
    /// Whether the arguments are wrong; otherwise the simulation failed.
    pub fn is_misuse(&self) -> bool {
        match self {
            Self::Execute(error) => error.is_misuse(),
            _ => true,
        }
    }
}

/// A collective on a fabric, as a library sees it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The collective.
    pub operation: Operation,
    /// The fabric's name.
    pub name: String,
    /// The fabric, with the options applied.
    pub fabric: Fabric,
    /// The setup of the fabric.
    pub setup: Setup,
    program: Option<String>,
}

/// A predicted call.
#[derive(Clone, Debug)]
pub struct Row {
    /// Size of the call, as nccl-tests counts it.
    pub bytes: u64,
    /// The simulated execution.
    pub execution: Execution,
    /// Bytes over time.
    pub algbw_gb_per_s: f64,
    /// Bus bandwidth, as in nccl-tests.
    pub busbw_gb_per_s: f64,
    /// The expected error: median and 90th percentile. `None` without published measurements of the library's collective.
    pub expected_error: Option<(f64, f64)>,
    /// Microseconds of the same call without disturbances, and the concurrent jobs; `None` for a call without disturbances.
    pub undisturbed: Option<(f64, Vec<Neighbour>)>,
}

/// A concurrent job.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    /// Its collective.
    pub what: String,
    /// Size of its call.
    pub bytes: u64,
    /// Number of its GPUs.
    pub gpus: usize,
    /// Its time.
    pub time_us: f64,
    /// Its time when it runs alone.
    pub alone_us: f64,
}

/// Predictions of several sizes.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The case.
    pub case: Case,
    /// One row for each size.
    pub rows: Vec<Row>,
}

/// Predicts a call of each size on a fabric.
///
/// ```
/// use weftlink_sim::predict::Options;
/// let fabric = weftlink_fabric::resolve("hgx-h100").unwrap();
/// let kind = "all-reduce".parse().unwrap();
/// let predicted = weftlink_sim::predict(kind, &fabric, &[1 << 20, 1 << 30], &Options::default()).unwrap();
/// assert!(predicted.rows[1].busbw_gb_per_s > predicted.rows[0].busbw_gb_per_s);
/// ```
pub fn predict(
    kind: Kind,
    fabric: &Fabric,
    sizes: &[u64],
    options: &Options,
) -> Result<Predicted, PredictError> {
    let case = Case::new(kind, fabric, options)?;
    sizes.iter().try_for_each(|bytes| case.check(*bytes))?;
    let constants = Constants::shipped();
    let runner = case.runner(&constants)?;
    let rows = sizes.iter().map(|bytes| case.row(&runner, *bytes)).collect::<Result<_, _>>()?;
    drop(runner);
    Ok(Predicted { case, rows })
}

impl Case {
    /// Checks that the library runs the collective on the fabric with these options.
    pub fn new(kind: Kind, fabric: &Fabric, options: &Options) -> Result<Self, PredictError> {
        let operation = operation(kind)?;
        let name = fabric.name().to_owned();
        let fabric = options.change(fabric);
        let mut setup =
            Setup::of(&fabric).map_err(|error| PredictError::Survey { fabric: name.clone(), error })?;
        if setup.ranks() < 2 {
            return Err(PredictError::OneGpu { fabric: name });
        }
        if let Some(asked) = &options.library {
            (setup.library, setup.version) = (asked.library, asked.version);
        }
        let vendor = setup.gpu.model().vendor;
        let is_for = match setup.library {
            Library::Nccl | Library::Msccl => vendor == Vendor::Nvidia,
            Library::Rccl => vendor == Vendor::Amd,
            Library::OneCcl => vendor == Vendor::Intel,
            Library::Gloo | Library::OpenMpi | Library::Weft => true,
        };
        if !is_for {
            let (library, gpu) = (setup.library.name(), setup.gpu.model().name);
            return Err(PredictError::Library { library, gpu });
        }
        setup.algorithm = options.algorithm;
        setup.protocol = options.protocol;
        setup.launch = options.launch;
        setup.what_if = options.what_if;
        setup.check().map_err(|why| PredictError::Setup { fabric: name.clone(), why: why.to_string() })?;
        Ok(Self { operation, name, fabric, setup, program: options.program.clone() })
    }

    /// The collective's name.
    pub fn collective(&self) -> &'static str {
        kind(self.operation).map_or(self.operation.name(), Kind::name)
    }

    /// Checks that a call of this size is possible.
    pub fn check(&self, bytes: u64) -> Result<(), PredictError> {
        let model = self.setup.gpu.model();
        match bytes {
            0 => Err(PredictError::NoBytes),
            bytes if bytes > model.memory.0 => {
                Err(PredictError::Memory { bytes, gpu: model.name, memory: model.memory })
            }
            _ => Ok(()),
        }
    }

    /// A runner for calls on the fabric.
    pub fn runner<'s>(&'s self, constants: &'s Constants) -> Result<Runner<'s>, PredictError> {
        let runner = Runner::on(constants, self.setup.clone(), self.fabric.clone());
        match &self.program {
            None => Ok(runner),
            Some(text) => Ok(runner.with_program(text)?),
        }
    }

    /// Predicts a call of one size.
    pub fn row(&self, runner: &Runner<'_>, bytes: u64) -> Result<Row, PredictError> {
        let mut done = runner.execute(&[(self.operation, bytes)])?;
        Ok(self.row_of(self.setup.ranks(), bytes, done.remove(0)))
    }

    /// The row of a call that `ranks` GPUs executed.
    pub fn row_of(&self, ranks: u32, bytes: u64, execution: Execution) -> Row {
        let algbw_gb_per_s = bytes as f64 / (execution.time.0 as f64 / 1e12) / 1e9;
        let busbw_gb_per_s = algbw_gb_per_s * self.operation.bus_factor(ranks);
        let expected_error = is_measured(self.setup.library, self.operation).then(|| {
            let found = expected(Some(Class::of(&self.setup)), band(bytes));
            (found.median, found.ninetieth)
        });
        Row { bytes, execution, algbw_gb_per_s, busbw_gb_per_s, expected_error, undisturbed: None }
    }

    /// Assumptions where the options say nothing.
    pub fn assumptions(&self) -> Vec<&'static str> {
        let launch = match (self.setup.launch, self.setup.launch()) {
            (Some(_), _) => None,
            (None, Launch::ProcessPerGpu) => Some("a process per GPU"),
            (None, Launch::OneThread) => Some("one thread launches the kernels of all GPUs"),
        };
        launch.into_iter().collect()
    }
}

impl Row {
    /// Predicted time.
    pub fn time_us(&self) -> f64 {
        self.execution.time.0 as f64 / 1e6
    }
}

impl Options {
    /// The fabric with the changes that the options make to it.
    fn change(&self, fabric: &Fabric) -> Fabric {
        let mut changed = fabric.clone();
        if self.sockets {
            changed = change::over_sockets(&changed);
        }
        if let Some(nics) = self.nics_per_gpu {
            changed = change::with_nics_per_gpu(&changed, nics);
        }
        if let Some(access) = self.peer_access {
            changed = changed.with_peer_access(PeerAccess::from_setting(Some(access)));
        }
        if self.no_peer_access {
            changed = change::without_peer_access(&changed);
        }
        changed
    }
}

/// The predicted collectives.
const PREDICTED: [(Kind, Operation); 7] = [
    (Kind::AllReduce, Operation::AllReduce),
    (Kind::Reduce, Operation::Reduce),
    (Kind::Broadcast, Operation::Broadcast),
    (Kind::AllGather, Operation::AllGather),
    (Kind::ReduceScatter, Operation::ReduceScatter),
    (Kind::AllToAll, Operation::AllToAll),
    (Kind::SendReceive, Operation::SendReceive),
];

/// The predicted collectives, by kind.
pub fn kinds() -> impl Iterator<Item = Kind> {
    PREDICTED.into_iter().map(|(kind, _)| kind)
}

/// The operation of a collective, if it is predicted.
pub fn operation(kind: Kind) -> Result<Operation, PredictError> {
    let found = PREDICTED.into_iter().find(|(known, _)| *known == kind);
    found.map(|(_, operation)| operation).ok_or(PredictError::Collective { kind })
}

fn kind(operation: Operation) -> Option<Kind> {
    PREDICTED.into_iter().find(|(_, known)| *known == operation).map(|(kind, _)| kind)
}

fn predicted() -> String {
    kinds().map(Kind::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::parse_library;
    use weftlink_fabric::resolve;

    fn ask(kind: Kind, spec: &str, sizes: &[u64], options: &Options) -> Result<Predicted, PredictError> {
        predict(kind, &resolve(spec).unwrap(), sizes, options)
    }

    #[test]
    fn wrong_arguments_are_misuse() {
        let usual = Options::default();
        let misuse = |asked: Result<Predicted, PredictError>| asked.unwrap_err().is_misuse();
        assert!(misuse(ask(Kind::Scan, "hgx-h100", &[8], &usual)));
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[0], &usual)));
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[1 << 40], &usual)));
        let rccl = Options { library: Some(parse_library("rccl").unwrap()), ..Options::default() };
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[8], &rccl)));
        assert!(misuse(ask(Kind::AllReduce, "2x hgx-h100", &[8], &usual)));
        let pat = Options { algorithm: Some(LibraryAlgorithm::Pat), ..Options::default() };
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[8], &pat)));
    }

    #[test]
    fn json_has_a_row_for_each_size() {
        let predicted = ask(Kind::AllReduce, "hgx-h100", &[8, 1 << 20], &Options::default()).unwrap();
        let json = predicted.to_json();
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(2));
        assert_eq!(json["collective"], "all-reduce");
        assert_eq!(json["rows"][1]["time_us"].as_f64(), Some(predicted.rows[1].time_us()));
    }
}
