//! `weft plan`: print plans and prove them.

mod file;
mod list;
mod text;

use std::io::{self, Write};

use anyhow::anyhow;
use clap::{Subcommand, ValueEnum};
use weftlink_plan::{Algorithm, Collective, Plan, verify};

pub(crate) use file::read;

use crate::Failure;

/// Print the plan of a collective, or prove one
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  weft plan --list
  weft plan all-reduce -n 4 --algorithm ring
  weft plan all-reduce -n 4 --algorithm ring --show 0
  weft plan all-reduce -n 4 --algorithm ring --emit json > ring.json
  weft plan all-reduce -n 4 --algorithm ring --emit msccl > ring.xml
  weft plan verify ring.json
  weft plan import ring.xml -o ring.json"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print the algorithms
    #[arg(long)]
    list: bool,
    /// With --list: print JSON
    #[arg(long, requires = "list")]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Print a plan that adds up the buffers of all ranks
    AllReduce(Build),
    /// Prove that the plan in a file computes its collective, or say where it goes wrong
    Verify(file::Args),
    /// Print the plan of an MSCCL program as JSON; it is not proved
    Import(file::ImportArgs),
}

#[derive(clap::Args)]
struct Build {
    /// Ranks
    #[arg(short = 'n', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: u32,
    /// The algorithm; `weft plan --list` prints them
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// With --algorithm ring: rings side by side
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    lanes: Option<u32>,
    /// What to print: words, the file that `weft bench --plan` reads, or MSCCL's XML
    #[arg(long, value_name = "FORM", default_value = "text")]
    emit: Emit,
    /// Print what this rank does, and leave the others out
    #[arg(long, value_name = "RANK")]
    show: Option<u32>,
}

/// Plans in which everyone meets everyone grow with the square of the ranks.
const RANKS_MAX: i64 = 1024;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Emit {
    Text,
    Json,
    Msccl,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Some(Command::AllReduce(build)) => print(build),
        Some(Command::Verify(args)) => file::run(args),
        Some(Command::Import(args)) => file::import(args),
        None => Ok(list::print(args.json)?),
    }
}

/// The plan of a built-in algorithm; `lanes` is for those that can use several.
pub(crate) fn built_in(algorithm: Algorithm, ranks: u32, lanes: Option<u32>) -> Result<Plan, Failure> {
    if lanes.is_some_and(|lanes| lanes > 1) && algorithm != Algorithm::Ring {
        return Err(Failure::misuse(anyhow!("--lanes is for --algorithm ring; {algorithm} has one lane")));
    }
    algorithm.flat(&Collective::AllReduce, ranks, lanes.unwrap_or(1)).map_err(Failure::misuse)
}

fn print(build: &Build) -> Result<(), Failure> {
    let Some(algorithm) = build.algorithm else {
        let names: Vec<_> = Algorithm::doing(&Collective::AllReduce).map(Algorithm::name).collect();
        return Err(Failure::misuse(anyhow!("say which: --algorithm {}", names.join(", "))));
    };
    if let Some(rank) = build.show.filter(|&rank| rank >= build.ranks) {
        let last = build.ranks - 1;
        return Err(Failure::misuse(anyhow!("--show {rank}: the ranks are 0 to {last}")));
    }
    if build.emit != Emit::Text && build.show.is_some() {
        return Err(Failure::misuse(anyhow!("--show is for --emit text; a file holds all ranks")));
    }
    let plan = built_in(algorithm, build.ranks, build.lanes)?;
    let mut out = io::stdout().lock();
    match build.emit {
        Emit::Json => writeln!(out, "{}", plan.to_json())?,
        Emit::Msccl => write!(out, "{}", plan.to_msccl().map_err(Failure::finding)?)?,
        Emit::Text => {
            let plan = verify(plan).map_err(Failure::finding)?;
            text::print(&mut out, &plan, build.show)?;
        }
    }
    Ok(())
}
