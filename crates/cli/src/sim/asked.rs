//! What was typed, as what it means: the library, its settings, and changes to the machine.

use anyhow::Context;
use clap::ValueEnum;
use weftlink_plan::Kind;
use weftlink_plan::plan::Protocol;
use weftlink_sim::library;
use weftlink_sim::predict::{self, Case, Options, PredictError};
use weftlink_sim::setup::{Launch, LibraryAlgorithm, algorithm_from_name, protocol_from_name};
use weftlink_sim::what_if::{CpuVendor, WhatIf};

use crate::Failure;

/// What the library is, and is told.
#[derive(clap::Args, Clone)]
pub(super) struct Told {
    /// The library, with a version if it matters: nccl:2.18, rccl, gloo, openmpi, weft, msccl:FILE [default: nccl, or rccl for AMD's
    /// GPUs, the newest known]
    #[arg(long, value_name = "NAME[:VERSION]")]
    pub(super) library: Option<String>,
    /// What the library is told to take, as by NCCL_ALGO: Ring, Tree, NVLS, NVLSTree, CollnetDirect, CollnetChain,
    /// PAT [default: its choice]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    pub(super) algorithm: Option<LibraryAlgorithm>,
    /// What the library is told to take, as by NCCL_PROTO: LL, LL128, Simple [default: its choice]
    #[arg(long, value_name = "NAME", value_parser = protocol)]
    pub(super) protocol: Option<Protocol>,
    /// Who starts the kernels: a process for each GPU, or one thread for all GPUs of a host, as nccl-tests started by hand
    /// [default: process; thread on a single host of GPUs before Hopper, or without NVLink]
    #[arg(long, value_name = "WHO")]
    pub(super) launch: Option<Launcher>,
    /// For the text of `nvidia-smi topo -m`, which does not say: what the GPUs are; `weft topo --list gpus` prints them
    #[arg(long, value_name = "MODEL")]
    gpu: Option<String>,
    #[command(flatten)]
    what_if: Otherwise,
}

impl Told {
    /// Whether buffers are registered for everybody to reach.
    pub(super) fn is_symmetric(&self) -> bool {
        self.what_if.symmetric
    }
}

/// What if it were otherwise.
#[derive(clap::Args, Clone, Copy)]
#[command(next_help_heading = "What if")]
struct Otherwise {
    /// NICs do not reach GPUs: what crosses the network is copied to host memory first
    #[arg(long)]
    no_gpudirect: bool,
    /// Sockets over the same NICs instead of RDMA
    #[arg(long)]
    sockets: bool,
    /// GPUs do not reach each other: what they exchange goes through host memory (NCCL_P2P_DISABLE)
    #[arg(long)]
    no_peer_access: bool,
    /// So many NICs of the same kind for each GPU
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    nics_per_gpu: Option<u32>,
    /// What storage takes of each GPU's slot, each way
    #[arg(long, value_name = "GB/s", value_parser = rate)]
    storage: Option<f64>,
    /// Who made the CPUs, intel or amd: NCCL's tuner goes by it between hosts
    #[arg(long, value_name = "VENDOR", value_parser = cpu)]
    cpu: Option<CpuVendor>,
    /// Buffers are registered as symmetric windows, so that NCCL's symmetric kernels may be used; with -n, in symmetric memory
    #[arg(long)]
    symmetric: bool,
    /// Channels that the library is limited to (NCCL_MAX_CTAS)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    max_ctas: Option<u32>,
}

impl Told {
    /// What predictions are made with.
    fn options(&self) -> Result<Options, Failure> {
        let library =
            self.library.as_deref().map(library::parse_library).transpose().map_err(Failure::misuse)?;
        let file = library.as_ref().and_then(|library| library.program.as_ref());
        let read = |file: &String| {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"));
            text.map_err(Failure::Misuse)
        };
        let Otherwise {
            no_gpudirect,
            sockets,
            no_peer_access,
            nics_per_gpu,
            storage,
            cpu,
            symmetric,
            max_ctas,
        } = self.what_if;
        Ok(Options {
            program: file.map(read).transpose()?,
            library,
            algorithm: self.algorithm,
            protocol: self.protocol,
            launch: self.launch.map(|launcher| match launcher {
                Launcher::Process => Launch::ProcessPerGpu,
                Launcher::Thread => Launch::OneThread,
            }),
            sockets,
            no_peer_access,
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
    found.ok_or_else(|| "it is a number of GB/s, as 12.5".to_owned())
}

fn cpu(name: &str) -> Result<CpuVendor, String> {
    CpuVendor::from_name(name).ok_or_else(|| "it is intel or amd".to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Launcher {
    Process,
    Thread,
}

fn algorithm(name: &str) -> Result<LibraryAlgorithm, String> {
    algorithm_from_name(name)?.ok_or_else(|| "it is empty".to_owned())
}

fn protocol(name: &str) -> Result<Protocol, String> {
    protocol_from_name(name)?.ok_or_else(|| "it is empty".to_owned())
}

/// A collective on a target's fabric, as a library would do it.
pub(super) fn case(kind: Kind, target: Option<&str>, told: &Told) -> Result<Case, Failure> {
    let options = told.options()?;
    // A collective that is not predicted needs no look at the fabric.
    predict::operation(kind)?;
    let fabric = crate::topo::resolve(target, told.gpu.as_deref())?;
    Ok(Case::new(kind, &fabric, &options)?)
}

impl From<PredictError> for Failure {
    fn from(error: PredictError) -> Self {
        match error.is_misuse() {
            true => Failure::misuse(error),
            false => Failure::finding(error),
        }
    }
}
