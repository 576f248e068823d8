//! The event loop in virtual time: begins steps, moves their data, ends them.

mod transfers;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use weftlink_fabric::Paths;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::interpret::{Access, Blocked, Domain, Edge, Machine, Shape, Taken};
use weftlink_plan::plan::{Aliasing, Wait};
use weftlink_plan::{Cell, Partial, Spot};

use super::conditions::{Conditions, Disturbance, Disturbed};
use super::share::{FlowId, Shares};
use super::spans::{Span, Spans};
use super::wires::{JobWires, Resource, Wires};
use super::{Job, Mode, Outcome, Sent, SimError, Volumes};

type Time = u64;
/// A step, numbered in the order in which steps begin. The first ones represent the calls of the jobs.
type StepId = u32;

/// End time of a step whose transfers are in progress.
const IN_PROGRESS: Time = Time::MAX;
/// Maximum number of link changes in a run.
const FLAPS_MAX: u32 = 1 << 22;

pub(super) struct Timeline<'r> {
    jobs: Vec<Running<'r>>,
    shares: Shares,
    wires: Wires<'r>,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Number of events scheduled so far: events at the same time happen in this order.
    sequence: u64,
    /// Start and end of each step.
    times: Vec<(Time, Time)>,
    /// For each step, the last lane that waits for its end; a linked list through `next_waiter`.
    waiters: Vec<u32>,
    /// Lanes that wait for a signal, by the signalling rank's job and class.
    blocked: Vec<Vec<u32>>,
    lanes: Vec<LaneState>,
    flows: Vec<FlowState>,
    flows_active: usize,
    /// Lanes to check before time advances.
    unchecked: Vec<u32>,
    /// Number of jobs, and of steps that represent their calls.
    jobs_count: StepId,
    /// Delays by lane and step.
    delays: FxHashMap<(u32, u64), Time>,
    /// When each tile was done, of a run with a single job.
    tiles: Tiles,
    spans: Option<&'r mut Spans>,
    /// Spans of steps in progress, by lane.
    open_spans: FxHashMap<u32, Span>,
}

/// A running job.
struct Running<'r> {
    machine: Machine<'r, StepDomain>,
    plan: &'r Partial,
    job_wires: JobWires<'r>,
    chunk_bytes: f64,
    volumes: Option<&'r Volumes>,
    /// Its first lane and its first class among those of all jobs.
    first_lane: u32,
    first_class: usize,
    start: Time,
    /// End of its last step so far.
    last: Time,
    steps: u64,
    /// Bytes moved, by resource.
    moved: Vec<f64>,
}

impl Running<'_> {
    /// Bytes that a step of a lane moves over each of its wires.
    fn step_bytes(&self, lane: usize, step: u64) -> f64 {
        self.chunk_bytes * self.volumes.map_or(1.0, |volumes| volumes.of(lane, step))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A lane begins its next step.
    Begin(u32),
    /// A transfer ends, unless its rate has changed since (the version differs).
    FlowDone(FlowId, u32),
    /// A step without transfers ends.
    StepDone(u32),
}

#[derive(Clone, Copy, Default)]
struct LaneState {
    job: u32,
    step: StepId,
    /// Active transfers of its step.
    transfers: u32,
    is_queued: bool,
    /// Number of steps it has begun.
    begun: u64,
    /// Bytes of its step.
    bytes: f64,
    /// The next lane that waits for the same step.
    next_waiter: u32,
    /// Number of its next step's dependencies known to be met.
    dependencies_met: u32,
    /// Earliest start of its next step by those dependencies.
    begins: Time,
}

/// The ends of a job's tiles.
#[derive(Default)]
struct Tiles {
    /// Number of steps that each lane takes for a tile.
    steps: Vec<u64>,
    /// For each tile, when the last lane so far was done with it.
    done: Vec<Time>,
}

impl Tiles {
    /// A lane has ended a number of steps.
    fn ended(&mut self, lane: u32, steps: u64, now: Time) {
        let Some(&each) = self.steps.get(lane as usize) else { return };
        if steps.is_multiple_of(each)
            && let Some(last) = self.done.get_mut((steps / each) as usize - 1)
        {
            *last = now;
        }
    }
}

/// No lane.
const NO_LANE: u32 = u32::MAX;

#[derive(Clone, Copy, Default)]
struct FlowState {
    lane: u32,
    left: f64,
    rate: f64,
    since: Time,
    version: u32,
}

/// The interpreter's domain: values carry the step that produced them.
struct StepDomain {
    lanes: Vec<StepId>,
}

