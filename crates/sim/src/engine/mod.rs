//! The engine: a plan's one interpreter, in virtual time.
//!
//! A lane takes its next step when what the step needs is there: messages, counters, free slots, each a hop after it left where it
//! came from. The step's data then flows over the links of its way, at a rate that is [shared](share) with every other transfer under
//! way, and the step is over when all of it has passed. Nothing else takes time but what [`Charges`] says.
//!
//! Run by [classes](weftlink_plan::classes), the ranks that stand for others are the only ones there are; see [`wires`].
//!
//! Several jobs share the links of one fabric. [`Conditions`] say what is not as it should be, and [`Spans`] keep what happened when.

mod conditions;
mod routes;
pub mod share;
mod spans;
mod steady;
mod timeline;
pub mod wires;

use rustc_hash::FxHashSet;
use weftlink_fabric::{LinkKind, Paths};
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::{Input, Output, Protocol};
use weftlink_plan::{Partial, Recipe};

#[cfg(test)]
mod tests;

pub use conditions::{Conditions, Disturbance};
pub use spans::{Span, Spans};
use timeline::Timeline;
use wires::{Apart, Resource, Wire};

/// What things take, as a library and its hardware have it.
pub trait Charges {
    /// Until the first step of a call can begin, on every rank.
    fn launch(&self) -> Picoseconds;
    /// From the end of a transfer until the other side sees it. Without a protocol: a counter that is waited for.
    fn hop(&self, wire: &Wire, protocol: Option<Protocol>, sent: Sent) -> Picoseconds;
    /// Bytes per second that a lane's transfers are limited to, whatever the links.
    fn lane(&self, wire: &Wire, protocol: Option<Protocol>) -> f64;
    /// Bytes on the wire for so many of data.
    fn on_the_wire(&self, wire: &Wire, protocol: Option<Protocol>, bytes: f64) -> f64;
    /// Bytes per second that transfers get of a link of so many.
    fn capacity(&self, kind: LinkKind, bytes_per_second: f64) -> f64;
    /// Which part of a link's capacity sums and multicasts of switches get.
    fn multicast(&self, kind: LinkKind) -> f64;
    /// Bytes per second of a copy within a rank's memory.
    fn copy(&self) -> f64;
}

/// Links as fast as the fabric says, whatever the protocol, and the same time for every hop: for those who ask about a plan and not about a
/// library.
#[derive(Clone, Copy, Debug)]
pub struct Nominal {
    /// Until the first step can begin.
    pub launch: Picoseconds,
    /// A hop.
    pub hop: Picoseconds,
}

impl Charges for Nominal {
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
    fn capacity(&self, _kind: LinkKind, bytes_per_second: f64) -> f64 {
        bytes_per_second
    }
    fn multicast(&self, _kind: LinkKind) -> f64 {
        1.0
    }
    fn copy(&self) -> f64 {
        f64::INFINITY
    }
}

/// What a hop brings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// Bytes of data.
    pub bytes: f64,
    /// What its transfer took.
    pub time: Picoseconds,
}

/// How much is moved, in how many parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of the call: of the larger of a rank's input and output.
    pub bytes: u64,
    /// Tiles that follow one another through the plan.
    pub tiles: u32,
}

/// A collective that some of a fabric's GPUs make.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// What they do.
    pub plan: &'a Partial,
    /// The number of each rank's GPU in the fabric; all GPUs in order if nothing.
    pub gpus: Option<&'a [u32]>,
    /// How much is moved.
    pub load: Load,
    /// What things take.
    pub charges: &'a dyn Charges,
    /// When the call is made.
    pub start: Picoseconds,
}

/// How a plan was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every rank took its steps.
    Whole,
    /// Some ranks stood for all; what one of a class suffered, all of it did.
    Classes,
    /// By classes, under conditions that not all of a class suffer, of a plan whose ranks meet so many others that this matters: whoever
    /// is late meets others on the links than it would. All its steps were too many to take.
    Roughly,
}

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From the call until its last rank is done.
    pub time: Picoseconds,
    /// What there was to pass, and what this job moved there.
    pub resources: Vec<Resource>,
    /// Steps taken.
    pub steps: u64,
    /// How it was run.
    pub mode: Mode,
}

