//! Arguments of `weft bench`.

mod gpu;
mod job;
mod rows;
mod sizes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::Algorithm;

use super::elsewhere::Elsewhere;
use super::gpu::CALLS_MAX as GPU_CALLS_MAX;
use super::job::Stats;
use super::launched::Launcher;
use super::names::{Choice, Op, Type, What};
use super::rank::{ITERATIONS_MAX, ITERATIONS_MIN};
use super::results::Average;
use crate::Failure;
use crate::calibration::CalibrationArgs;
use crate::names::{Named, at_least, between, collective_of};
use crate::plan::Sizes;
#[cfg(test)]
pub(super) use rows::tests;

/// Measure collectives between ranks, as nccl-tests does
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft bench                                       a tour of this machine
  weft bench all-reduce --size 1MiB -n 4           4 ranks, one size
  weft bench all-gather -n 4 -b 1K -e 1M -f 2      4 ranks, 11 sizes
  weft bench all-reduce -R 2 -d bfloat16 -o max    in symmetric memory
  weft bench broadcast -r -1 --stats               every root; percentiles
  weft bench all-reduce --cache both --plot a.svg  caches and memory
  weft bench p2p -n 4                              each pair of ranks alone
  weft bench --plan mine.json                      your own plan, proved first
  weft bench --tune --output tuning.toml           the best algorithm by size
  weft bench all-reduce --gpu -n 4 --sizes 8..1GiB    4 ranks on one GPU
  weft run -n 8 --hosts a,b -- weft bench all-reduce    ranks of several hosts

Options have the names of nccl-tests, except -n, which is the number of ranks as for mpirun; --iters is the number of \
iterations. Of their options about GPUs, only -G applies. Ranks may also be started by mpirun, torchrun or srun.

With --gpu, ranks are threads that share one NVIDIA GPU. Calls are nodes of a CUDA graph, --iters of them, and times are the GPU's; predict is \
a lower limit: every input byte read and every output byte written once, at the rate of a copy on that GPU.

A SIZE is 8, 64KiB or 25MB; K, M and G alone are 2^10, 2^20 and 2^30. The last size is the largest that the steps reach; with \
-b 8 -e 1M and the default factor of 8 it is 256 KiB.

Columns: time is the mean of the timed calls on the slowest rank; algbw is size / time; busbw is algbw times the factor of \
nccl-tests, 2(ranks - 1) / ranks for an all-reduce; predict is the time that the simulator expects.