impl<'r> Timeline<'r> {
    pub(super) fn new(
        jobs: &'r [Job<'r>],
        paths: &'r Paths<'r>,
        conditions: &Conditions,
        spans: Option<&'r mut Spans>,
        tiles_max: u32,
    ) -> Result<Self, SimError> {
        let by_classes = jobs.iter().any(|job| !job.plan.classes().are_trivial());
        let mut timeline = Self {
            jobs: Vec::new(),
            shares: Shares::default(),
            wires: Wires::new(paths, by_classes, Disturbed::new(conditions)),
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            times: Vec::new(),
            waiters: Vec::new(),
            blocked: Vec::new(),
            lanes: Vec::new(),
            flows: Vec::new(),
            flows_active: 0,
            unchecked: Vec::new(),
            jobs_count: jobs.len() as StepId,
            delays: FxHashMap::default(),
            tiles: Tiles::default(),
            spans,
            open_spans: FxHashMap::default(),
        };
        jobs.iter().for_each(|job| timeline.add_job(job, tiles_max));
        conditions.disturbances.iter().try_for_each(|disturbance| timeline.delay(disturbance))?;
        Ok(timeline)
    }

    /// Adds a job, limited to `tiles_max` tiles.
    fn add_job(&mut self, job: &'r Job<'r>, tiles_max: u32) {
        let (classes, checked) = (job.plan.classes(), job.plan.well_formed());
        let tiles = job.load.tiles.max(1);
        let shape = Shape { calls: 1, tiles: tiles.min(tiles_max), aliasing: Aliasing::OutOfPlace };
        let representatives = classes.representatives();
        let lanes: usize =
            representatives.iter().map(|rank| checked.programs[*rank as usize].lanes.len()).sum();
        let number = self.jobs.len() as u32;
        let domain = StepDomain { lanes: vec![number; lanes] };
        let chunks = checked.chunks.input.max(checked.chunks.output).max(1);
        let begins = job.start.0.saturating_add(job.costs.launch().0);
        let first_lane = self.lanes.len() as u32;
        self.jobs.push(Running {
            machine: Machine::by_classes(checked, shape, domain, classes.clone()),
            plan: job.plan,
            job_wires: JobWires::new(job.costs, classes, checked.ranks, job.gpus),
            chunk_bytes: job.load.bytes as f64 / (f64::from(chunks) * f64::from(tiles)),
            volumes: job.volumes,
            first_lane,
            first_class: self.blocked.len(),
            start: job.start.0,
            last: begins,
            steps: 0,
            moved: Vec::new(),
        });
        self.times.push((begins, begins));
        self.waiters.push(NO_LANE);
        self.blocked.resize(self.blocked.len() + representatives.len(), Vec::new());
        let state = LaneState { job: number, is_queued: true, ..LaneState::default() };
        self.lanes.resize(self.lanes.len() + lanes, state);
        let new = first_lane..self.lanes.len() as u32;
        self.unchecked.splice(0..0, new.rev());
    }

    /// Registers a delayed step.
    fn delay(&mut self, disturbance: &Disturbance) -> Result<(), SimError> {
        let Disturbance::Delayed { job, rank, lane, step, by } = *disturbance else { return Ok(()) };
        let none = |what: String| Err(SimError::Conditions(format!("cannot delay a step: {what}")));
        let Some(running) = self.jobs.get(job) else {
            return none(format!("no job {job}; there are {}, counted from 0", self.jobs.len()));
        };
        let plan = running.plan.well_formed();
        if rank >= plan.ranks {
            return none(format!("no rank {rank}; there are {}, counted from 0", plan.ranks));
        }
        let classes = running.plan.classes();
        let first = classes.representatives()[classes.position(rank)];
        let Some(position) = running.machine.lane_of(first, lane) else {
            return none(format!("rank {rank} has no lane {lane}"));
        };
        let tiles = u64::from(running.machine.shape().tiles);
        let steps = plan.programs[first as usize].lanes[lane as usize].length() * tiles;
        if step >= steps {
            return none(format!("lane {lane} of rank {rank} has {steps} steps, no step {step}"));
        }
        *self.delays.entry((running.first_lane + position as u32, step)).or_default() += by.0;
        Ok(())
    }

    pub(super) fn run(mut self) -> Result<Vec<Outcome>, SimError> {
        self.run_all()?;
        self.outcomes()
    }

    /// Runs the only job, and returns the end of each tile, too.
    pub(super) fn run_by_tiles(mut self) -> Result<(Outcome, Vec<Picoseconds>), SimError> {
        let job = &self.jobs[0];
        let (checked, tiles) = (job.plan.well_formed(), job.machine.shape().tiles);
        let lanes = job.plan.classes().representatives().iter();
        let lanes = lanes.flat_map(|rank| &checked.plan().programs[*rank as usize].lanes);
        self.tiles.steps = lanes.map(|lane| lane.length().max(1)).collect();
        self.tiles.done = vec![0; tiles as usize];
        self.run_all()?;
        let ends = self.tiles.done.iter().map(|last| Picoseconds(*last)).collect();
        let outcome = self.outcomes()?.into_iter().next().ok_or(SimError::Deadlock { steps: 0 })?;
        Ok((outcome, ends))
    }

    fn run_all(&mut self) -> Result<(), SimError> {
        let mut flaps = 0;
        self.wires.apply_flaps(0, &mut self.shares);
        self.check_lanes();
        while let Some(time) = self.next_time() {
            self.now = time;
            if self.wires.apply_flaps(time, &mut self.shares) {
                flaps += 1;
                if flaps > FLAPS_MAX {
                    return Err(SimError::Conditions(format!(
                        "links flap more than {FLAPS_MAX} times during the run: use a longer period"
                    )));
                }
            }
            // Handle all events of this time before updating the rates.
            while let Some(&Reverse((next, _, event))) = self.events.peek()
                && next == time
            {
                self.events.pop();
                self.handle(event)?;
                self.check_lanes();
            }
            self.update_rates();
        }
        Ok(())
    }

    /// The time of the next event, or of the next link change while transfers are active.
    fn next_time(&self) -> Option<Time> {
        let event = self.events.peek().map(|Reverse((time, ..))| *time);
        let flap = self.wires.next_flap_after(self.now).filter(|_| self.flows_active > 0);
        match (event, flap) {
            (Some(event), Some(flap)) => Some(event.min(flap)),
            (one, other) => one.or(other),
        }
    }

    fn outcomes(self) -> Result<Vec<Outcome>, SimError> {
        let steps = (self.times.len() - self.jobs.len()) as u64;
        let blocked = self.jobs.iter().any(|job| !job.machine.blocked().is_empty());
        if blocked || self.flows_active > 0 {
            return Err(SimError::Deadlock { steps });
        }
        let resources = self.wires.resources;
        let outcome = |job: Running<'_>| Outcome {
            time: Picoseconds(job.last - job.start),
            resources: moved(&resources, &job.moved),
            steps: job.steps,
            mode: if job.plan.classes().are_trivial() { Mode::Whole } else { Mode::Classes },
        };
        Ok(self.jobs.into_iter().map(outcome).collect())
    }

    fn schedule(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn handle(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::Begin(lane) => self.begin(lane)?,
            Event::StepDone(lane) => self.finish_step(lane),
            Event::FlowDone(flow, version) => {
                let state = self.flows[flow as usize];
                if state.version == version {
                    self.flows[flow as usize].version += 1;
                    self.flows_active -= 1;
                    self.shares.end(flow);
                    let lane = &mut self.lanes[state.lane as usize];
                    lane.transfers -= 1;
                    if lane.transfers == 0 {
                        self.finish_step(state.lane);
                    }
                }
            }
        }
        Ok(())
    }

    fn check_lanes(&mut self) {
        while let Some(lane) = self.unchecked.pop() {
            self.lanes[lane as usize].is_queued = false;
            self.check_lane(lane);
        }
    }

    fn queue_check(&mut self, lane: u32) {
        if !std::mem::replace(&mut self.lanes[lane as usize].is_queued, true) {
            self.unchecked.push(lane);
        }
    }

    /// Schedules a lane's next step, or registers the lane with whatever it waits for.
    fn check_lane(&mut self, lane: u32) {
        let state = self.lanes[lane as usize];
        let job = &mut self.jobs[state.job as usize];
        let local = (lane - job.first_lane) as usize;
        match job.machine.ready(local) {
            Err(Blocked::Finished) => return,
            Err(Blocked::Waits(Wait::Entered { rank } | Wait::Reached { rank, .. })) => {
                let at = job.first_class + job.plan.classes().position(rank);
                return self.blocked[at].push(lane);
            }
            Err(Blocked::Empty { .. } | Blocked::Full { .. }) => {
                job.machine.wait_for_fifo(local);
                return;
            }
            Ok(()) => {}
        }
        let bytes = job.step_bytes(local, state.begun);
        let Running { machine, plan, job_wires, .. } = job;
        let (rank, channel) = machine.rank_and_channel(local);
        let jobs = self.jobs_count;
        let (times, wires, shares) = (&self.times, &mut self.wires, &mut self.shares);
        let (mut awaited, mut begins) = (None, state.begins);
        // Skips the dependencies that are known to be met.
        let dependencies_met = machine.edges(local, state.dependencies_met as usize, |edge, of, step| {
            let (began, ended) = times[*step as usize];
            if ended == IN_PROGRESS {
                awaited = Some(*step);
                return false;
            }
            // Ranks enter a call at once, and freed slots are visible without a hop: others are still being filled.
            let is_there = *step < jobs || of == rank || edge == Edge::Credit;
            let hop = if is_there {
                0
            } else {
                let received = edge == Edge::Message;
                let protocol = received.then(|| plan.well_formed().channels[channel as usize].protocol);
                let sent = Sent { bytes, time: Picoseconds(ended - began) };
                let wire = wires.wire(job_wires, of, rank, shares);
                wire.map_or(0, |wire| job_wires.costs.hop(&wire, protocol, sent).0)
            };
            begins = begins.max(ended + hop);
            true
        });
        let lane_state = &mut self.lanes[lane as usize];
        (lane_state.dependencies_met, lane_state.begins) = (dependencies_met as u32, begins);
        if let Some(step) = awaited {
            lane_state.next_waiter = std::mem::replace(&mut self.waiters[step as usize], lane);
            return;
        }
        let mut begin = self.now.max(self.times[state.job as usize].1).max(begins);
        if !self.delays.is_empty() {
            begin += self.delays.get(&(lane, state.begun)).copied().unwrap_or(0);
        }
        self.schedule(begin, Event::Begin(lane));
    }

    /// Begins a lane's next step.
    fn begin(&mut self, lane: u32) -> Result<(), SimError> {
        let id = self.times.len() as StepId;
        self.times.push((self.now, IN_PROGRESS));
        self.waiters.push(NO_LANE);
        let number = self.lanes[lane as usize].job as usize;
        let job = &mut self.jobs[number];
        job.steps += 1;
        let local = (lane - job.first_lane) as usize;
        job.machine.domain().lanes[local] = id;
        let (rank, channel) = job.machine.rank_and_channel(local);
        let Ok(Taken { event, step, .. }) = job.machine.take(local) else {
            return Err(SimError::Deadlock { steps: u64::from(id) });
        };
        let (bytes, first_lane) = (job.step_bytes(local, self.lanes[lane as usize].begun), job.first_lane);
        let class = job.first_class + job.plan.classes().position(rank);
        while let Some(woken) = self.jobs[number].machine.woken() {
            self.queue_check(first_lane + woken);
        }
        if !step.signals.is_empty() {
            let mut woken = std::mem::take(&mut self.blocked[class]);
            woken.iter().rev().for_each(|lane| self.queue_check(*lane));
            woken.clear();
            self.blocked[class] = woken;
        }
        let state = &mut self.lanes[lane as usize];
        (state.step, state.transfers, state.dependencies_met, state.begins) = (id, 0, 0, 0);
        state.begun += 1;
        state.bytes = bytes;
        if let Some(spans) = &mut self.spans
            && spans.reserve(self.open_spans.len())
        {
            let span = Span::of(&step, Picoseconds(self.now), bytes);
            let (lane_number, step) = (event.lane, state.begun - 1);
            let span = Span { job: number, rank, lane: lane_number, channel, step, ..span };
            self.open_spans.insert(lane, span);
        }
        let copied = self.start_transfers(lane, rank, channel, &step)?;
        if self.lanes[lane as usize].transfers == 0 {
            self.schedule(self.now + copied, Event::StepDone(lane));
        }
        Ok(())
    }

    /// Ends a step, and queues its lane and the lanes that wait for it.
    fn finish_step(&mut self, lane: u32) {
        let state = self.lanes[lane as usize];
        self.times[state.step as usize].1 = self.now;
        self.tiles.ended(lane, state.begun, self.now);
        self.jobs[state.job as usize].last = self.now;
        if let Some(spans) = &mut self.spans
            && let Some(span) = self.open_spans.remove(&lane)
        {
            spans.list.push(Span { ended: Picoseconds(self.now), ..span });
        }
        self.queue_check(lane);
        let mut next = std::mem::replace(&mut self.waiters[state.step as usize], NO_LANE);
        while next != NO_LANE {
            self.queue_check(next);
            next = self.lanes[next as usize].next_waiter;
        }
    }
}

/// The links with the bytes that one job moved over each. Resources without links only throttle a GPU.
fn moved(resources: &[Resource], moved: &[f64]) -> Vec<Resource> {
    let with = |(number, resource): (usize, &Resource)| Resource {
        moved: moved.get(number).copied().unwrap_or(0.0),
        ..resource.clone()
    };
    resources.iter().enumerate().filter(|(_, resource)| resource.count > 0).map(with).collect()
}

impl Domain for StepDomain {
    type Value = ();
    type Stamp = StepId;
    const KEEPS_VALUES: bool = false;
    const JOINS_STAMPS: bool = false;

    fn initial(&mut self, _call: u32, _cell: Cell) {}
    fn reduce(&mut self, _spot: &Spot, _inputs: &[()]) {}
    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&()>) {}
    fn stamp(&mut self, lane: usize) -> StepId {
        self.lanes[lane]
    }
    fn join(&mut self, _lane: usize, _stamp: &StepId) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &()) {}
}
