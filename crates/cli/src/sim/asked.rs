//! Arguments of predictions: the library, its settings, and changes to the machine.

use std::path::Path;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use weftlink_plan::Kind;
use weftlink_plan::plan::Protocol;
use weftlink_sim::SurveyError;
use weftlink_sim::execute::ExecuteError;
use weftlink_sim::library::{self, LibrarySpec};
use weftlink_sim::predict::{self, Case, Options, PredictError};
use weftlink_sim::setup::{
    Launch, Library, LibraryAlgorithm, Network, Setup, algorithm_from_name, protocol_from_name,
};
use weftlink_sim::what_if::{CpuVendor, WhatIf};

use crate::Failure;
use crate::calibration::CalibrationArgs;
use crate::names::between;
use crate::plan::Form;

/// The library and its settings.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Library")]
pub(super) struct LibraryArgs {
    /// The library, with or without a version: nccl:2.18, rccl, oneccl, gloo, openmpi, weft, msccl:FILE [default: the newest nccl, or rccl for
    /// AMD GPUs]
    #[arg(long, value_name = "NAME[:VERSION]")]
    pub(super) library: Option<String>,
    /// The algorithm, as NCCL_ALGO sets it: Ring, Tree, NVLS, NVLSTree, CollnetDirect, CollnetChain, PAT, Symmetric [default: the
    /// library's choice]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    pub(super) algorithm: Option<LibraryAlgorithm>,
    /// The protocol, as NCCL_PROTO sets it: LL, LL128, Simple [default: the library's choice]
    #[arg(long, value_name = "NAME", value_parser = protocol)]
    pub(super) protocol: Option<Protocol>,
    /// What launches the kernels: a process per GPU, or one thread for all GPUs of a host, as nccl-tests without MPI does [default:
    /// process; thread on a single host with GPUs before Hopper or without NVLink]
    #[arg(long, value_name = "HOW")]
    pub(super) launch: Option<Launcher>,
    /// The GPU model, which the output of `nvidia-smi topo -m` and `rocm-smi` does not contain; `weft topo --list gpus` prints the models
    #[arg(long, value_name = "MODEL")]
    gpu: Option<String>,
    #[command(flatten)]
    what_if: WhatIfArgs,
    #[command(flatten)]
    pub(super) calibration: CalibrationArgs,
}

impl LibraryArgs {
    /// Whether buffers are registered as symmetric windows.
    pub(super) fn is_symmetric(&self) -> bool {
        self.what_if.symmetric
    }

    /// Options about the network that change nothing, because the call uses no NIC.
    pub(super) fn without_effect(&self, setup: &Setup) -> Vec<&'static str> {
        let WhatIfArgs { no_gpudirect, sockets, nics_per_gpu, .. } = self.what_if;
        let given = [
            ("--no-gpudirect", no_gpudirect),
            ("--sockets", sockets),
            ("--nics-per-gpu", nics_per_gpu.is_some()),
        ];
        let uses_nics = setup.network != Network::None;
        given.into_iter().filter(|(_, is_given)| *is_given && !uses_nics).map(|(option, _)| option).collect()
    }
}

/// Changes to the machine.
#[derive(clap::Args, Clone, Copy)]
#[command(next_help_heading = "What if")]
struct WhatIfArgs {
    /// Turn GPUDirect RDMA off: the network reads and writes host memory
    #[arg(long)]
    no_gpudirect: bool,
    /// Use TCP sockets over the same NICs instead of RDMA
    #[arg(long)]
    sockets: bool,
    /// Turn peer access off: GPUs exchange data through host memory (NCCL_P2P_DISABLE)
    #[arg(long, conflicts_with = "peer_access")]
    no_peer_access: bool,
    /// Whether GPUs access each other's memory over PCIe [default: as their driver has it; off for GeForce]
    #[arg(long, value_name = "on|off", value_parser = super::copy::switch)]
    peer_access: Option<bool>,
    /// Give each GPU COUNT NICs of the same kind
    #[arg(long, value_name = "COUNT", value_parser = between(1_u32, 64))]
    nics_per_gpu: Option<u32>,
    /// Bandwidth of each GPU's slot that storage uses, each way
    #[arg(long, value_name = "GB/s", value_parser = rate)]
    storage: Option<f64>,
    /// The CPU vendor, intel or amd, which NCCL's tuner uses between hosts
    #[arg(long, value_name = "VENDOR", value_parser = cpu)]
    cpu: Option<CpuVendor>,
    /// Register buffers as symmetric windows, for NCCL's symmetric kernels; with -n: use symmetric memory
    #[arg(long)]
    symmetric: bool,
    /// Limit the library to COUNT channels (NCCL_MAX_CTAS)
    #[arg(long, value_name = "COUNT", value_parser = between(1_u32, 64))]
    max_ctas: Option<u32>,
}