Exit code 1 if an element is wrong, a rank fails or the average is below --min-bandwidth.")]
pub(crate) struct Args {
    /// The collective to measure [default: a tour of all-reduce in every kind of memory, or the plan's collective]
    #[arg(conflicts_with = "tune", value_parser = collective())]
    collective: Option<What>,
    /// Start RANKS ranks, each a process, or a thread with --gpu [default: those of the launcher or of the plan, or 2]
    #[arg(short = 'n', long, value_parser = between(1, RANKS_MAX))]
    ranks: Option<u32>,
    /// Run ranks as threads on one NVIDIA GPU
    #[arg(long)]
    pub(super) gpu: bool,
    /// With --gpu: the number of the GPU [default: 0]
    #[arg(long, value_name = "GPU", requires = "gpu")]
    device: Option<usize>,
    /// With --gpu: launch the graph of calls LAUNCHES times; 0 launches calls one by one, without a graph [default: 10]
    #[arg(short = 'G', long, value_name = "LAUNCHES")]
    cudagraph: Option<u32>,
    /// Measure one size
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["minbytes", "maxbytes", "stepfactor", "stepbytes", "sizes"])]
    size: Option<Bytes>,
    /// Measure a range of sizes: `8..1MiB`, the same as -b 8 -e 1MiB
    #[arg(long, value_name = "FROM..TO", conflicts_with_all = ["minbytes", "maxbytes"])]
    sizes: Option<Sizes>,
    /// The smallest size [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE")]
    minbytes: Option<Bytes>,
    /// Do not exceed this size [default: 128MiB, or the smallest if that is larger]
    #[arg(short = 'e', long, value_name = "SIZE")]
    maxbytes: Option<Bytes>,
    /// Multiply the size by FACTOR at each step [default: 8]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = at_least(2_u64))]
    stepfactor: Option<u64>,
    /// Add SIZE at each step
    #[arg(short = 'i', long, value_name = "SIZE", conflicts_with = "stepfactor")]
    stepbytes: Option<Bytes>,
    /// The kind of buffers: 0 ordinary memory, 2 symmetric memory [default: 0]
    #[arg(short = 'R', long, alias = "local_register", value_name = "0|2", value_parser = is_symmetric)]
    local_register: Option<bool>,
    /// Keep the data of calls in the caches, or rotate buffers so that calls read from memory [default: cached]
    #[arg(long, value_name = "WHERE")]
    cache: Option<Cache>,
    /// Make CALLS untimed calls before the timed ones, at each size [default: 5]
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "CALLS", allow_negative_numbers = true)]
    warmup_iters: Option<u32>,
    #[arg(long, value_name = "CALLS", value_parser = at_least(1_u32), help = iters_help())]
    iters: Option<u32>,
    /// Also time calls one by one and print minimum, median, 95th and 99th percentile and maximum; undisturbed: only of sizes whose
    /// calls take long enough that the timer does not change them
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "undisturbed")]
    stats: Option<Stats>,
    /// Check every element of the results: 0 no, 1 yes [default: 1]
    #[arg(short = 'c', long, value_name = "0|1", value_parser = is_one)]
    check: Option<bool>,
    /// The reduction: sum, prod, min, max, avg, mulsum, ..., or all [default: sum]
    #[arg(short = 'o', long, value_name = "OP")]
    op: Option<Choice<Op>>,
    /// The element type: float, half, bfloat16, int8, ..., or all [default: float]
    #[arg(short = 'd', long, value_name = "TYPE")]
    datatype: Option<Choice<Type>>,
    /// The root, or -1 for every rank in turn [default: 0]
    #[arg(short = 'r', long, value_name = "RANK", allow_negative_numbers = true, value_parser = between(-1, i64::from(RANKS_MAX) - 1))]
    root: Option<i64>,
    /// The time to print: 0 of rank 0, 1 mean of all ranks, 2 minimum, 3 maximum [default: 3]
    #[arg(short = 'a', long, value_name = "0..3", value_parser = average)]
    average: Option<Average>,
    /// Run this algorithm at all sizes; `weft plan --list` prints them
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    algorithm: Option<Algorithm>,
    /// Run LANES rings in parallel, or split each block into LANES parts (with --algorithm ring or staged)
    #[arg(long, value_name = "LANES", requires = "algorithm", value_parser = between(1_u32, 64))]
    lanes: Option<u32>,
    /// Prove the plan in FILE and run it at all sizes; `-` for standard input
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Use only plans that reduce in the order of ranks: the same bits for every algorithm and kind of memory
    #[arg(long)]
    deterministic: bool,
    /// Find the fastest algorithm for each size and print a table for WEFT_TUNING=FILE
    #[arg(long)]
    pub(super) tune: bool,
    /// With --tune: measure only these collectives [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = crate::names::named::<What>(What::names()))]
    collectives: Vec<What>,
    /// With --tune: write the table to FILE [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Run ranks as threads of one process
    #[arg(long)]
    pub(super) threads: bool,
    /// Whether to join the ranks of a launcher (mpirun, torchrun, srun, weft run) or to start ranks of its own
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub(super) launcher: Launcher,
    /// Bind each rank to a core of its own, or to none [default: core if there are enough]
    #[arg(long, value_name = "HOW")]
    bind: Option<Bind>,
    /// Fail a call that waits this long for other ranks (also --timeout): 30s, 500ms, 2m
    #[arg(
        visible_short_alias = 'T',
        long,
        alias = "timeout",
        value_name = "TIME",
        allow_negative_numbers = true,
        default_value = "60s",
        value_parser = deadline
    )]
    deadline: Duration,
    /// Fail if the average bus bandwidth is lower; NCCL_TESTS_MIN_BW sets it, too, to nine tenths of its value
    #[arg(long, value_name = "GB/s", allow_negative_numbers = true, value_parser = rate)]
    min_bandwidth: Option<f64>,
    /// Print one JSON document at the end instead of the table
    #[arg(long)]
    pub(super) json: bool,
    /// Also write the JSON document to FILE
    #[arg(short = 'J', long, value_name = "FILE", conflicts_with = "json")]
    pub(super) json_file: Option<PathBuf>,
    /// Also write the rows as CSV to FILE; `-` prints them instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Draw time and bus bandwidth over size as SVG
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// Write a trace of one more call per row for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    #[command(flatten)]
    elsewhere: Elsewhere,
    #[command(flatten)]
    pub(super) calibration: CalibrationArgs,
}