/// A plan cannot be run on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Ranks that nothing joins.
    #[error(transparent)]
    Apart(#[from] Apart),
    /// It waits for ever. Plans that were proved do not.
    #[error("the plan waits for ever after {steps} steps; prove it with `weft plan verify`")]
    Stuck {
        /// Steps that it took.
        steps: u64,
    },
    /// Conditions that mean nothing there, and what to say instead.
    #[error("{0}")]
    Conditions(String),
    /// Jobs that do not fit the fabric or one another, and what to do.
    #[error("{0}")]
    Jobs(String),
    /// More steps than a run can take.
    #[error(
        "the run would take {steps} steps, and {STEPS_MAX} at most are simulated: fewer ranks or tiles, or a plan with classes"
    )]
    TooLong {
        /// Steps that it would take.
        steps: u64,
    },
}

/// Steps of a run: what fits into a few gigabytes.
pub const STEPS_MAX: u64 = 1 << 27;
/// Steps that are all taken where conditions make ranks of a class unlike one another: some seconds.
const WHOLE_STEPS_MAX: u64 = 1 << 22;
/// Ranks beyond its own island that a rank of rings and trees has to do with, on all its lanes.
const PEERS_MAX: usize = 64;

/// Runs a plan whose ranks are the fabric's GPUs in order. Of many tiles, as many are run as show what each further one takes.
pub fn run(
    plan: &Partial,
    paths: &Paths<'_>,
    load: Load,
    charges: &dyn Charges,
) -> Result<Outcome, SimError> {
    run_with(plan, paths, load, charges, &Conditions::default())
}

/// The same under conditions. Run by classes, all of a class suffers what one of it does.
pub fn run_with(
    plan: &Partial,
    paths: &Paths<'_>,
    load: Load,
    charges: &dyn Charges,
    conditions: &Conditions,
) -> Result<Outcome, SimError> {
    let job = Job { plan, gpus: None, load, charges, start: Picoseconds(0) };
    if conditions.are_none()
        && let Some(outcome) = steady::run(&job, paths)?
    {
        return Ok(outcome);
    }
    let outcomes = run_jobs(&[job], paths, conditions)?;
    outcomes.into_iter().next().ok_or(SimError::Stuck { steps: 0 })
}

/// Runs a recipe by classes that keep a rank's number within each `multiple`, or whole if conditions make ranks of a class unlike one another
/// and it does not take long. [`Outcome::mode`] tells.
pub fn run_recipe(
    recipe: &Recipe<'_>,
    multiple: u32,
    paths: &Paths<'_>,
    load: Load,
    charges: &dyn Charges,
    conditions: &Conditions,
) -> Result<Outcome, SimError> {
    let plan = recipe.partial(multiple);
    if conditions.are_none() || plan.classes().are_trivial() {
        return run_with(&plan, paths, load, charges, conditions);
    }
    let ranks = plan.well_formed().ranks;
    let alike = plan.classes().representatives().len().max(1) as u64;
    let steps = steps(&plan, load).saturating_mul(ranks.into()) / alike;
    let must_be_whole = !conditions.missing().is_empty();
    if steps <= if must_be_whole { STEPS_MAX } else { WHOLE_STEPS_MAX } {
        return run_with(&recipe.partial(ranks), paths, load, charges, conditions);
    }
    if must_be_whole {
        return Err(SimError::TooLong { steps });
    }
    let outcome = run_with(&plan, paths, load, charges, conditions)?;
    let mode = if meets_many(&plan, multiple) { Mode::Roughly } else { outcome.mode };
    Ok(Outcome { mode, ..outcome })
}

/// Whether the ranks of a plan have to do with many others beyond each `multiple`: more than rings and trees have.
fn meets_many(plan: &Partial, multiple: u32) -> bool {
    let Some(&rank) = plan.classes().representatives().first() else { return false };
    let lanes = &plan.well_formed().plan().programs[rank as usize].lanes;
    let mut peers = FxHashSet::default();
    for step in lanes.iter().flat_map(|lane| lane.steps()) {
        let from = step.inputs.iter().filter_map(|input| match input {
            Input::Received { from } => Some(from),
            Input::Peer(remote) => Some(&remote.rank),
            Input::Local(_) | Input::Switch(_) => None,
        });
        let to = step.outputs.iter().filter_map(|output| match output {
            Output::Sent { to } => Some(to),
            Output::Peer(remote) => Some(&remote.rank),
            Output::Local(_) | Output::Multicast(_) => None,
        });
        for peer in from.chain(to) {
            // One that depends on a loop goes around all of them.
            let goes_around = peer.by.iter().any(|by| *by != 0);
            let Some(peer) = peer.at(&[]).filter(|_| !goes_around) else { return true };
            if peer / multiple != rank / multiple {
                peers.insert(peer);
            }
        }
    }
    peers.len() > PEERS_MAX
}

