//! The engine: interprets plans in virtual time.
//!
//! A lane begins its next step when the step's dependencies are met: messages, counters and free slots, each visible one hop after it was
//! produced. The step's data then flows over the links of its route, at a rate [shared](share) with all other active transfers, and the
//! step ends when all of it has arrived. All other times come from the [`CostModel`].
//!
//! A plan run by [classes](weftlink_plan::classes) simulates one representative rank of each class; see [`wires`].
//!
//! Several jobs may share the links of one fabric. [`Conditions`] describe disturbances, and [`Spans`] record the steps of a run.

mod conditions;
mod routes;
pub mod share;
mod spans;
mod steady;
mod timeline;
mod volumes;
pub mod wires;

use weftlink_fabric::{LinkKind, Paths};
use weftlink_plan::Partial;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::Protocol;

#[cfg(test)]
mod tests;

pub(crate) use conditions::is_net_switch;
pub use conditions::{Conditions, Disturbance};
pub use spans::{Span, Spans};
use timeline::Timeline;
pub use volumes::Volumes;
use wires::{Resource, Unreachable, Wire};

/// The costs of a library on its hardware.
pub trait CostModel {
    /// Time from the call to the first step, on every rank.
    fn launch(&self) -> Picoseconds;
    /// Time from the end of a transfer until the receiver sees it. Without a protocol, the transfer is a counter.
    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, sent: Sent) -> Picoseconds;
    /// Maximum rate of a lane's transfers, in bytes per second, independent of the links.
    fn lane(&self, wire: &Wire, protocol: Option<Protocol>) -> f64;
    /// Bytes on the wire for `bytes` of data.
    fn on_the_wire(&self, wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64;
    /// Achievable rate of a link, in bytes per second.
    fn capacity(&self, link: LinkLine) -> f64;
    /// Fraction of a link's capacity that in-switch reductions and multicasts get.
    fn multicast(&self) -> f64;
    /// Bytes per second of a copy within a rank's memory.
    fn copy(&self) -> f64;
}

/// A link as a cost model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkLine {
    /// The kind of link.
    pub kind: LinkKind,
    /// Whether it connects two network switches.
    pub is_between_switches: bool,
    /// Line rate of all its wires.
    pub bytes_per_second: f64,
}

/// Nominal link rates and a constant hop latency, for questions about a plan rather than a library.
#[derive(Clone, Copy, Debug)]
pub struct Nominal {
    /// Time from the call to the first step.
    pub launch: Picoseconds,
    /// Hop latency.
    pub hop: Picoseconds,
}

impl CostModel for Nominal {
    fn launch(&self) -> Picoseconds {
        self.launch
    }
    fn hop(&self, _wire: &Wire, _protocol: Option<Protocol>, _sent: Sent) -> Picoseconds {
        self.hop
    }
    fn lane(&self, _wire: &Wire, _protocol: Option<Protocol>) -> f64 {
        f64::INFINITY
    }
    fn on_the_wire(&self, _wire: &Wire, _protocol: Option<Protocol>, bytes: f64) -> f64 {
        bytes
    }
    fn capacity(&self, link: LinkLine) -> f64 {
        link.bytes_per_second
    }
    fn multicast(&self) -> f64 {
        1.0
    }
    fn copy(&self) -> f64 {
        f64::INFINITY
    }
}

/// The transfer that a hop completes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// Bytes of data.
    pub bytes: f64,
    /// Duration of the transfer.
    pub time: Picoseconds,
}

/// The size of a call and its number of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Size of the call: the larger of a rank's input and output.
    pub bytes: u64,
    /// Number of tiles that are pipelined through the plan.
    pub tiles: u32,
}

/// A collective on some of a fabric's GPUs.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a Partial,
    /// The number of each rank's GPU in the fabric; `None` is all GPUs in order.
    pub gpus: Option<&'a [u32]>,
    /// Size and tiles of the call.
    pub load: Load,
    /// The data of each step, if blocks have different lengths.
    pub volumes: Option<&'a Volumes>,
    /// The cost model.
    pub costs: &'a dyn CostModel,
    /// Time of the call.
    pub start: Picoseconds,
}

/// How a plan was simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every rank was simulated, or every rank of few islands.
    Whole,
    /// One rank of each class was simulated; a disturbance of one rank affects its whole class.
    Classes,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time from the call until its last rank is done.
    pub time: Picoseconds,
    /// The links, with the bytes that this job moved over each.
    pub resources: Vec<Resource>,
    /// Number of steps of all simulated ranks; of few islands, scaled to all.
    pub steps: u64,
    /// How the plan was simulated.
    pub mode: Mode,
}

/// Why a plan cannot be simulated on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// No path connects two ranks.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The plan deadlocks. Verified plans do not.
    #[error("the plan deadlocks after {steps} steps; check it with `weft plan verify`")]
    Deadlock {
        /// Steps before the deadlock.
        steps: u64,
    },
    /// Invalid conditions.
    #[error("{0}")]
    Conditions(String),
    /// Jobs that do not fit the fabric or each other.
    #[error("{0}")]
    Jobs(String),
    /// The run has too many steps.
    #[error(
        "the run has {steps} steps; the limit is {STEPS_MAX}: use fewer ranks or tiles, or a plan with classes"
    )]
    TooLong {
        /// Number of steps.
        steps: u64,
    },
}

