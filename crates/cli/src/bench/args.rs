//! Arguments of `weft bench`, and the job they describe.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use weftlink_comm::bootstrap::Environment;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::{Algorithm, Collective, Order, Verified, verify};

use super::elsewhere::Elsewhere;
use super::job::{Case, Job, Pairs, Stats};
use super::launched::Launcher;
use super::names::{Choice, Op, Type, What};
use super::results::Average;
use super::{pairs, slots, spawn, tune};
use crate::plan::Sizes;
use crate::{Failure, counted};

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
  weft run -n 8 --hosts a,b -- weft bench all-reduce    ranks of several hosts

Options are those of nccl-tests, except -n, which is the number of ranks as for mpirun; --iters is the number of iterations. \
Ranks may also be started by mpirun, torchrun or srun.

A SIZE is 8, 64KiB or 25MB; K, M and G alone are 2^10, 2^20 and 2^30.

Columns: time is the mean of the timed calls on the slowest rank; algbw is size / time; busbw is algbw times the factor of \
nccl-tests, 2(ranks - 1) / ranks for an all-reduce; predict is the time that the simulator expects.

Exit code 1 if an element is wrong, a rank fails or the average is below --min-bandwidth.")]
pub(crate) struct Args {
    /// The collective to measure [default: a tour of all-reduce in every kind of memory, or the plan's collective]
    #[arg(conflicts_with = "tune", value_parser = crate::names::named::<What>(What::names()))]
    collective: Option<What>,
    /// Start RANKS ranks, each a process [default: those of the launcher or of the plan, or 2]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: Option<u32>,
    /// Measure one size
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["minbytes", "maxbytes", "stepfactor", "stepbytes", "sizes"])]
    size: Option<Bytes>,
    /// Measure a range of sizes: `8..1MiB`, the same as -b 8 -e 1MiB
    #[arg(long, value_name = "FROM..TO", conflicts_with_all = ["minbytes", "maxbytes"])]
    sizes: Option<Sizes>,
    /// The smallest size [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE")]
    minbytes: Option<Bytes>,
    /// The largest size [default: 128MiB, or the smallest if that is larger]
    #[arg(short = 'e', long, value_name = "SIZE")]
    maxbytes: Option<Bytes>,
    /// Multiply the size by FACTOR at each step [default: 8]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(2..))]
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
    /// Time CALLS calls at each size [default: as many as fit into 0.15 s, 5 to 500000]
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Also time calls one by one and print minimum, median, 95th and 99th percentile and maximum
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
    #[arg(short = 'r', long, value_name = "RANK", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..RANKS_MAX))]
    root: Option<i64>,
    /// The time to print: 0 of rank 0, 1 mean of all ranks, 2 minimum, 3 maximum [default: 3]
    #[arg(short = 'a', long, value_name = "0..3", value_parser = average)]
    average: Option<Average>,
    /// Run this algorithm at all sizes; `weft plan --list` prints them
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    algorithm: Option<Algorithm>,
    /// Run LANES rings in parallel, or split each block into LANES parts (with --algorithm ring or staged)
    #[arg(long, value_name = "LANES", requires = "algorithm", value_parser = clap::value_parser!(u32).range(1..=64))]
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
    /// Whether to join the ranks of a launcher (mpirun, torchrun, srun, weft run) or to start own ones
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub(super) launcher: Launcher,
    /// Bind each rank to a core of its own, or to none [default: core if there are enough]
    #[arg(long, value_name = "HOW")]
    bind: Option<Bind>,
    /// Fail a call that waits this long for other ranks (also --timeout): 30s, 500ms, 2m
    #[arg(
        short_alias = 'T',
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
}

