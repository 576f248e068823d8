//! The entry point: predicts a collective on a fabric, as a library would execute it.

mod explain;
mod json;
mod limit;

pub use explain::{Explanation, Term};
use thiserror::Error;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::catalog::gpus::Vendor;
use weftlink_fabric::{Fabric, PeerAccess};
use weftlink_plan::choose::bus_factor;
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Kind, Verified};

use crate::accuracy::evidence::{self, Outside};
use crate::accuracy::intervals::Intervals;
use crate::change;
use crate::constants::Constants;
use crate::corrections::Corrections;
use crate::execute::{ExecuteError, Execution, Runner, operation_of};
use crate::library::LibrarySpec;
use crate::setup::{Launch, Library, LibraryAlgorithm, Operation, Setup};
use crate::survey::SurveyError;
use crate::what_if::WhatIf;

/// The library and its settings, and changes to the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The constants of the cost model: the shipped ones, or those of a machine that was [calibrated](crate::calibrate).
    pub constants: Constants,
    /// What a calibration says beside its constants about collectives that were measured.
    pub corrections: Corrections,
    /// The library; the newest known NCCL, RCCL or oneCCL for the fabric's GPUs if none is given.
    pub library: Option<LibrarySpec>,
    /// Text of the program that MSCCL runs.
    pub program: Option<String>,
    /// The plan to run in place of a library's choice, of the collective that is asked for: with Weft's costs, or with those of MSCCL
    /// programs if that is the library.
    pub plan: Option<Verified>,
    /// The lengths of the blocks of a v-collective, relative to each other: that of each rank in an all-gather or a reduce-scatter, that for
    /// each rank in an all-to-all. Equal if none are given.
    pub counts: Option<Vec<u64>>,
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
    /// The library has no such setting.
    #[error(
        "{option} is a setting of nccl, rccl and oneccl, not of {library}{}",
        if *library == "weft" { "; for a plan of your choice: weft plan COLLECTIVE FABRIC --algorithm NAME --emit json > plan.json, then \
            weft sim --plan plan.json FABRIC" } else { "" }
    )]
    Ignored {
        /// The library.
        library: &'static str,
        /// The option.
        option: &'static str,
    },
    /// The plan is for another number of GPUs.
    #[error(
        "plan {plan:?} is for {ranks} ranks, and {fabric} has {gpus} GPUs; name a fabric with {ranks}, or write a plan for this one \
         (`weft plan {collective} FABRIC --emit json`)"
    )]
    PlanRanks {
        /// The plan's name.
        plan: String,
        /// Its ranks.
        ranks: u32,
        /// Its collective.
        collective: &'static str,
        /// The fabric's name.
        fabric: String,
        /// The fabric's GPUs.
        gpus: u32,
    },
    /// The plan computes something else, or does not run with the library or its settings.
    #[error("plan {plan:?}: {why}")]
    Plan {
        /// The plan's name.
        plan: String,
        /// The reason.
        why: String,
    },
    /// The library has no such operation.
    #[error("{library} has no {kind}: {instead}; --library weft has one")]
    NoOperation {
        /// The library.
        library: &'static str,
        /// The collective.
        kind: Kind,
        /// What its users run instead.
        instead: &'static str,
    },
    /// Lengths of blocks for a collective that has one block, or equal ones.
    #[error("{kind} has no blocks of different lengths; all-gather-v, reduce-scatter-v and all-to-all-v do")]
    Counts {
        /// The collective.
        kind: Kind,
    },
    /// A number of blocks that is not that of the ranks.
    #[error("{given} counts for {ranks} GPUs: give one for each GPU, of which at least one is above 0")]
    CountsRanks {
        /// The number of lengths.
        given: usize,
        /// The GPUs.
        ranks: u32,
    },
    /// A barrier has no size.
    #[error("a barrier moves no data; leave out the size")]
    BarrierSize,
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
    constants: Constants,
    corrections: Corrections,
    kind: Kind,
    counts: Option<Vec<u64>>,
    program: Option<String>,
    plan: Option<Verified>,
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
    /// The intervals around the time. `None` if there are no published measurements of the library.
    pub intervals: Option<Intervals>,
    /// How the call leaves the evidence; its intervals are wider then.
    pub outside: Vec<Outside>,
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
    let runner = case.runner()?;
    let rows = sizes.iter().map(|bytes| case.row(&runner, *bytes)).collect::<Result<_, _>>()?;
    drop(runner);
    Ok(Predicted { case, rows })
}

