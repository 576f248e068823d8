//! One call for a prediction: a collective on a fabric, as a library would do it.

mod json;
mod limit;

use thiserror::Error;
use weftlink_fabric::Fabric;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::catalog::gpus::Vendor;
use weftlink_plan::Kind;
use weftlink_plan::plan::Protocol;

use crate::accuracy::{Class, band, expected};
use crate::constants::Constants;
use crate::execute::{ExecuteError, Execution, Site};
use crate::library::Asked;
use crate::setup::{Launch, Library, LibraryAlgorithm, Operation, Setup};
use crate::survey::SurveyError;
use crate::what_if::WhatIf;

/// The library and its settings, and changes to the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The library; the newest known NCCL, RCCL or oneCCL for the fabric's GPUs if none is given.
    pub library: Option<Asked>,
    /// The text of the program that MSCCL runs.
    pub program: Option<String>,
    /// The algorithm that the library is set to use (`NCCL_ALGO`).
    pub algorithm: Option<LibraryAlgorithm>,
    /// The protocol that the library is set to use (`NCCL_PROTO`).
    pub protocol: Option<Protocol>,
    /// Who starts the kernels.
    pub launch: Option<Launch>,
    /// Sockets over the same NICs instead of RDMA.
    pub sockets: bool,
    /// GPUs do not reach each other's memory.
    pub no_peer_access: bool,
    /// NICs for each GPU.
    pub nics_per_gpu: Option<u32>,
    /// Everything else that is not as usual.
    pub what_if: WhatIf,
}

/// A prediction is impossible.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PredictError {
    /// Libraries have no such collective, or it is not modelled.
    #[error("weft sim does not predict {kind}; it predicts {}", predicted())]
    Collective {
        /// The collective.
        kind: Kind,
    },
    /// The fabric cannot be modelled.
    #[error("{fabric}: {error}")]
    Survey {
        /// Its name.
        fabric: String,
        /// Why.
        error: SurveyError,
    },
    /// One GPU has no peer.
    #[error("{fabric} has one GPU and a collective needs two; name a fabric with more (`weft topo --list`)")]
    OneGpu {
        /// The fabric's name.
        fabric: String,
    },
    /// The library does not run on these GPUs.
    #[error("{library} does not run on {gpu}; choose another --library")]
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
        /// Why.
        why: String,
    },
    /// A call of no bytes.
    #[error("a call of 0 bytes has no bandwidth; give a size of 1 or more")]
    NoBytes,
    /// The GPUs do not hold the buffer.
    #[error("{} do not fit: the memory of {gpu} is {memory}", Bytes(*bytes))]
    Memory {
        /// Bytes of the call.
        bytes: u64,
        /// The GPU.
        gpu: &'static str,
        /// What it holds.
        memory: Bytes,
    },
    /// The library cannot do it there.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

impl PredictError {
    /// Whether the caller has to ask differently; otherwise the question is sound and has no answer.
    pub fn is_misuse(&self) -> bool {
        !matches!(self, Self::Survey { .. } | Self::Execute(_))
    }
}

/// A collective on a fabric, as a library sees it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The collective.
    pub operation: Operation,
    /// The fabric's name.
    pub name: String,
    /// The fabric, or one with the options' changes.
    pub fabric: Fabric,
    /// What a library sees of it.
    pub setup: Setup,
    program: Option<String>,
}

/// A call, predicted.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the call, as nccl-tests count them.
    pub bytes: u64,
    /// What the library does.
    pub execution: Execution,
    /// Bytes over time.
    pub algbw_gb_per_s: f64,
    /// The same, corrected for the collective as nccl-tests do.
    pub busbw_gb_per_s: f64,
    /// The expected error: the median and the 90th percentile.
    pub expected_error: Option<(f64, f64)>,
    /// Microseconds of the same call without disturbances, and the jobs beside it; nothing if it was not disturbed.
    pub undisturbed: Option<(f64, Vec<Neighbour>)>,
}

/// A job that ran beside another.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    /// Its collective.
    pub what: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its GPUs.
    pub gpus: usize,
    /// How long it took.
    pub time_us: f64,
    /// How long it takes alone.
    pub alone_us: f64,
}

/// Predictions of several sizes.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// What was predicted.
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
    let site = case.site(&constants)?;
    let rows = sizes.iter().map(|bytes| case.row(&site, *bytes)).collect::<Result<_, _>>()?;
    drop(site);
    Ok(Predicted { case, rows })
}