/// Runs jobs side by side, which share the links max-min fairly, and tells what each of them saw. Plans are run by their classes if
/// all jobs have the same, over all GPUs in order; else they must be whole.
pub fn run_jobs(
    jobs: &[Job<'_>],
    paths: &Paths<'_>,
    conditions: &Conditions,
) -> Result<Vec<Outcome>, SimError> {
    run_watched(jobs, paths, conditions, None)
}

/// The same, and keeps steps as there is room for them.
pub fn run_watched(
    jobs: &[Job<'_>],
    paths: &Paths<'_>,
    conditions: &Conditions,
    spans: Option<&mut Spans>,
) -> Result<Vec<Outcome>, SimError> {
    conditions.check(paths.fabric())?;
    let missing = conditions.missing();
    jobs_fit(jobs, paths.fabric().gpus().len(), !missing.is_empty())?;
    if missing.is_empty() {
        return Timeline::new(jobs, paths, conditions, spans, u32::MAX)?.run();
    }
    let fabric = paths.fabric().without(&missing);
    Timeline::new(jobs, &Paths::of(&fabric), conditions, spans, u32::MAX)?.run()
}

/// Checks that every rank has a GPU, that classes stand for what they should, and that there is an end to it.
fn jobs_fit(jobs: &[Job<'_>], gpus: usize, links_are_missing: bool) -> Result<(), SimError> {
    let total = jobs.iter().map(|job| steps(job.plan, job.load)).fold(0, u64::saturating_add);
    if total > STEPS_MAX {
        return Err(SimError::TooLong { steps: total });
    }
    let by_classes = jobs.iter().any(|job| !job.plan.classes().are_trivial());
    for (number, job) in jobs.iter().enumerate() {
        let ranks = job.plan.well_formed().ranks as usize;
        let refuse = |why: String| Err(SimError::Jobs(format!("job {number} {why}")));
        if ranks > gpus {
            return refuse(format!("has {ranks} ranks and the fabric {gpus} GPUs: give it a plan for fewer"));
        }
        if let Some(of) = job.gpus {
            if of.len() != ranks {
                return refuse(format!("has {ranks} ranks on {} GPUs: give each rank one", of.len()));
            }
            if let Some(gpu) = of.iter().find(|gpu| **gpu as usize >= gpus) {
                return refuse(format!("has a rank on GPU {gpu}; the fabric's are 0 to {}", gpus - 1));
            }
        }
        let in_order = job.gpus.is_none_or(|of| of.iter().copied().eq(0..gpus as u32));
        if by_classes && (ranks != gpus || !in_order || !same_classes(job.plan, jobs[0].plan)) {
            let whole = "give whole plans, of all ranks (`Recipe::partial(ranks)`)";
            return refuse(format!(
                "has other ranks that stand for one another than the fabric or other jobs: {whole}"
            ));
        }
    }
    if by_classes && links_are_missing {
        let what =
            "a missing link leaves ranks of a class with different ways: give whole plans, of all ranks";
        return Err(SimError::Conditions(what.to_owned()));
    }
    Ok(())
}

fn same_classes(one: &Partial, other: &Partial) -> bool {
    let ranks = one.well_formed().ranks;
    ranks == other.well_formed().ranks
        && (0..ranks).all(|rank| one.classes().position(rank) == other.classes().position(rank))
}

/// Steps of a run of a plan.
fn steps(plan: &Partial, load: Load) -> u64 {
    let programs = &plan.well_formed().plan().programs;
    let lanes = plan.classes().representatives().iter().flat_map(|rank| &programs[*rank as usize].lanes);
    let steps = lanes.map(|lane| lane.length()).fold(0, u64::saturating_add);
    steps.saturating_mul(load.tiles.max(1).into())
}