impl LibraryArgs {
    /// The options of the predictor.
    fn options(&self) -> Result<Options, Failure> {
        let library =
            self.library.as_deref().map(library::parse_library).transpose().map_err(Failure::misuse)?;
        let file = library.as_ref().and_then(|library| library.program.as_ref());
        let read = |file: &String| {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"));
            text.map_err(Failure::Misuse)
        };
        let WhatIfArgs {
            no_gpudirect,
            sockets,
            no_peer_access,
            peer_access,
            nics_per_gpu,
            storage,
            cpu,
            symmetric,
            max_ctas,
        } = self.what_if;
        let calibrated = self.calibration.calibrated();
        Ok(Options {
            constants: calibrated.constants,
            corrections: calibrated.corrections,
            program: file.map(read).transpose()?,
            plan: None,
            counts: None,
            library,
            algorithm: self.algorithm,
            protocol: self.protocol,
            launch: self.launch.map(|launcher| match launcher {
                Launcher::Process => Launch::ProcessPerGpu,
                Launcher::Thread => Launch::OneThread,
            }),
            sockets,
            no_peer_access,
            peer_access,
            nics_per_gpu,
            what_if: WhatIf {
                no_gpudirect,
                storage_gbytes_per_second: storage.unwrap_or(0.0),
                cpu,
                symmetric,
                channels_max: max_ctas,
            },
        })
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    found.ok_or_else(|| "write GB/s, such as 12.5".to_owned())
}

fn cpu(name: &str) -> Result<CpuVendor, String> {
    CpuVendor::from_name(name).ok_or_else(|| "write intel or amd".to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Launcher {
    Process,
    Thread,
}

fn algorithm(name: &str) -> Result<LibraryAlgorithm, String> {
    algorithm_from_name(name)?.ok_or_else(|| "the name is empty".to_owned())
}

fn protocol(name: &str) -> Result<Protocol, String> {
    protocol_from_name(name)?.ok_or_else(|| "the name is empty".to_owned())
}

/// The plan of a file on a fabric.
pub(super) fn case_of_plan(
    file: &Path,
    kind: Option<Kind>,
    target: Option<&str>,
    args: &LibraryArgs,
) -> Result<Case, Failure> {
    let mut options = args.options()?;
    let (plan, form) = crate::plan::read_with_form(file)?;
    if options.program.is_some() {
        return Err(Failure::misuse(anyhow!(
            "--plan and --library msccl:FILE both name a program; leave out one of them"
        )));
    }
    if form == Form::Msccl && options.library.is_none() {
        options.library = Some(LibrarySpec { library: Library::Msccl, version: None, program: None });
    }
    let of_plan = Kind::from_name(plan.collective.name());
    let kind = kind
        .or(of_plan)
        .ok_or_else(|| Failure::finding(anyhow!("weft sim does not predict {}", plan.collective.name())))?;
    options.plan = Some(plan);
    let fabric = crate::topo::resolve(target, args.gpu.as_deref())?;
    Ok(Case::new(kind, &fabric, &options)?)
}

/// A collective on a fabric, as a library would run it.
pub(super) fn case(
    kind: Kind,
    target: Option<&str>,
    args: &LibraryArgs,
    counts: Option<&[u64]>,
) -> Result<Case, Failure> {
    let options = Options { counts: counts.map(<[u64]>::to_vec), ..args.options()? };
    // Refuse a collective that is not predicted before the fabric is read.
    predict::operation(kind)?;
    let fabric = crate::topo::resolve(target, args.gpu.as_deref())?;
    Ok(Case::new(kind, &fabric, &options)?)
}

impl From<PredictError> for Failure {
    fn from(error: PredictError) -> Self {
        let hint = match &error {
            PredictError::Survey { error: SurveyError::UnknownGpu, .. } => " with --gpu MODEL",
            _ => "",
        };
        match error.is_misuse() {
            true => Failure::misuse(anyhow!("{error}{hint}")),
            false => Failure::finding(error),
        }
    }
}

impl From<ExecuteError> for Failure {
    fn from(error: ExecuteError) -> Self {
        PredictError::from(error).into()
    }
}
