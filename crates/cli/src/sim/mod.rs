//! `weft sim`: predict times on machines you need not have.

mod accuracy;
mod asked;
mod calibrate;
mod calibrate_on;
mod collective;
mod compare;
mod copy;
mod cores;
mod disturbed;
mod text;
mod trace;

use std::path::Path;

use clap::Subcommand;
use weftlink_fabric::nearest::did_you_mean;
use weftlink_plan::Kind;
use weftlink_sim::predict;

use crate::Failure;
use crate::names::{Named, collective_of};

/// Predict the time of collectives and copies on any fabric
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  weft sim all-reduce hgx-h100                         NCCL at many sizes
  weft sim all-reduce \"16x hgx-h100 + 8x ndr\" --sizes 8..16GiB --plot a.svg
  weft sim all-gather p5 --library nccl:2.18 --size 64MiB
  weft sim all-reduce hgx-h100 --size 1GiB --algorithm ring --protocol simple
  weft sim all-reduce hgx-h100 --size 1GiB --explain   the terms of the time
  weft sim all-reduce \"4x dgx-h100\" --size 1GiB --slow host1/nic0,leaf0=0.5
  weft sim all-reduce \"2x dgx-h100\" --size 1GiB --beside all-to-all:256MiB
  weft sim all-reduce -n 8 --library openmpi           ranks on CPU cores
  weft sim --plan mine.json hgx-h100 --size 1GiB       a plan from a file
  weft sim scan hgx-h100 --library weft --size 1MiB    what NCCL does not have
  weft sim all-to-all-v 4x-rtx4090 --counts 4,2,1,1    blocks of different lengths
  weft sim compare hgx-b200 8x-rtx5090 \"2x hgx-h100 + 8x eth100\" --size 1GB
  weft sim copy numa0 gpu0 --fabric hgx-h100 --size 80GB
  weft sim accuracy measured.csv --out predicted.csv
  weft sim calibrate all_reduce.log --fabric hgx-h100 -o mine.toml
  weft sim all-gather hgx-h100 --calibration mine.toml

A SIZE is 8, 64KiB or 25MB; K, M and G alone are 2^10, 2^20 and 2^30. Sizes, algbw and busbw are counted as in nccl-tests.

Where published measurements of the library exist, a prediction has intervals that hold for half of all machines, and for nine of \
ten (column 90% us), as they did on machines the model was not fitted to. `weft sim accuracy FILE` compares predictions with your \
own measurements."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    collective: collective::Calls,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::Args),
    Copy(copy::Args),
    Accuracy(accuracy::Args),
    Calibrate(calibrate::Args),
}

/// The first word of a prediction: a collective, or the fabric of a plan.
#[derive(Clone)]
enum First {
    Collective(Kind),
    Fabric(String),
}

/// A collective that is predicted.
fn collective() -> Named<Kind> {
    collective_of(predict::kinds().map(Kind::name).collect(), kind)
}

/// A collective that is predicted, or a fabric for --plan.
fn first() -> Named<First> {
    collective_of(predict::kinds().map(Kind::name).collect(), |text| match kind(text) {
        Ok(kind) => Ok(First::Collective(kind)),
        Err(_) if is_fabric(text) => Ok(First::Fabric(text.to_owned())),
        Err(why) => Err(why),
    })
}

fn kind(text: &str) -> Result<Kind, String> {
    let names: Vec<&str> = predict::kinds().map(Kind::name).collect();
    let kind = Kind::from_name(text).ok_or_else(|| {
        let hint = did_you_mean(text, names.iter().copied());
        format!("unknown collective `{text}`.{hint} weft sim predicts {}.", names.join(", "))
    })?;
    predict::operation(kind).map(|_| kind).map_err(|error| error.to_string())
}

/// Whether a word is a fabric, or meant to be one: a file, or a cluster.
fn is_fabric(text: &str) -> bool {
    weftlink_fabric::resolve(text).is_ok() || Path::new(text).is_file() || text.contains([' ', '+'])
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Some(Command::Compare(args)) => compare::run(args),
        Some(Command::Copy(args)) => copy::run(args),
        Some(Command::Accuracy(args)) => accuracy::run(args),
        Some(Command::Calibrate(args)) => calibrate::run(args),
        None => collective::run(&args.collective),
    }
}