const RANKS_MAX: i64 = 1024;
const MINBYTES: Bytes = Bytes(8);
const MAXBYTES: Bytes = Bytes(128 << 20);
const STEPFACTOR: u64 = 8;
const WARMUP_ITERS: u32 = 5;
/// A limit on the rows of a run.
const SIZES_MAX: usize = 10_000;
/// How long a timed loop should take.
pub(super) const LOOP_SECONDS: f64 = 0.15;
/// Smaller calls depend on latency, not on where their data is.
const ROTATING_BYTES_MIN: usize = 64 << 10;
/// The sizes of the tour.
const TOUR_BYTES: [u64; 6] = [8, 512, 32 << 10, 1 << 20, 8 << 20, 64 << 20];
const TOUR_RANKS_MAX: usize = 8;
/// Messages between pairs.
const PAIR_BYTES: (u64, u64) = (8, 4 << 20);

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

    /// Refuses options that do not apply: all that change what is measured, except those in `but`.
    fn refuse(&self, but: &[&str], to: &str) -> Result<(), Failure> {
        let given = [
            ("-b", self.smallest().is_some()),
            ("-e", self.largest().is_some()),
            ("-f", self.stepfactor.is_some()),
            ("-i", self.stepbytes.is_some()),
            ("-R", self.local_register.is_some()),
            ("--cache", self.cache.is_some()),
            ("-w", self.warmup_iters.is_some()),
            ("--iters", self.iters.is_some()),
            ("--stats", self.stats.is_some()),
            ("-c", self.check.is_some()),
            ("-o", self.op.is_some()),
            ("-d", self.datatype.is_some()),
            ("-r", self.root.is_some()),
            ("-a", self.average.is_some()),
            ("--algorithm", self.algorithm.is_some()),
            ("--plan", self.plan.is_some()),
            ("--deterministic", self.deterministic),
            ("--min-bandwidth", self.min_bandwidth.is_some()),
            ("--json", self.json),
            ("-J", self.json_file.is_some()),
            ("--csv", self.csv.is_some()),
            ("--plot", self.plot.is_some()),
            ("--trace", self.trace.is_some()),
        ];
        match given.into_iter().find(|(option, is_given)| *is_given && !but.contains(option)) {
            Some((option, _)) => misuse(format!("{option} does not apply to {to}")),
            None => Ok(()),
        }
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

    /// The job. The launcher determines the number of ranks.
    pub(super) fn job(&self, launched: Option<&Environment>) -> Result<Job, Failure> {
        self.elsewhere.refuse()?;
        self.fits_launcher(launched)?;
        for (option, is_given) in
            [("--output", self.output.is_some()), ("--collectives", !self.collectives.is_empty())]
        {
            if is_given && !self.tune {
                return misuse(format!("{option} requires --tune"));
            }
        }
        let plan = self.plan.as_ref().map(|file| crate::plan::read(file)).transpose()?;
        let cores = spawn::allowed_cores().map_err(Failure::Finding)?;
        let given = self.ranks.or(launched.map(|environment| environment.size as u32));
        let ranks = match (&plan, given) {
            (Some(plan), Some(ranks)) if plan.ranks != ranks => {
                let (name, for_ranks) = (&plan.name, counted(plan.ranks, "rank"));
                let given = if self.ranks.is_some() { "-n " } else { "" };
                return misuse(format!("plan {name:?} is for {for_ranks}, not for {given}{ranks}"));
            }
            (Some(plan), None) => plan.ranks as usize,
            (_, Some(ranks)) => ranks as usize,
            (_, None) if self.is_tour() => cores.len().clamp(2, TOUR_RANKS_MAX),
            (_, None) => 2,
        };
        let enough = ranks <= cores.len();
        let own = if enough && launched.is_none() { Bind::Core } else { Bind::None };
        let bind = self.bind.unwrap_or(own) == Bind::Core;
        if bind && !enough {
            let have = cores.len();
            return misuse(format!(
                "--bind core needs a core for each of {ranks} ranks; this host has {have}"
            ));
        }
        let mut job = Job {
            ranks,
            cases: Vec::new(),
            rows: Vec::new(),
            plans: Vec::new(),
            plan_hashes: Vec::new(),
            orders: Vec::new(),
            pairs: None,
            warmup: self.warmup_iters.unwrap_or(WARMUP_ITERS),
            iterations: self.iters,
            loop_seconds: LOOP_SECONDS,
            check: self.check.unwrap_or(true),
            stats: self.stats,
            in_place: true,
            trace: self.trace.is_some(),
            cache_bytes: slots::cache_bytes(),
            deadline: self.deadline,
            cores: bind.then(|| cores[..ranks].to_vec()),
            spin: enough,
            deterministic: self.deterministic,
        };
        match self.collective {
            Some(What::P2p) => self.pairs(&mut job)?,
            _ if self.tune => {
                self.refuse(
                    &["-b", "-e", "--iters"],
                    "--tune, which takes -n, -b, -e, --iters and --collectives",
                )?;
                tune::rows(&mut job, &self.collectives, self.smallest(), self.largest())?;
            }
            _ => self.rows(&mut job, plan)?,
        }
        let here = launched.and_then(|environment| environment.local_size).unwrap_or(job.ranks);
        enough_memory(&job, here)?;
        Ok(job)
    }

    /// Refuses options that contradict the launcher.
    fn fits_launcher(&self, launched: Option<&Environment>) -> Result<(), Failure> {
        let Some(environment) = launched else { return Ok(()) };
        let (rank, size) = (environment.rank, environment.size);
        let told = format!("{} started this process as rank {rank} of {size}", environment.launcher.name());
        let instead = "or add --launcher none to start own ranks";
        match self.ranks {
            Some(ranks) if ranks as usize != size => {
                misuse(format!("-n {ranks}, but {told}; omit -n, {instead}"))
            }
            _ if size > RANKS_MAX as usize => {
                misuse(format!("{told}; weft bench takes up to {RANKS_MAX} ranks"))
            }
            _ if self.threads => misuse(format!("--threads, but {told}; omit it, {instead}")),
            _ if self.bind == Some(Bind::Core) => misuse(format!(
                "--bind core, but {told}, and the launcher places the ranks; omit it, {instead}"
            )),
            _ => Ok(()),
        }
    }

    fn pairs(&self, job: &mut Job) -> Result<(), Failure> {
        if job.ranks > pairs::RANKS_MAX {
            return misuse(format!("p2p measures up to {} ranks", pairs::RANKS_MAX));
        }
        self.refuse(&["-b", "-e", "--json", "-J"], "p2p, which takes -n, -b, -e and --json")?;
        let bytes =
            |given: Option<Bytes>, otherwise: u64| given.map_or(otherwise, |bytes| bytes.0).max(1) as usize;
        let (small_bytes, large_bytes) =
            (bytes(self.smallest(), PAIR_BYTES.0), bytes(self.largest(), PAIR_BYTES.1));
        if small_bytes > large_bytes {
            return misuse("-b, the size for latency, is larger than -e, the size for bandwidth".to_owned());
        }
        job.pairs = Some(Pairs { small_bytes, large_bytes });
        Ok(())
    }

    fn rows(&self, job: &mut Job, plan: Option<Verified>) -> Result<(), Failure> {
        let memories = match self.local_register {
            Some(symmetric) => vec![symmetric],
            None if self.is_tour() => vec![false, true],
            None => vec![false],
        };
        let cache = self.cache.unwrap_or(if self.is_tour() { Cache::Both } else { Cache::Cached });
        let collectives = match &plan {
            Some(plan) => {
                self.fits(plan)?;
                vec![plan.collective.clone()]
            }
            None => self.collectives_of(job.ranks as u32)?,
        };
        let kinds = self.kinds(&collectives[0])?;
        let given = match plan {
            Some(plan) => {
                needs_of(&plan, &memories)?;
                Some(job.add_plan(plan))
            }
            None => None,
        };
        for &symmetric in &memories {
            for (&(data_type, op), collective) in
                kinds.iter().flat_map(|kind| collectives.iter().map(move |collective| (kind, collective)))
            {
                let plan = match (given, self.algorithm) {
                    (None, Some(algorithm)) => {
                        let plan =
                            crate::plan::built_in(algorithm, collective, job.ranks as u32, self.lanes)?;
                        let plan = verify(plan).map_err(Failure::finding)?;
                        needs_of(&plan, &memories)?;
                        Some(job.add_plan(plan))
                    }
                    (given, _) => given,
                };
                let collective = collective.clone();
                let case = Case { collective, data_type, op, symmetric, rotating: false, plan };
                if let Some(plan) = plan.filter(|_| self.deterministic) {
                    in_order(job.orders[plan], &job.plans[plan].name, &case)?;
                }
                self.rows_of(job, case, cache)?;
            }
        }
        Ok(())
    }

    /// Refuses options that contradict the plan.
    fn fits(&self, plan: &Verified) -> Result<(), Failure> {
        let (name, computes) = (&plan.name, &plan.collective);
        let asked = self.collective.and_then(|what| what.collective(plan.ranks, 0));
        match asked.filter(|asked| asked.name() != computes.name()) {
            Some(asked) => misuse(format!("{name} computes {computes}, not {}", asked.name())),
            None if self.root.is_some() => {
                misuse("-r does not apply to a plan, which names its root".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Adds a case at all sizes, with its data in caches, in memory or both.
    fn rows_of(&self, job: &mut Job, case: Case, cache: Cache) -> Result<(), Failure> {
        let cached = job.cases.len();
        let counts = self.counts(&case, job.ranks)?;
        let sizes: Vec<_> = counts.into_iter().map(|count| (count, case.bytes(count, job.ranks))).collect();
        job.cases.push(Case { rotating: cache == Cache::Rotating, ..case.clone() });
        if cache == Cache::Both {
            job.cases.push(Case { rotating: true, ..case });
        }
        for (count, bytes) in sizes {
            job.rows.push((cached, count));
            if cache == Cache::Both && bytes >= ROTATING_BYTES_MIN {
                job.rows.push((cached + 1, count));
            }
        }
        Ok(())
    }

    /// The collective, once for each root.
    fn collectives_of(&self, ranks: u32) -> Result<Vec<Collective>, Failure> {
        let what = self.collective.unwrap_or(What::AllReduce);
        let is_rooted = what.collective(ranks, 0).is_some_and(|collective| collective.root().is_some());
        let roots = match self.root {
            Some(_) if !is_rooted => {
                return misuse("-r applies to reduce, broadcast, gather and scatter only".to_owned());
            }
            Some(root) if root >= i64::from(ranks) => {
                return misuse(format!("-r {root}: there are {}", counted(ranks, "rank")));
            }
            Some(-1) => 0..ranks,
            Some(root) => root as u32..root as u32 + 1,
            None => 0..1,
        };
        Ok(roots.filter_map(|root| what.collective(ranks, root)).collect())
    }

    /// The types, each with its reduction.
    fn kinds(&self, collective: &Collective) -> Result<Vec<(Type, Option<Op>)>, Failure> {
        use weftlink_comm::{DataType, Reduction};
        let float = Type(DataType::F32);
        let types = match self.datatype.unwrap_or(Choice::One(float)) {
            Choice::One(data_type) => vec![data_type],
            Choice::All => DataType::ALL.into_iter().map(Type).collect(),
        };
        if !collective.reduces() {
            return match self.op {
                Some(_) => {
                    misuse(format!("-o does not apply to {}, which has no reduction", collective.name()))
                }
                None => Ok(types.into_iter().map(|data_type| (data_type, None)).collect()),
            };
        }
        let ops = match self.op {
            Some(Choice::One(op)) => vec![op],
            Some(Choice::All) => Reduction::NAMED.into_iter().map(Op).collect(),
            None => vec![Op(Reduction::Sum)],
        };
        let kinds: Vec<_> = types
            .iter()
            .flat_map(|&data_type| ops.iter().map(move |&op| (data_type, op)))
            .filter(|(data_type, op)| op.operation(*data_type, 0).is_some())
            .map(|(data_type, op)| (data_type, Some(op)))
            .collect();
        if kinds.is_empty() {
            let (op, data_type) = (ops[0].name(), types[0].name());
            return misuse(format!("{op} is not defined for {data_type}"));
        }
        Ok(kinds)
    }

    /// The sizes of a case, as elements of a block.
    fn counts(&self, case: &Case, ranks: usize) -> Result<Vec<usize>, Failure> {
        let blocks = case.blocks(ranks);
        if blocks == 0 {
            let is_given =
                self.smallest().or(self.largest()).or(self.stepbytes).is_some() || self.stepfactor.is_some();
            let name = case.collective.name();
            return if is_given { misuse(format!("a {name} has no size")) } else { Ok(vec![0]) };
        }
        let element = case.data_type.bytes() as u64;
        let smallest = self.smallest().unwrap_or(MINBYTES);
        let largest = self.largest().unwrap_or(MAXBYTES.max(smallest));
        if self.smallest().is_some() && smallest.0 < element {
            let name = case.data_type.name();
            return misuse(format!("-b {}: the smallest size is {element} bytes, one {name}", smallest.0));
        }
        if smallest > largest {
            return misuse(format!(
                "the smallest size (-b {smallest}) is larger than the largest (-e {largest})"
            ));
        }
        let step = |bytes: u64| match self.stepbytes {
            Some(step) => bytes.checked_add(step.0),
            None => bytes.checked_mul(self.stepfactor.unwrap_or(STEPFACTOR)),
        };
        if self.stepbytes.is_some_and(|step| step.0 < element) {
            return misuse(format!("-i must be at least {element} bytes, one {}", case.data_type.name()));
        }
        let is_asked_for =
            self.smallest().or(self.largest()).or(self.stepbytes).is_some() || self.stepfactor.is_some();
        let sizes: Vec<u64> = if self.is_tour() && !is_asked_for {
            TOUR_BYTES.to_vec()
        } else {
            let all = std::iter::successors(Some(smallest.0), |&bytes| step(bytes));
            all.take_while(|&bytes| bytes <= largest.0).take(SIZES_MAX + 1).collect()
        };
        if sizes.len() > SIZES_MAX {
            return misuse(format!("more than {SIZES_MAX} sizes; use larger steps"));
        }
        // Every block has an element at least, so several small sizes may come to the same.
        let count = |bytes: u64| ((bytes / element / blocks as u64) as usize).max(1);
        let mut counts: Vec<usize> = sizes.into_iter().map(count).collect();
        counts.dedup();
        Ok(counts)
    }
}

/// Refuses a plan that needs symmetric memory where buffers are ordinary.
fn needs_of(plan: &Verified, memories: &[bool]) -> Result<(), Failure> {
    if plan.writes_to_peers() && memories.contains(&false) {
        let name = &plan.name;
        return misuse(format!(
            "{name} writes into the buffers of other ranks, which must be symmetric: add -R 2"
        ));
    }
    Ok(())
}

/// Refuses a plan whose results have other bits than those of other plans.
fn in_order(order: Order, name: &str, case: &Case) -> Result<(), Failure> {
    let Some(op) = case.op else { return Ok(()) };
    if order >= op.0.order(Some(case.data_type.0), true) {
        return Ok(());
    }
    let (op, data_type) = (op.name(), case.data_type.name());
    misuse(format!(
        "--deterministic: {name} does not reduce in the order of ranks, so its {op} of {data_type} has other bits than \
         other plans. Omit the plan, or use one that reduces all ranks in one step, such as staged"
    ))
}

pub(super) fn misuse<T>(what: String) -> Result<T, Failure> {
    Err(Failure::misuse(anyhow!(what)))
}

/// Refuses a job whose buffers do not fit into the free memory of this host, which runs `here` ranks.
fn enough_memory(job: &Job, here: usize) -> Result<(), Failure> {
    let of_all = slots::bytes_needed(job).saturating_add(pairs::bytes_needed(job));
    let needed = of_all / job.ranks as u64 * here.min(job.ranks) as u64;
    match weftlink_shm::available::memory_bytes() {
        Some(left) if needed > left => misuse(format!(
            "the buffers of {} need {}, and {} are free; choose a smaller -e",
            counted(here, "rank"),
            Bytes(needed),
            Bytes(left)
        )),
        _ => Ok(()),
    }
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

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The job of a command line.
    pub(in crate::bench) fn job(line: &str) -> Job {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        match Line::try_parse_from(words).unwrap().args.job(None) {
            Ok(job) => job,
            Err(Failure::Misuse(error) | Failure::Finding(error)) => panic!("{line}: {error:#}"),
            Err(_) => panic!("{line}"),
        }
    }

    #[test]
    fn sizes_are_those_of_nccl_tests() {
        for (line, blocks, bytes) in [
            ("all-reduce", [2, 16], [8, 64]),
            ("all-gather", [1, 4], [16, 64]),
            ("reduce-scatter", [1, 4], [16, 64]),
            ("alltoall", [1, 4], [16, 64]),
            ("broadcast", [2, 16], [8, 64]),
            ("gather", [1, 4], [16, 64]),
            ("sendrecv", [2, 16], [8, 64]),
        ] {
            let job = job(&format!("{line} -n 4 -b 8 -e 64"));
            let case = &job.cases[0];
            let found: Vec<_> = job.rows.iter().map(|&(_, count)| (count, case.bytes(count, 4))).collect();
            assert_eq!(found, blocks.into_iter().zip(bytes).collect::<Vec<_>>(), "{line}");
        }
        assert_eq!(job("barrier").rows, [(0, 0)]);
    }

    #[test]
    fn roots_and_kinds_multiply() {
        assert_eq!(job("broadcast -n 3 -r -1 -e 8").cases.len(), 3);
        assert_eq!(job("reduce -n 3 -r 2 -e 8").cases[0].collective, Collective::Reduce { root: 2 });
        assert_eq!(job("all-gather -d all -b 64 -e 64").cases.len(), weftlink_comm::DataType::ALL.len());
        assert!(!job("all-reduce -d all -o all -b 64 -e 64").cases.is_empty());
    }

    #[test]
    fn the_tour_measures_all_kinds_of_memory() {
        let job = job("-n 2");
        let kinds: Vec<_> = job.cases.iter().map(|case| (case.symmetric, case.rotating)).collect();
        assert_eq!(kinds, [(false, false), (false, true), (true, false), (true, true)]);
        assert_eq!(job.rows.len(), 18);
    }
}