impl Case {
    /// Checks that the library runs the collective on the fabric with these options.
    pub fn new(kind: Kind, fabric: &Fabric, options: &Options) -> Result<Self, PredictError> {
        let operation = match &options.plan {
            Some(plan) => operation_of_plan(plan, kind, options)?,
            None => operation(kind)?,
        };
        let name = fabric.name().to_owned();
        let fabric = options.change(fabric);
        let mut setup =
            Setup::of(&fabric).map_err(|error| PredictError::Survey { fabric: name.clone(), error })?;
        if setup.ranks() < 2 {
            return Err(PredictError::OneGpu { fabric: name });
        }
        if let Some(asked) = &options.library {
            (setup.library, setup.version) = (asked.library, asked.version);
        } else if options.plan.is_some() {
            setup.library = Library::Weft;
        }
        if let Some(plan) = options.plan.as_ref().filter(|plan| plan.ranks != setup.ranks()) {
            let (ranks, gpus) = (plan.ranks, setup.ranks());
            let collective = plan.collective.name();
            return Err(PredictError::PlanRanks {
                plan: plan.name.clone(),
                ranks,
                collective,
                fabric: name,
                gpus,
            });
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
        let counts = counts(kind, setup.ranks(), options)?;
        if let Some(instead) = setup.library.lacks(kind).filter(|_| options.plan.is_none()) {
            return Err(PredictError::NoOperation { library: setup.library.name(), kind, instead });
        }
        if let Some(option) = options.ignored_by(setup.library) {
            return Err(PredictError::Ignored { library: setup.library.name(), option });
        }
        setup.algorithm = options.algorithm;
        setup.protocol = options.protocol;
        setup.launch = options.launch;
        setup.what_if = options.what_if;
        setup.check().map_err(|why| PredictError::Setup { fabric: name.clone(), why: why.to_string() })?;
        let (program, plan) = (options.program.clone(), options.plan.clone());
        let (constants, corrections) = (options.constants.clone(), options.corrections.clone());
        Ok(Self { operation, name, fabric, setup, constants, corrections, kind, counts, program, plan })
    }

    /// The collective's name.
    pub fn collective(&self) -> &'static str {
        match &self.plan {
            Some(plan) => plan.collective.name(),
            None => self.kind.name(),
        }
    }

    /// The plan that runs in place of a library's choice.
    pub fn plan(&self) -> Option<&Verified> {
        self.plan.as_ref()
    }

    /// Checks that a call of this size is possible.
    pub fn check(&self, bytes: u64) -> Result<(), PredictError> {
        let model = self.setup.gpu.model();
        match bytes {
            0 if self.operation == Operation::Barrier => Ok(()),
            _ if self.operation == Operation::Barrier => Err(PredictError::BarrierSize),
            0 => Err(PredictError::NoBytes),
            bytes if bytes > model.memory.0 => {
                Err(PredictError::Memory { bytes, gpu: model.name, memory: model.memory })
            }
            _ => Ok(()),
        }
    }

    /// A runner for calls on the fabric.
    pub fn runner(&self) -> Result<Runner<'_>, PredictError> {
        let runner = Runner::on(&self.constants, self.setup.clone(), self.fabric.clone());
        let runner = runner.corrected_by(&self.corrections);
        let runner = match &self.counts {
            Some(counts) => runner.with_counts(counts.clone()),
            None => runner,
        };
        match (&self.plan, &self.program) {
            (Some(plan), _) => Ok(runner.with_plan(plan.clone())),
            (None, Some(text)) => Ok(runner.with_program(text)?),
            (None, None) => Ok(runner),
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
        let factor = match &self.plan {
            Some(plan) => {
                let (times, parts) = bus_factor(&plan.collective, ranks);
                times as f64 / parts.max(1) as f64
            }
            None => self.operation.bus_factor(ranks),
        };
        let busbw_gb_per_s = algbw_gb_per_s * factor;
        let mut outside = evidence::outside(&self.setup, self.operation);
        outside.extend(self.kind.is_uneven().then_some(Outside::Counts));
        let time_us = execution.time.us();
        let intervals = evidence::intervals(&self.setup, bytes, time_us, &outside);
        Row { bytes, execution, algbw_gb_per_s, busbw_gb_per_s, intervals, outside, undisturbed: None }
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
        self.execution.time.us()
    }
}

