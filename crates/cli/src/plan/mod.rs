//! `weft plan`: choose an algorithm for a fabric; print and prove plans.

mod ask;
mod choice;
mod emit;
mod file;
mod list;
mod tables;
mod text;

use anyhow::anyhow;
use clap::Subcommand;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::choose::Options;
use weftlink_plan::{Algorithm, Collective, Kind, Plan};

pub(crate) use ask::Sizes;
pub(crate) use file::{Form, read, read_with_form};

use crate::Failure;
use crate::calibration::CalibrationArgs;
use crate::names::{at_least, between};
use ask::{Messages, Torus};
use emit::Emit;

/// Choose an algorithm for a fabric and say why; print and prove plans
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  weft plan --list                                  the algorithms
  weft plan all-reduce hgx-h100 --size 64MiB        all candidates, compared
  weft plan all-reduce \"16x hgx-h100 + 8x ndr\" --sizes 8..1GiB
  weft plan broadcast dgx-1-v100 --root 3 --algorithm chain
  weft plan all-reduce hgx-h100 --size 1GiB --without nvls --emit json > plan.json
  weft plan neighbours hgx-h100 --torus 2x2x2
  weft plan all-reduce -n 4 --algorithm ring --show 0     without a fabric
  weft plan all-reduce -n 4 --algorithm ring --emit msccl > ring.xml
  weft plan verify ring.xml
  weft plan import ring.xml -o ring.json

Plans are Weft's own algorithms; `weft sim` predicts NCCL and other libraries. Columns: blocks is the number of thread blocks \
on each GPU; algbw is size / time; busbw is algbw times the factor of nccl-tests; of bound is algbw as a part of the bound, the \
fastest that the links allow."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The collective to plan
    #[arg(value_parser = crate::names::collective())]
    collective: Option<Kind>,
    /// A system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`) or a file, as for `weft topo`
    fabric: Option<String>,
    #[command(flatten)]
    build: Build,
    /// Print the algorithms
    #[arg(long, conflicts_with = "collective")]
    list: bool,
    /// The GPU model, which the output of `nvidia-smi topo -m` and `rocm-smi` does not contain
    #[arg(long, value_name = "MODEL", requires = "fabric")]
    gpu: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Prove that a plan computes its collective, or say where it fails
    Verify(file::Args),
    /// Convert an MSCCL program to a plan in JSON, without proving it
    Import(file::ImportArgs),
}

#[derive(clap::Args)]
struct Build {
    /// Plan for RANKS ranks without a fabric, with --algorithm [default: 2]
    #[arg(short = 'n', long, conflicts_with = "fabric", value_parser = between(1, RANKS_MAX))]
    ranks: Option<u32>,
    /// Use this algorithm instead of the fastest; `weft plan --list` prints them
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Exclude algorithms, such as nvls where NVLink SHARP is not in use
    #[arg(long, value_name = "NAME,..", requires = "fabric", value_delimiter = ',')]
    without: Vec<Algorithm>,
    /// The network's switches reduce: SHARP is installed and enabled
    #[arg(long, requires = "fabric")]
    sharp: bool,
    /// Run LANES rings in parallel, or split each block into LANES parts (with --algorithm ring or staged, without a fabric)
    #[arg(long, conflicts_with = "fabric", value_parser = between(1_u32, 64))]
    lanes: Option<u32>,
    /// The size of a call, counted as in nccl-tests [default: 64MiB]
    #[arg(
        long,
        value_name = "SIZE",
        requires = "fabric",
        conflicts_with = "sizes",
        allow_negative_numbers = true
    )]
    size: Option<Bytes>,
    /// Print the fastest algorithm for each size of a range: `8..1GiB`
    #[arg(long, value_name = "FROM..TO", requires = "fabric", conflicts_with_all = ["algorithm", "show", "emit"])]
    sizes: Option<Sizes>,
    /// The root of a reduce, broadcast, gather or scatter [default: 0]
    #[arg(long, value_name = "RANK", value_parser = at_least(0_u32))]
    root: Option<u32>,
    /// The shape of the grid for neighbours: `4x2`, `2x2x2` [default: a ring]
    #[arg(long, value_name = "AxBxC")]
    torus: Option<Torus>,
    /// The messages of a send-receive: `0:1,1:0` [default: each rank to the next]
    #[arg(long, value_name = "FROM:TO,..")]
    messages: Option<Messages>,
    /// Print the plan: as text, as JSON for `weft bench --plan`, as MSCCL's XML, or as Graphviz
    #[arg(long, value_name = "FORM")]
    emit: Option<Emit>,
    /// Print the steps of one rank
    #[arg(long, value_name = "RANK")]
    show: Option<u32>,
    #[command(flatten)]
    calibration: CalibrationArgs,
}

impl Build {
    fn options(&self) -> Options {
        Options {
            root: self.root,
            torus: self.torus.map(|torus| torus.0),
            messages: self.messages.as_ref().map(|messages| messages.0.clone()),
            without: self.without.clone(),
            sharp: self.sharp,
            constants: self.calibration.constants(),
        }
    }
}

/// Plans in which every rank talks to every other grow with the square of the ranks.
const RANKS_MAX: u32 = 1024;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match (&args.command, args.collective, &args.fabric) {
        (Some(Command::Verify(args)), ..) => file::run(args),
        (Some(Command::Import(args)), ..) => file::import(args),
        (None, None, _) if args.list => Ok(list::print(args.json)?),
        (None, None, _) => Err(Failure::misuse(anyhow!(
            "name a collective and a fabric: `weft plan all-reduce hgx-h100`; or use --list"
        ))),
        (None, Some(kind), Some(fabric)) => {
            choice::run(kind, (fabric, args.gpu.as_deref()), &args.build, args.json)
        }
        (None, Some(kind), None) => emit::without_fabric(kind, &args.build, args.json),
    }
}

/// The plan of a built-in algorithm; `lanes` is for those that can use several.
pub(crate) fn built_in(
    algorithm: Algorithm,
    collective: &Collective,
    ranks: u32,
    lanes: Option<u32>,
) -> Result<Plan, Failure> {
    emit::flat(algorithm, collective, ranks, lanes)
}
