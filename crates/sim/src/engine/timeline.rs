//! Virtual time: jobs' steps as they begin, move their data and are over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use weftlink_fabric::Paths;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::interpret::{Access, Blocked, Domain, Edge, Machine, Shape, Taken};
use weftlink_plan::plan::{Aliasing, Input, Output, Protocol, Step, Wait};
use weftlink_plan::{Cell, Partial, Spot};

use super::conditions::{Conditions, Disturbance, Disturbed};
use super::share::{FlowId, Shares};
use super::spans::{Span, Spans};
use super::wires::{Resource, Side, Wire, Wires};
use super::{Job, Mode, Outcome, Sent, SimError};

type Time = u64;
/// A step that was taken, by the order in which steps began. The first stand for the calls of the jobs.
type StepId = u32;

/// A step of which transfers are under way.
const UNDER_WAY: Time = Time::MAX;
/// How often links may fall and rise in a run.
const FLAPS_MAX: u32 = 1 << 22;

pub(super) struct Timeline<'r> {
    jobs: Vec<Running<'r>>,
    shares: Shares,
    wires: Wires<'r>,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Events so far: what happens at the same time happens in the order it was found out.
    count: u64,
    /// When each step began, and when it was over.
    times: Vec<(Time, Time)>,
    /// By step, the last lane that began to wait for its end; each lane knows the one before.
    waiting: Vec<u32>,
    /// Lanes that wait for a rank to signal something, by its job and class.
    blocked: Vec<Vec<u32>>,
    lanes: Vec<LaneState>,
    flows: Vec<FlowState>,
    flows_under_way: usize,
    /// Lanes to look at before time goes on.
    looks: Vec<u32>,
    /// How many jobs there are: as many steps stand for their calls.
    jobs_count: StepId,
    /// By lane and step, how much later it begins.
    delays: FxHashMap<(u32, u64), Time>,
    spans: Option<&'r mut Spans>,
    /// Steps under way by lane, of those whose spans are wanted.
    begun: FxHashMap<u32, Span>,
}

/// A job somewhere in its run.
struct Running<'r> {
    machine: Machine<'r, Began>,
    plan: &'r Partial,
    side: Side<'r>,
    chunk_bytes: f64,
    /// Its first lane and its first class among those of all jobs.
    first_lane: u32,
    first_class: usize,
    start: Time,
    /// When its last step so far was over.
    last: Time,
    steps: u64,
    /// By resource, bytes that passed.
    moved: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A lane begins its next step.
    Begin(u32),
    /// A transfer is through, if its rate has not changed since.
    Through(FlowId, u32),
    /// A step without transfers is over.
    Over(u32),
}

#[derive(Clone, Copy, Default)]
struct LaneState {
    job: u32,
    step: StepId,
    /// Transfers of its step that are under way.
    transfers: u32,
    is_looked_at: bool,
    /// Steps it has begun.
    begun: u64,
    /// The lane that began before this one to wait for the same step.
    waits_after: u32,
    /// How much of what its next step needs is known to be there, and from when on.
    learnt: u32,
    begins: Time,
}

/// No lane.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Default)]
struct FlowState {
    lane: u32,
    left: f64,
    rate: f64,
    since: Time,
    version: u32,
}

/// The interpreter's domain: which step of a lane something comes from.
struct Began {
    lanes: Vec<StepId>,
}

