//! What was typed, as what it means: an operation, a setup with what is told to the library, and sizes.

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use weftlink_fabric::Fabric;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::catalog::gpus::Vendor;
use weftlink_plan::plan::Protocol;
use weftlink_sim::execute::Site;
use weftlink_sim::library;
use weftlink_sim::setup::{
    Launch, Library, LibraryAlgorithm, Operation, algorithm_from_name, protocol_from_name,
};
use weftlink_sim::what_if::{CpuVendor, WhatIf};
use weftlink_sim::{Constants, Setup};

use crate::Failure;

/// What libraries do that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum What {
    #[value(alias = "allreduce", alias = "all_reduce")]
    AllReduce,
    Reduce,
    #[value(alias = "bcast")]
    Broadcast,
    #[value(alias = "allgather", alias = "all_gather")]
    AllGather,
    #[value(alias = "reducescatter", alias = "reduce_scatter")]
    ReduceScatter,
    #[value(alias = "alltoall", alias = "all_to_all")]
    AllToAll,
    /// Each GPU sends to the next
    #[value(alias = "sendrecv")]
    SendReceive,
}

impl What {
    pub(super) fn operation(self) -> Operation {
        match self {
            What::AllReduce => Operation::AllReduce,
            What::Reduce => Operation::Reduce,
            What::Broadcast => Operation::Broadcast,
            What::AllGather => Operation::AllGather,
            What::ReduceScatter => Operation::ReduceScatter,
            What::AllToAll => Operation::AllToAll,
            What::SendReceive => Operation::SendReceive,
        }
    }

    /// As it is typed.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

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
#[derive(clap::Args, Clone)]
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

impl Otherwise {
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
        setup.what_if = WhatIf {
            no_gpudirect: self.no_gpudirect,
            storage_gbytes_per_second: self.storage.unwrap_or(0.0),
            cpu: self.cpu,
            symmetric: self.symmetric,
            channels_max: self.max_ctas,
        };
        setup
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
    algorithm_from_name(name).map_err(str::to_owned)?.ok_or_else(|| "it is empty".to_owned())
}

fn protocol(name: &str) -> Result<Protocol, String> {
    protocol_from_name(name).map_err(str::to_owned)?.ok_or_else(|| "it is empty".to_owned())
}

/// Where a call is made, and by what.
pub(super) struct Asked {
    /// What the fabric is called that was asked for.
    pub(super) name: String,
    /// That fabric, or one that is better ground for the call.
    pub(super) fabric: Fabric,
    /// What a library sees of it.
    pub(super) setup: Setup,
    /// The text of MSCCL's program, with the name of its file.
    program: Option<(String, String)>,
}

impl Asked {
    /// Ready to execute calls.
    pub(super) fn site<'s>(&'s self, constants: &'s Constants) -> Result<Site<'s>, Failure> {
        let site = Site::on(constants, &self.setup, self.fabric.clone());
        match &self.program {
            None => Ok(site),
            Some((file, text)) => {
                site.with_program(text).with_context(|| file.clone()).map_err(Failure::Finding)
            }
        }
    }
}

/// The fabric of a target, with what a library would see of it.
pub(super) fn asked(target: Option<&str>, operation: Operation, told: &Told) -> Result<Asked, Failure> {
    let fabric = crate::topo::resolve(target, told.gpu.as_deref())?;
    let mut setup = Setup::of(&fabric).with_context(|| fabric.name().to_owned()).map_err(Failure::Finding)?;
    if setup.ranks() < 2 {
        return Err(Failure::misuse(anyhow!(
            "{} has one GPU, which has nobody to talk to; name a fabric with more (`weft topo --list`)",
            fabric.name()
        )));
    }
    let name = fabric.name().to_owned();
    let mut program = None;
    if let Some(library) = &told.library {
        let asked = library::asked(library).map_err(Failure::misuse)?;
        (setup.library, setup.version) = (asked.library, asked.version);
        if let Some(file) = asked.program {
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"));
            program = Some((file, text.map_err(Failure::Misuse)?));
        }
    }
    let vendor = setup.gpu.model().vendor;
    let is_for = match setup.library {
        Library::Nccl | Library::Msccl => vendor == Vendor::Nvidia,
        Library::Rccl => vendor == Vendor::Amd,
        Library::OneCcl => vendor == Vendor::Intel,
        Library::Gloo | Library::OpenMpi | Library::Weft => true,
    };
    if !is_for {
        return Err(Failure::misuse(anyhow!(
            "{} does not run on {}; --library says which does",
            setup.library.name(),
            setup.gpu.model().name
        )));
    }
    setup.algorithm = told.algorithm;
    setup.protocol = told.protocol;
    setup.launch = told.launch.map(|launcher| match launcher {
        Launcher::Process => Launch::ProcessPerGpu,
        Launcher::Thread => Launch::OneThread,
    });
    let setup = told.what_if.apply(setup);
    setup.check().map_err(|wrong| Failure::misuse(anyhow!("{}: {wrong}", fabric.name())))?;
    if told.what_if.changes_wiring() || setup.crosses_rails(operation) {
        let fabric = setup.fabric().with_context(|| setup.name()).map_err(Failure::Finding)?;
        return Ok(Asked { name, fabric, setup, program });
    }
    Ok(Asked { name, fabric, setup, program })
}

/// That GPUs hold so many bytes.
pub(super) fn check_memory(setup: &Setup, bytes: u64) -> Result<(), Failure> {
    let memory = setup.gpu.model().memory;
    if bytes > memory.0 {
        return Err(Failure::misuse(anyhow!(
            "{} do not fit: the memory of {} is {memory}",
            Bytes(bytes),
            setup.gpu.model().name
        )));
    }
    Ok(())
}