/// Maximum number of steps of a run: a few gigabytes of memory.
pub const STEPS_MAX: u64 = 1 << 27;

/// Runs a plan whose ranks are the fabric's GPUs in order. Of many tiles, it simulates only as many as a steady state needs.
pub fn run(
    plan: &Partial,
    paths: &Paths<'_>,
    load: Load,
    costs: &dyn CostModel,
) -> Result<Outcome, SimError> {
    run_with(plan, paths, load, costs, &Conditions::default())
}

/// The same under conditions. A plan run by classes applies a disturbance of one rank to its whole class.
pub fn run_with(
    plan: &Partial,
    paths: &Paths<'_>,
    load: Load,
    costs: &dyn CostModel,
    conditions: &Conditions,
) -> Result<Outcome, SimError> {
    let job = Job { plan, gpus: None, load, volumes: None, costs, start: Picoseconds(0) };
    run_job(job, paths, conditions)
}

/// The same for a job with all its properties.
pub fn run_job(job: Job<'_>, paths: &Paths<'_>, conditions: &Conditions) -> Result<Outcome, SimError> {
    if conditions.are_constant() {
        conditions.check(paths.fabric())?;
        if let Some(outcome) = on_rest(paths, conditions, |paths| steady::run(&job, paths, conditions))? {
            return Ok(outcome);
        }
    }
    let outcomes = run_jobs(&[job], paths, conditions)?;
    outcomes.into_iter().next().ok_or(SimError::Deadlock { steps: 0 })
}

/// Runs jobs concurrently, sharing the links max-min fairly, and returns the outcome of each. Plans run by classes must have the same
/// classes in all jobs and cover all GPUs in order; other plans must be whole.
pub fn run_jobs(
    jobs: &[Job<'_>],
    paths: &Paths<'_>,
    conditions: &Conditions,
) -> Result<Vec<Outcome>, SimError> {
    run_traced(jobs, paths, conditions, None)
}

/// The same, and records steps in `spans` up to its capacity.
pub fn run_traced(
    jobs: &[Job<'_>],
    paths: &Paths<'_>,
    conditions: &Conditions,
    spans: Option<&mut Spans>,
) -> Result<Vec<Outcome>, SimError> {
    conditions.check(paths.fabric())?;
    jobs_fit(jobs, paths.fabric().gpus().len(), conditions)?;
    on_rest(paths, conditions, |paths| Timeline::new(jobs, paths, conditions, spans, u32::MAX)?.run())
}

/// Runs on the links that are not missing.
fn on_rest<T>(
    paths: &Paths<'_>,
    conditions: &Conditions,
    run: impl FnOnce(&Paths<'_>) -> Result<T, SimError>,
) -> Result<T, SimError> {
    let missing = conditions.missing_links();
    if missing.is_empty() {
        return run(paths);
    }
    let fabric = paths.fabric().without(&missing);
    run(&Paths::of(&fabric))
}

/// Checks that every rank has a GPU, that classes are consistent, and that the run is not too long.
fn jobs_fit(jobs: &[Job<'_>], gpus: usize, conditions: &Conditions) -> Result<(), SimError> {
    let total = jobs.iter().map(|job| steps(job.plan, job.load)).fold(0, u64::saturating_add);
    if total > STEPS_MAX {
        return Err(SimError::TooLong { steps: total });
    }
    let by_classes = jobs.iter().any(|job| !job.plan.classes().are_trivial());
    for (number, job) in jobs.iter().enumerate() {
        let ranks = job.plan.well_formed().ranks as usize;
        let refuse = |why: String| Err(SimError::Jobs(format!("job {number} {why}")));
        if ranks > gpus {
            return refuse(format!("has {ranks} ranks, but the fabric has {gpus} GPUs: use a smaller plan"));
        }
        if let Some(of) = job.gpus {
            if of.len() != ranks {
                return refuse(format!("has {ranks} ranks but {} GPUs: give each rank one GPU", of.len()));
            }
            if let Some(gpu) = of.iter().find(|gpu| **gpu as usize >= gpus) {
                return refuse(format!("uses GPU {gpu}; the fabric has GPUs 0 to {}", gpus - 1));
            }
        }
        let in_order = job.gpus.is_none_or(|of| of.iter().copied().eq(0..gpus as u32));
        if by_classes && (ranks != gpus || !in_order || !same_classes(job.plan, jobs[0].plan)) {
            return refuse("has other rank classes than the fabric or the other jobs: use whole plans (`Recipe::partial(ranks)`)".to_owned());
        }
    }
    if by_classes && !conditions.missing_links().is_empty() {
        let why = "a missing link gives the ranks of a class different routes: use whole plans (`Recipe::partial(ranks)`)";
        return Err(SimError::Conditions(why.to_owned()));
    }
    Ok(())
}

fn same_classes(one: &Partial, other: &Partial) -> bool {
    let ranks = one.well_formed().ranks;
    ranks == other.well_formed().ranks
        && (0..ranks).all(|rank| one.classes().position(rank) == other.classes().position(rank))
}

/// Number of steps of a run of a plan.
fn steps(plan: &Partial, load: Load) -> u64 {
    let programs = &plan.well_formed().plan().programs;
    let lanes = plan.classes().representatives().iter().flat_map(|rank| &programs[*rank as usize].lanes);
    let steps = lanes.map(|lane| lane.length()).fold(0, u64::saturating_add);
    steps.saturating_mul(load.tiles.max(1).into())
}