impl<'r> Timeline<'r> {
    pub(super) fn new(
        jobs: &'r [Job<'r>],
        paths: &'r Paths<'r>,
        conditions: &Conditions,
        spans: Option<&'r mut Spans>,
        tiles_most: u32,
    ) -> Result<Self, SimError> {
        let by_classes = jobs.iter().any(|job| !job.plan.classes().are_trivial());
        let mut line = Self {
            jobs: Vec::new(),
            shares: Shares::default(),
            wires: Wires::new(paths, by_classes, Disturbed::by(conditions)),
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            times: Vec::new(),
            waiting: Vec::new(),
            blocked: Vec::new(),
            lanes: Vec::new(),
            flows: Vec::new(),
            flows_under_way: 0,
            looks: Vec::new(),
            jobs_count: jobs.len() as StepId,
            delays: FxHashMap::default(),
            spans,
            begun: FxHashMap::default(),
        };
        jobs.iter().for_each(|job| line.enter(job, tiles_most));
        conditions.disturbances.iter().try_for_each(|disturbance| line.delay(disturbance))?;
        Ok(line)
    }

    /// A job's ranks make their call, of so many of its tiles at most.
    fn enter(&mut self, job: &'r Job<'r>, tiles_most: u32) {
        let (classes, checked) = (job.plan.classes(), job.plan.well_formed());
        let tiles = job.load.tiles.max(1);
        let shape = Shape { calls: 1, tiles: tiles.min(tiles_most), aliasing: Aliasing::OutOfPlace };
        let representatives = classes.representatives();
        let lanes: usize =
            representatives.iter().map(|rank| checked.programs[*rank as usize].lanes.len()).sum();
        let number = self.jobs.len() as u32;
        let domain = Began { lanes: vec![number; lanes] };
        let chunks = checked.chunks.input.max(checked.chunks.output).max(1);
        let begins = job.start.0.saturating_add(job.charges.launch().0);
        let first_lane = self.lanes.len() as u32;
        self.jobs.push(Running {
            machine: Machine::by_classes(checked, shape, domain, classes.clone()),
            plan: job.plan,
            side: Side::new(job.charges, classes, checked.ranks, job.gpus),
            chunk_bytes: job.load.bytes as f64 / (f64::from(chunks) * f64::from(tiles)),
            first_lane,
            first_class: self.blocked.len(),
            start: job.start.0,
            last: begins,
            steps: 0,
            moved: Vec::new(),
        });
        self.times.push((begins, begins));
        self.waiting.push(NOBODY);
        self.blocked.resize(self.blocked.len() + representatives.len(), Vec::new());
        let state = LaneState { job: number, is_looked_at: true, ..LaneState::default() };
        self.lanes.resize(self.lanes.len() + lanes, state);
        let new = first_lane..self.lanes.len() as u32;
        self.looks.splice(0..0, new.rev());
    }

    /// Notes a step that is to begin later.
    fn delay(&mut self, disturbance: &Disturbance) -> Result<(), SimError> {
        let Disturbance::Delayed { job, rank, lane, step, by } = *disturbance else { return Ok(()) };
        let none = |what: String| Err(SimError::Conditions(format!("{what}, so it cannot be delayed")));
        let Some(running) = self.jobs.get(job) else {
            return none(format!("there is no job {job} of {}, counted from 0", self.jobs.len()));
        };
        let plan = running.plan.well_formed();
        if rank >= plan.ranks {
            return none(format!("there is no rank {rank} of {}, counted from 0", plan.ranks));
        }
        let classes = running.plan.classes();
        let first = classes.representatives()[classes.position(rank)];
        let Some(position) = running.machine.lane_of(first, lane) else {
            return none(format!("rank {rank} has no lane {lane}"));
        };
        let tiles = u64::from(running.machine.shape().tiles);
        let steps = plan.programs[first as usize].lanes[lane as usize].length() * tiles;
        if step >= steps {
            return none(format!("lane {lane} of rank {rank} has {steps} steps and no step {step}"));
        }
        *self.delays.entry((running.first_lane + position as u32, step)).or_default() += by.0;
        Ok(())
    }

    pub(super) fn run(mut self) -> Result<Vec<Outcome>, SimError> {
        let mut flaps = 0;
        self.wires.flap(0, &mut self.shares);
        self.look_at_lanes();
        while let Some(time) = self.next_moment() {
            self.now = time;
            if self.wires.flap(time, &mut self.shares) {
                flaps += 1;
                if flaps > FLAPS_MAX {
                    return Err(SimError::Conditions(format!(
                        "links flap more than {FLAPS_MAX} times during the run: give them a longer period"
                    )));
                }
            }
            // Everything of one moment comes before shares are found anew.
            while let Some(&Reverse((next, _, event))) = self.events.peek()
                && next == time
            {
                self.events.pop();
                self.handle(event)?;
                self.look_at_lanes();
            }
            self.settle();
        }
        self.outcomes()
    }

    /// When something next happens: an event, or a change of a link while transfers are under way.
    fn next_moment(&self) -> Option<Time> {
        let event = self.events.peek().map(|Reverse((time, ..))| *time);
        let flap = self.wires.flaps_after(self.now).filter(|_| self.flows_under_way > 0);
        match (event, flap) {
            (Some(event), Some(flap)) => Some(event.min(flap)),
            (one, other) => one.or(other),
        }
    }

    fn outcomes(self) -> Result<Vec<Outcome>, SimError> {
        let steps = (self.times.len() - self.jobs.len()) as u64;
        let blocked = self.jobs.iter().any(|job| !job.machine.blocked().is_empty());
        if blocked || self.flows_under_way > 0 {
            return Err(SimError::Stuck { steps });
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

    fn at(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn handle(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::Begin(lane) => self.begin(lane)?,
            Event::Over(lane) => self.over(lane),
            Event::Through(flow, version) => {
                let state = self.flows[flow as usize];
                if state.version == version {
                    self.flows[flow as usize].version += 1;
                    self.flows_under_way -= 1;
                    self.shares.end(flow);
                    let lane = &mut self.lanes[state.lane as usize];
                    lane.transfers -= 1;
                    if lane.transfers == 0 {
                        self.over(state.lane);
                    }
                }
            }
        }
        Ok(())
    }

    fn look_at_lanes(&mut self) {
        while let Some(lane) = self.looks.pop() {
            self.lanes[lane as usize].is_looked_at = false;
            self.look_at(lane);
        }
    }

    fn look_later(&mut self, lane: u32) {
        if !std::mem::replace(&mut self.lanes[lane as usize].is_looked_at, true) {
            self.looks.push(lane);
        }
    }

    /// Finds out when a lane can begin its next step, or what it has to be looked at again for.
    fn look_at(&mut self, lane: u32) {
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
        let Running { machine, plan, side, chunk_bytes, .. } = job;
        let (rank, channel) = machine.rank_and_channel(local);
        let jobs = self.jobs_count;
        let (times, wires, shares) = (&self.times, &mut self.wires, &mut self.shares);
        let (mut awaited, mut begins) = (None, state.begins);
        // What was learnt before need not be learnt again.
        let learnt = machine.edges(local, state.learnt as usize, |edge, of, step| {
            let (began, ended) = times[*step as usize];
            if ended == UNDER_WAY {
                awaited = Some(*step);
                return false;
            }
            // All enter a call at once, and a slot is given back while others are being filled.
            let is_there = *step < jobs || of == rank || edge == Edge::Credit;
            let hop = if is_there {
                0
            } else {
                let received = edge == Edge::Message;
                let protocol = received.then(|| plan.well_formed().channels[channel as usize].protocol);
                let sent = Sent { bytes: *chunk_bytes, time: Picoseconds(ended - began) };
                let wire = wires.wire(side, of, rank, shares);
                wire.map_or(0, |wire| side.charges.hop(&wire, protocol, sent).0)
            };
            begins = begins.max(ended + hop);
            true
        });
        let lane_state = &mut self.lanes[lane as usize];
        (lane_state.learnt, lane_state.begins) = (learnt as u32, begins);
        if let Some(step) = awaited {
            lane_state.waits_after = std::mem::replace(&mut self.waiting[step as usize], lane);
            return;
        }
        let mut begin = self.now.max(self.times[state.job as usize].1).max(begins);
        if !self.delays.is_empty() {
            begin += self.delays.get(&(lane, state.begun)).copied().unwrap_or(0);
        }
        self.at(begin, Event::Begin(lane));
    }

    /// A lane takes its next step.
    fn begin(&mut self, lane: u32) -> Result<(), SimError> {
        let id = self.times.len() as StepId;
        self.times.push((self.now, UNDER_WAY));
        self.waiting.push(NOBODY);
        let number = self.lanes[lane as usize].job as usize;
        let job = &mut self.jobs[number];
        job.steps += 1;
        let local = (lane - job.first_lane) as usize;
        job.machine.domain().lanes[local] = id;
        let (rank, channel) = job.machine.rank_and_channel(local);
        let Ok(Taken { event, step, .. }) = job.machine.take(local) else {
            return Err(SimError::Stuck { steps: u64::from(id) });
        };
        let (bytes, first_lane) = (job.chunk_bytes, job.first_lane);
        let class = job.first_class + job.plan.classes().position(rank);
        while let Some(woken) = self.jobs[number].machine.woken() {
            self.look_later(first_lane + woken);
        }
        if !step.signals.is_empty() {
            let mut woken = std::mem::take(&mut self.blocked[class]);
            woken.iter().rev().for_each(|lane| self.look_later(*lane));
            woken.clear();
            self.blocked[class] = woken;
        }
        let state = &mut self.lanes[lane as usize];
        (state.step, state.transfers, state.learnt, state.begins) = (id, 0, 0, 0);
        state.begun += 1;
        if let Some(spans) = &mut self.spans
            && spans.wants_more(self.begun.len())
        {
            let span = Span::of(&step, Picoseconds(self.now), bytes);
            let (lane_number, step) = (event.lane, state.begun - 1);
            let span = Span { job: number, rank, lane: lane_number, channel, step, ..span };
            self.begun.insert(lane, span);
        }
        let copied = self.transfers(lane, rank, channel, &step)?;
        if self.lanes[lane as usize].transfers == 0 {
            self.at(self.now + copied, Event::Over(lane));
        }
        Ok(())
    }

    /// Puts what a step moves on its way, and tells how long it takes if that is a copy within the rank.
    fn transfers(&mut self, lane: u32, rank: u32, channel: u32, step: &Step<u32>) -> Result<Time, SimError> {
        let number = self.lanes[lane as usize].job as usize;
        let checked = self.jobs[number].plan.well_formed();
        let protocol = checked.channels.get(channel as usize).map(|channel| channel.protocol);
        let throttle = self.throttle(number, rank);
        let (mut copies, mut moves) = (false, false);
        for input in &step.inputs {
            let side = &mut self.jobs[number].side;
            let wire = match *input {
                Input::Peer(remote) if remote.rank != rank => {
                    self.wires.wire(side, remote.rank, rank, &mut self.shares)?
                }
                Input::Switch(all) => {
                    let group = &checked.groups[all.group as usize];
                    self.wires.grouped(side, rank, group, all.group, true, &mut self.shares)?
                }
                Input::Received { .. } => {
                    moves = true;
                    continue;
                }
                Input::Local(_) | Input::Peer(_) => continue,
            };
            self.transfer(lane, &wire, None, throttle);
            moves = true;
        }
        for output in &step.outputs {
            let side = &mut self.jobs[number].side;
            let (wire, protocol) = match *output {
                Output::Sent { to } if to != rank => {
                    (self.wires.wire(side, rank, to, &mut self.shares)?, protocol)
                }
                Output::Peer(remote) if remote.rank != rank => {
                    (self.wires.wire(side, rank, remote.rank, &mut self.shares)?, None)
                }
                Output::Multicast(all) => {
                    let group = &checked.groups[all.group as usize];
                    (self.wires.grouped(side, rank, group, all.group, false, &mut self.shares)?, None)
                }
                Output::Local(_) | Output::Sent { .. } | Output::Peer(_) => {
                    copies = true;
                    continue;
                }
            };
            self.transfer(lane, &wire, protocol, throttle);
            moves = true;
        }
        // What passes through anyway is written along.
        let is_copy = copies && !moves;
        let job = &self.jobs[number];
        let rate = job.side.charges.copy() * throttle.map_or(1.0, |(_, part)| part);
        Ok(if is_copy { (job.chunk_bytes / rate * 1e12) as Time } else { 0 })
    }

    /// The GPU of a rank's class that is throttled most, if one is, and what it gets of what it would.
    fn throttle(&self, job: usize, rank: u32) -> Option<(u32, f64)> {
        if self.wires.are_unthrottled() {
            return None;
        }
        let side = &self.jobs[job].side;
        let of = |rank: &u32| Some((side.gpu(*rank), self.wires.throttle(side.gpu(*rank))?));
        side.class_of(rank).iter().filter_map(of).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn transfer(&mut self, lane: u32, wire: &Wire, protocol: Option<Protocol>, throttle: Option<(u32, f64)>) {
        let job = &mut self.jobs[self.lanes[lane as usize].job as usize];
        let bytes = job.side.charges.on_the_wire(wire, protocol, job.chunk_bytes);
        let mut cap = job.side.charges.lane(wire, protocol);
        if bytes <= 0.0 {
            return;
        }
        job.moved.resize(self.wires.resources.len().max(job.moved.len()), 0.0);
        for (resource, weight) in &wire.uses {
            job.moved[*resource as usize] += bytes * weight;
        }
        let flow = match throttle {
            None => self.shares.begin(&wire.uses, cap),
            Some((gpu, part)) => {
                cap *= part;
                let narrowed = self.wires.narrowed(wire, gpu, part, &mut self.shares);
                let uses: Vec<_> = wire.uses.iter().copied().chain(narrowed).collect();
                self.shares.begin(&uses, cap)
            }
        } as usize;
        if flow == self.flows.len() {
            self.flows.push(FlowState::default());
        }
        let version = self.flows[flow].version;
        self.flows[flow] = FlowState { lane, left: bytes, rate: 0.0, since: self.now, version };
        self.flows_under_way += 1;
        self.lanes[lane as usize].transfers += 1;
    }

    /// A step is over: those who waited for that can go on, and so can its lane.
    fn over(&mut self, lane: u32) {
        let state = self.lanes[lane as usize];
        self.times[state.step as usize].1 = self.now;
        self.jobs[state.job as usize].last = self.now;
        if let Some(spans) = &mut self.spans
            && let Some(span) = self.begun.remove(&lane)
        {
            spans.list.push(Span { ended: Picoseconds(self.now), ..span });
        }
        self.look_later(lane);
        let mut next = std::mem::replace(&mut self.waiting[state.step as usize], NOBODY);
        while next != NOBODY {
            self.look_later(next);
            next = self.lanes[next as usize].waits_after;
        }
    }

    /// Finds the shares of all transfers, and when they are through at that.
    fn settle(&mut self) {
        let (shares, flows, events, now) = (&mut self.shares, &mut self.flows, &mut self.events, self.now);
        let count = &mut self.count;
        shares.settle(|id, rate| {
            let flow = &mut flows[id as usize];
            flow.left -= flow.rate * (now - flow.since) as f64 * 1e-12;
            flow.since = now;
            flow.rate = rate;
            flow.version += 1;
            // What stands still is through at no time that is known yet.
            if rate <= 0.0 {
                return;
            }
            let time = (flow.left.max(0.0) / rate * 1e12).ceil() as Time;
            *count += 1;
            events.push(Reverse((now.saturating_add(time), *count, Event::Through(id, flow.version))));
        });
    }
}

/// The links that were passed, with what one job moved over them. What only stands for a throttled GPU is no link.
fn moved(resources: &[Resource], moved: &[f64]) -> Vec<Resource> {
    let with = |(number, resource): (usize, &Resource)| Resource {
        moved: moved.get(number).copied().unwrap_or(0.0),
        ..resource.clone()
    };
    resources.iter().enumerate().filter(|(_, resource)| resource.count > 0).map(with).collect()
}

impl Domain for Began {
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