const RANKS_MAX: u32 = 1024;
/// How long a timed loop should take.
pub(super) const LOOP_SECONDS: f64 = 0.15;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Bind {
    None,
    Core,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Cache {
    Cached,
    Rotating,
    Both,
}

impl Args {
    /// Whether the command line names nothing to measure, which starts a tour.
    pub(super) fn is_tour(&self) -> bool {
        self.collective.is_none() && self.plan.is_none() && !self.tune
    }

    /// Whether the table is printed.
    pub(super) fn shows_table(&self) -> bool {
        !self.json && !self.tune && self.csv.as_deref() != Some(Path::new("-"))
    }

    /// Which rank's time is shown.
    pub(super) fn average(&self) -> Average {
        self.average.unwrap_or(Average::Most)
    }

    /// The smallest size that was asked for.
    fn smallest(&self) -> Option<Bytes> {
        self.size.or(self.sizes.map(|sizes| Bytes(sizes.0))).or(self.minbytes)
    }

    /// The largest size that was asked for.
    fn largest(&self) -> Option<Bytes> {
        self.size.or(self.sizes.map(|sizes| Bytes(sizes.1))).or(self.maxbytes)
    }

    /// The lowest average bus bandwidth that passes.
    pub(super) fn least_busbw_gb_per_s(&self) -> Result<Option<f64>, Failure> {
        const VARIABLE: &str = "NCCL_TESTS_MIN_BW";
        match (self.min_bandwidth, std::env::var(VARIABLE)) {
            (Some(least), _) => Ok(Some(least)),
            (None, Ok(text)) => match rate(&text) {
                Ok(least) => Ok(Some(0.9 * least)),
                Err(why) => misuse(format!("{VARIABLE}={text}: {why}")),
            },
            (None, Err(_)) => Ok(None),
        }
    }
}

fn iters_help() -> String {
    format!(
        "Time CALLS calls at each size [default: as many as fit into {LOOP_SECONDS} s, {ITERATIONS_MIN} to {ITERATIONS_MAX}; \
         with --gpu {ITERATIONS_MIN} to {GPU_CALLS_MAX}]"
    )
}

/// A collective that is measured, or pairs.
fn collective() -> Named<What> {
    collective_of(What::names(), |text| text.parse())
}

pub(super) fn misuse<T>(what: String) -> Result<T, Failure> {
    Err(Failure::misuse(anyhow!(what)))
}

fn is_symmetric(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "2" => Ok(true),
        "1" => Err("CPU memory needs no registration; write 0 (ordinary) or 2 (symmetric)".to_owned()),
        _ => Err("write 0 (ordinary) or 2 (symmetric)".to_owned()),
    }
}

fn is_one(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("write 0 or 1".to_owned()),
    }
}

fn average(text: &str) -> Result<Average, String> {
    match text {
        "0" => Ok(Average::First),
        "1" => Ok(Average::Mean),
        "2" => Ok(Average::Least),
        "3" => Ok(Average::Most),
        _ => Err("write 0 (rank 0), 1 (mean), 2 (minimum) or 3 (maximum)".to_owned()),
    }
}

fn deadline(text: &str) -> Result<Duration, String> {
    let found = crate::names::duration(text)?;
    if found.is_zero() { Err("it is 0; write a time, such as 30s".to_owned()) } else { Ok(found) }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|&rate: &f64| rate >= 0.0 && rate.is_finite());
    rate.ok_or_else(|| "write GB/s, such as 5 or 0.5".to_owned())
}
