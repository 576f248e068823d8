//! What was typed, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::ArgAction::Set;
use clap::ValueEnum;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::{Algorithm, Collective, Verified, verify};

use super::elsewhere::Elsewhere;
use super::job::{ELEMENT, Job};
use super::{data, spawn};
use crate::{Failure, counted};

/// Measure a collective between ranks on this host, as nccl-tests does
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft bench all-reduce                             2 ranks, 8 bytes to 128 MiB
  weft bench all-reduce -n 4 -b 1K -e 1M -f 2       4 ranks, 11 sizes
  weft bench all-reduce -R 2                        symmetric buffers, which peers reach directly
  weft bench all-reduce --algorithm ring --lanes 2
  weft bench --plan mine.json                       a plan of your own; it is proved first
  weft bench all-reduce --json > run.json

Options are spelled as nccl-tests spells them, but for -n, which is the number of ranks as for mpirun; the number of \
iterations is --iters.

A SIZE is 8, 64KiB or 25MB; K, M and G alone are 2^10, 2^20 and 2^30, as in nccl-tests.

time is that of the slowest rank, averaged over the iterations; algbw is size / time; busbw is \
algbw x 2(ranks - 1) / ranks.

Exit code 1 if any element was wrong or a rank failed.")]
pub(crate) struct Args {
    /// What to measure; a plan knows what it is for
    #[arg(required_unless_present_any = ["plan", "Elsewhere"])]
    collective: Option<CollectiveName>,
    /// Ranks, each a process [default: 2, or as many as the plan has]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: Option<u32>,
    /// The smallest size
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "8")]
    minbytes: Bytes,
    /// The largest size [default: 128MiB, or the smallest if that is larger]
    #[arg(short = 'e', long, value_name = "SIZE")]
    maxbytes: Option<Bytes>,
    /// Each size is so many times the one before [default: 8]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(2..))]
    stepfactor: Option<u64>,
    /// Each size is so much larger than the one before
    #[arg(short = 'i', long, value_name = "SIZE", conflicts_with = "stepfactor")]
    stepbytes: Option<Bytes>,
    /// Buffers: 0 ordinary memory, 2 symmetric memory
    #[arg(short = 'R', long, alias = "local_register", value_name = "0|2", default_value = "0", action = Set, value_parser = is_symmetric)]
    local_register: bool,
    /// Calls before those that are timed, at each size
    #[arg(
        short = 'w',
        long,
        alias = "warmup_iters",
        value_name = "CALLS",
        allow_negative_numbers = true,
        default_value_t = 5
    )]
    warmup_iters: u32,
    /// Calls that are timed, at each size [default: as many as take 0.15 s, 5 to 500000]
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Whether every element of a result is compared with what it should be: 0 no, 1 yes
    #[arg(short = 'c', long, value_name = "0|1", default_value = "1", action = Set, value_parser = is_one)]
    check: bool,
    /// How elements are combined: only sum so far
    #[arg(id = "op", short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = only_sum)]
    _op: String,
    /// The type of elements: only float so far
    #[arg(id = "datatype", short = 'd', long = "datatype", value_name = "TYPE", default_value = "float", value_parser = only_float)]
    _datatype: String,
    /// Run this algorithm at all sizes; `weft plan --list` prints them
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    algorithm: Option<Algorithm>,
    /// With --algorithm ring or staged: rings, or parts of every block, side by side
    #[arg(long, value_name = "LANES", requires = "algorithm", value_parser = clap::value_parser!(u32).range(1..=64))]
    lanes: Option<u32>,
    /// Run the plan in this file at all sizes, once it is proved; `-` for standard input
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Ranks are threads of one process
    #[arg(long)]
    pub(super) threads: bool,
    /// Where ranks run: each on a core of its own, or anywhere [default: core, if there are enough]
    #[arg(long, value_name = "HOW")]
    bind: Option<Bind>,
    /// How long a call may wait for other ranks before it fails
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "60", value_parser = seconds)]
    deadline: Duration,
    /// Print one JSON document at the end
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    elsewhere: Elsewhere,
}

const RANKS_MAX: i64 = 1024;
const _: () = assert!(RANKS_MAX as usize <= data::RANKS_MAX, "sums of all ranks' data are exact");
const MAXBYTES: Bytes = Bytes(128 << 20);
const STEPFACTOR: u64 = 8;
/// More rows than anybody reads.
const SIZES_MAX: usize = 10_000;