impl Options {
    /// An option that the model of a library does not have: Weft, Gloo and Open MPI choose by themselves.
    fn ignored_by(&self, library: Library) -> Option<&'static str> {
        if !matches!(library, Library::Weft | Library::Gloo | Library::OpenMpi) {
            return None;
        }
        let given = [
            ("--algorithm", self.algorithm.is_some()),
            ("--protocol", self.protocol.is_some()),
            ("--max-ctas", self.what_if.channels_max.is_some()),
            ("--symmetric", self.what_if.symmetric),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

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
const PREDICTED: [(Kind, Operation); 15] = [
    (Kind::AllReduce, Operation::AllReduce),
    (Kind::Reduce, Operation::Reduce),
    (Kind::Broadcast, Operation::Broadcast),
    (Kind::AllGather, Operation::AllGather),
    (Kind::ReduceScatter, Operation::ReduceScatter),
    (Kind::AllToAll, Operation::AllToAll),
    (Kind::SendReceive, Operation::SendReceive),
    (Kind::Gather, Operation::Gather),
    (Kind::Scatter, Operation::Scatter),
    (Kind::Scan, Operation::Scan),
    (Kind::ExclusiveScan, Operation::ExclusiveScan),
    (Kind::Barrier, Operation::Barrier),
    (Kind::AllGatherV, Operation::AllGather),
    (Kind::ReduceScatterV, Operation::ReduceScatter),
    (Kind::AllToAllV, Operation::AllToAll),
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

/// The lengths of the blocks of a v-collective.
fn counts(kind: Kind, ranks: u32, options: &Options) -> Result<Option<Vec<u64>>, PredictError> {
    match &options.counts {
        None if kind.is_uneven() => Ok(Some(vec![1; ranks as usize])),
        None => Ok(None),
        Some(_) if !kind.is_uneven() || options.plan.is_some() => Err(PredictError::Counts { kind }),
        Some(counts) if counts.len() != ranks as usize || counts.iter().all(|count| *count == 0) => {
            Err(PredictError::CountsRanks { given: counts.len(), ranks })
        }
        Some(counts) => Ok(Some(counts.clone())),
    }
}

/// The operation of a plan that is run in place of a library's choice, if it is the collective that is asked for and nothing contradicts it.
fn operation_of_plan(plan: &Verified, kind: Kind, options: &Options) -> Result<Operation, PredictError> {
    let refuse = |why: String| PredictError::Plan { plan: plan.name.clone(), why };
    let does = plan.collective.name();
    let asked =
        kind.collective(plan.ranks, &Default::default()).map_err(|error| refuse(error.to_string()))?;
    if asked.name() != does {
        return Err(refuse(format!("computes {does}, not {kind}; leave out {kind}")));
    }
    let library = options.library.as_ref().map(|asked| asked.library);
    if let Some(library) = library.filter(|library| !matches!(library, Library::Weft | Library::Msccl)) {
        return Err(refuse(format!(
            "{} runs its own algorithms and cannot run it; leave out the library, or name weft",
            library.name()
        )));
    }
    for (setting, is_given) in
        [("algorithm", options.algorithm.is_some()), ("protocol", options.protocol.is_some())]
    {
        if is_given {
            return Err(refuse(format!("it has its own {setting}; leave out the {setting}")));
        }
    }
    Ok(operation_of(&plan.collective))
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
        assert!(misuse(ask(Kind::Neighbours, "hgx-h100", &[8], &usual)));
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[0], &usual)));
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[1 << 40], &usual)));
        let rccl = Options { library: Some(parse_library("rccl").unwrap()), ..Options::default() };
        assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[8], &rccl)));
        assert!(misuse(ask(Kind::AllReduce, "2x hgx-h100", &[8], &usual)));
        for library in ["weft", "gloo", "openmpi"] {
            let library = Some(parse_library(library).unwrap());
            let ring = Options { library, algorithm: Some(LibraryAlgorithm::Ring), ..Options::default() };
            assert!(misuse(ask(Kind::AllReduce, "hgx-h100", &[8], &ring)));
        }
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