impl Case {
    /// Checks that a library can do the collective on the fabric with these options.
    pub fn new(kind: Kind, fabric: &Fabric, options: &Options) -> Result<Self, PredictError> {
        let operation = operation(kind)?;
        let name = fabric.name().to_owned();
        let mut setup =
            Setup::of(fabric).map_err(|error| PredictError::Survey { fabric: name.clone(), error })?;
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
        let setup = options.apply(setup);
        setup.check().map_err(|why| PredictError::Setup { fabric: name.clone(), why: why.to_string() })?;
        let is_rebuilt = options.changes_wiring() || setup.crosses_rails(operation);
        let fabric = match is_rebuilt {
            true => setup.fabric().map_err(ExecuteError::from)?,
            false => fabric.clone(),
        };
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

    /// The place to execute calls at.
    pub fn site<'s>(&'s self, constants: &'s Constants) -> Result<Site<'s>, PredictError> {
        let site = Site::on(constants, &self.setup, self.fabric.clone());
        match &self.program {
            None => Ok(site),
            Some(text) => Ok(site.with_program(text)?),
        }
    }

    /// A call of one size.
    pub fn row(&self, site: &Site<'_>, bytes: u64) -> Result<Row, PredictError> {
        let mut done = site.execute(&[(self.operation, bytes)])?;
        Ok(self.row_of(self.setup.ranks(), bytes, done.remove(0)))
    }

    /// A call that a number of GPUs has executed.
    pub fn row_of(&self, ranks: u32, bytes: u64, execution: Execution) -> Row {
        let algbw_gb_per_s = bytes as f64 / (execution.time.0 as f64 / 1e12) / 1e9;
        let busbw_gb_per_s = algbw_gb_per_s * self.operation.bus_factor(ranks);
        let measured = matches!(self.setup.library, Library::Nccl | Library::Rccl);
        let expected_error = measured.then(|| {
            let found = expected(Some(Class::of(&self.setup)), band(bytes));
            (found.median, found.ninetieth)
        });
        Row { bytes, execution, algbw_gb_per_s, busbw_gb_per_s, expected_error, undisturbed: None }
    }

    /// What is assumed where the options do not say.
    pub fn assumed(&self) -> Vec<&'static str> {
        let launch = match (self.setup.launch, self.setup.launch()) {
            (Some(_), _) => None,
            (None, Launch::ProcessPerGpu) => Some("a process for each GPU"),
            (None, Launch::OneThread) => Some("one thread starts the kernels of all GPUs (--launch process)"),
        };
        launch.into_iter().collect()
    }
}

impl Row {
    /// How long the call takes.
    pub fn time_us(&self) -> f64 {
        self.execution.time.0 as f64 / 1e6
    }
}

impl Options {
    /// Whether the machine itself is another one, so that the fabric that was named is not it.
    fn changes_wiring(&self) -> bool {
        self.sockets || self.no_peer_access || self.nics_per_gpu.is_some()
    }

    fn apply(&self, mut setup: Setup) -> Setup {
        if self.sockets {
            setup = setup.over_sockets();
        }
        if self.no_peer_access {
            setup = setup.without_peer_access();
        }
        if let Some(nics) = self.nics_per_gpu {
            setup = setup.with_nics_per_gpu(nics);
        }
        setup.what_if = self.what_if;
        setup
    }
}

/// The collectives that are predicted.
const PREDICTED: [(Kind, Operation); 7] = [
    (Kind::AllReduce, Operation::AllReduce),
    (Kind::Reduce, Operation::Reduce),
    (Kind::Broadcast, Operation::Broadcast),
    (Kind::AllGather, Operation::AllGather),
    (Kind::ReduceScatter, Operation::ReduceScatter),
    (Kind::AllToAll, Operation::AllToAll),
    (Kind::SendReceive, Operation::SendReceive),
];

/// The collectives that are predicted, by kind.
pub fn kinds() -> impl Iterator<Item = Kind> {
    PREDICTED.into_iter().map(|(kind, _)| kind)
}

/// What libraries call a collective, if it is predicted.
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
    use crate::library::asked;
    use weftlink_fabric::resolve;

    fn ask(kind: Kind, spec: &str, sizes: &[u64], options: &Options) -> Result<Predicted, PredictError> {
        predict(kind, &resolve(spec).unwrap(), sizes, options)
    }

    #[test]
    fn misuse_is_told_from_a_fabric_without_an_answer() {
        let usual = Options::default();
        let misuse = |asked: Result<Predicted, PredictError>| asked.unwrap_err().is_misuse();
        assert!(misuse(ask(Kind::Scan, "hgx-h100", &[8], &usual)));
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[0], &usual)));
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[1 << 40], &usual)));
        let rccl = Options { library: Some(asked("rccl").unwrap()), ..Options::default() };
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[8], &rccl)));
        assert!(!misuse(ask(Kind::AllReduce, "2x hgx-h100", &[8], &usual)));
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