#[derive(Clone, Copy, ValueEnum)]
enum CollectiveName {
    AllReduce,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Bind {
    None,
    Core,
}

impl Args {
    pub(super) fn job(&self) -> Result<Job, Failure> {
        self.elsewhere.refuse()?;
        let plan = self.plan()?;
        let ranks = match (&plan, self.ranks) {
            (Some(plan), Some(ranks)) if plan.ranks != ranks => {
                let (name, for_ranks) = (&plan.name, counted(plan.ranks, "rank"));
                return misuse(format!("the plan {name:?} is for {for_ranks}, not for -n {ranks}"));
            }
            (Some(plan), None) => plan.ranks,
            (_, ranks) => ranks.unwrap_or(2),
        };
        if let Some(plan) = plan.as_ref().filter(|plan| plan.collective != Collective::AllReduce) {
            let (name, collective) = (&plan.name, &plan.collective);
            return misuse(format!("{name} computes {collective}; only all-reduce runs so far"));
        }
        if let Some(plan) = plan.as_ref().filter(|plan| plan.needs_windows() && !self.local_register) {
            let name = &plan.name;
            return misuse(format!("{name} reaches into peers' buffers, which must be symmetric: add -R 2"));
        }
        let ranks = ranks as usize;
        let counts = self.counts()?;
        enough_memory(ranks, &counts)?;
        let cores = spawn::allowed_cores().map_err(Failure::Finding)?;
        let enough = ranks <= cores.len();
        let bind = self.bind.unwrap_or(if enough { Bind::Core } else { Bind::None }) == Bind::Core;
        if bind && !enough {
            let have = cores.len();
            return misuse(format!("--bind core needs a core for each of {ranks} ranks; there are {have}"));
        }
        Ok(Job {
            collective: Collective::AllReduce,
            ranks,
            counts,
            symmetric: self.local_register,
            plan_hash: plan.as_ref().map(Verified::hash),
            plan: plan.map(Verified::into_plan),
            warmup: self.warmup_iters,
            iterations: self.iters,
            check: self.check,
            deadline: self.deadline,
            cores: bind.then(|| cores[..ranks].to_vec()),
            spin: enough,
        })
    }

    /// The plan that all sizes run, proved, if one was chosen.
    fn plan(&self) -> Result<Option<Verified>, Failure> {
        if let Some(file) = &self.plan {
            return crate::plan::read(file).map(Some);
        }
        let Some(algorithm) = self.algorithm else {
            return Ok(None);
        };
        let ranks = self.ranks.unwrap_or(2);
        let plan = crate::plan::built_in(algorithm, ranks, self.lanes)?;
        verify(plan).map(Some).map_err(Failure::finding)
    }

    /// The sizes, in elements.
    fn counts(&self) -> Result<Vec<usize>, Failure> {
        let smallest = self.minbytes;
        let largest = self.maxbytes.unwrap_or(MAXBYTES.max(smallest));
        let element = ELEMENT.1 as u64;
        if smallest.0 < element {
            return misuse(format!(
                "-b {}: a size is at least {element} bytes, one {}",
                smallest.0, ELEMENT.0
            ));
        }
        if smallest > largest {
            return misuse(format!(
                "the smallest size, -b, is {smallest}; the largest, -e, is only {largest}"
            ));
        }
        let step = |bytes: u64| match self.stepbytes {
            Some(step) => bytes.checked_add(step.0),
            None => bytes.checked_mul(self.stepfactor.unwrap_or(STEPFACTOR)),
        };
        if self.stepbytes.is_some_and(|step| step.0 < element) {
            return misuse(format!("sizes must grow by at least {element} bytes, one {}", ELEMENT.0));
        }
        let sizes = std::iter::successors(Some(smallest.0), |&bytes| step(bytes));
        let counts: Vec<usize> = sizes
            .take_while(|&bytes| bytes <= largest.0)
            .take(SIZES_MAX + 1)
            .map(|bytes| (bytes / element) as usize)
            .collect();
        if counts.len() > SIZES_MAX {
            return misuse(format!("these are more than {SIZES_MAX} sizes; take larger steps"));
        }
        Ok(counts)
    }
}

fn misuse<T>(what: String) -> Result<T, Failure> {
    Err(Failure::misuse(anyhow!(what)))
}

/// Refuses what the kernel would kill us for.
fn enough_memory(ranks: usize, counts: &[usize]) -> Result<(), Failure> {
    let largest = Bytes(counts.iter().max().map_or(0, |&count| (count * ELEMENT.1) as u64));
    let needed = Bytes(largest.0.saturating_mul(2 * ranks as u64));
    match weftlink_comm::available_memory_bytes() {
        Some(left) if needed.0 > left => misuse(format!(
            "{} with two buffers of {largest} for each: that takes {needed}, and {} are left; choose a smaller -e",
            counted(ranks, "rank"),
            Bytes(left)
        )),
        _ => Ok(()),
    }
}

fn is_symmetric(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "2" => Ok(true),
        "1" => Err("on a CPU, memory that is registered but not symmetric is no faster than any other: \
                    say 0 (ordinary) or 2 (symmetric)"
            .to_owned()),
        _ => Err("say 0 (ordinary) or 2 (symmetric)".to_owned()),
    }
}

fn is_one(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("say 0 or 1".to_owned()),
    }
}

fn only_sum(text: &str) -> Result<String, String> {
    only("sum", text)
}

fn only_float(text: &str) -> Result<String, String> {
    only(ELEMENT.0, text)
}

fn only(known: &str, text: &str) -> Result<String, String> {
    if text == known { Ok(text.to_owned()) } else { Err(format!("only {known} so far")) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "say how many seconds, such as 30 or 0.5".to_owned())
}
