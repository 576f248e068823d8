//! The engine: a plan's one interpreter, in virtual time.
//!
//! A lane takes its next step when what the step needs is there: messages, counters, free slots, each a hop after it left where it
//! came from. The step's data then flows over the links of its way, at a rate that is [shared](share) with every other transfer under
//! way, and the step is over when all of it has passed. Nothing else takes time but what [`Charges`] says.
//!
//! Run by [classes](weftlink_plan::classes), the ranks that stand for others are the only ones there are; see [`wires`].

mod routes;
pub mod share;
pub mod wires;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use weftlink_fabric::{LinkKind, Paths};
use weftlink_plan::classes::Classes;
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::interpret::{Access, Blocked, Domain, Lesson, Machine, Shape};
use weftlink_plan::plan::{Aliasing, Input, Output, Protocol, Step, Wait};
use weftlink_plan::{Cell, Partial, Spot};

#[cfg(test)]
mod tests;

use share::{FlowId, Shares};
use wires::{Apart, Resource, Wire, Wires};

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

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From the call until its last rank is done.
    pub time: Picoseconds,
    /// What was passed, and how much of it.
    pub resources: Vec<Resource>,
    /// Steps taken.
    pub steps: u64,
}

/// A plan cannot be run on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
}

/// Runs a plan whose ranks are the fabric's GPUs in order.
pub fn run(
    plan: &Partial,
    paths: &Paths<'_>,
    load: Load,
    charges: &dyn Charges,
) -> Result<Outcome, SimError> {
    Engine::new(plan, paths, load, charges).run()
}

type Time = u64;
/// A step that was taken, by the order in which steps began. The first stands for the call.
type StepId = u32;

/// A step of which transfers are under way.
const UNDER_WAY: Time = Time::MAX;

struct Engine<'r> {
    machine: Machine<'r, Began>,
    plan: &'r Partial,
    charges: &'r dyn Charges,
    shares: Shares,
    wires: Wires<'r, 'r>,
    chunk_bytes: f64,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Events so far: what happens at the same time happens in the order it was found out.
    count: u64,
    /// When each step began, and when it was over.
    began: Vec<Time>,
    ended: Vec<Time>,
    /// Lanes that wait for the end of a step.
    waiting: FxHashMap<StepId, Vec<u32>>,
    /// Lanes that wait for a rank to do something, by its class.
    blocked: Vec<Vec<u32>>,
    lanes: Vec<LaneState>,
    flows: Vec<FlowState>,
    /// Lanes to look at before time goes on.
    looks: Vec<u32>,
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
    step: StepId,
    /// Transfers of its step that are under way.
    transfers: u32,
    is_looked_at: bool,
}

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

impl<'r> Engine<'r> {
    fn new(plan: &'r Partial, paths: &'r Paths<'r>, load: Load, charges: &'r dyn Charges) -> Self {
        let classes = plan.classes();
        let checked = plan.well_formed();
        let shape = Shape { calls: 1, tiles: load.tiles.max(1), aliasing: Aliasing::OutOfPlace };
        let lanes: usize =
            classes.representatives().iter().map(|rank| checked.programs[*rank as usize].lanes.len()).sum();
        let domain = Began { lanes: vec![0; lanes] };
        let machine = Machine::by_classes(checked, shape, domain, classes.clone());
        let chunks = checked.chunks.input.max(checked.chunks.output).max(1);
        let parts = f64::from(chunks) * f64::from(shape.tiles);
        let launch = charges.launch().0;
        Self {
            machine,
            plan,
            charges,
            shares: Shares::default(),
            wires: Wires::new(paths, charges, classes),
            chunk_bytes: load.bytes as f64 / parts,
            now: launch,
            events: BinaryHeap::new(),
            count: 0,
            began: vec![launch],
            ended: vec![launch],
            waiting: FxHashMap::default(),
            blocked: vec![Vec::new(); classes.representatives().len()],
            lanes: vec![LaneState::default(); lanes],
            flows: Vec::new(),
            looks: (0..lanes as u32).rev().collect(),
        }
    }

    fn classes(&self) -> &'r Classes {
        self.plan.classes()
    }

    fn run(mut self) -> Result<Outcome, SimError> {
        self.look_at_lanes();
        while let Some(&Reverse((time, ..))) = self.events.peek() {
            self.now = time;
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
        let steps = self.ended.len() as u64 - 1;
        if !self.machine.blocked().is_empty() || self.ended.contains(&UNDER_WAY) {
            return Err(SimError::Stuck { steps });
        }
        let time = self.ended.iter().copied().max().unwrap_or(0);
        Ok(Outcome { time: Picoseconds(time), resources: self.wires.resources, steps })
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

    fn look_later(&mut self, lanes: Vec<u32>) {
        for lane in lanes.into_iter().rev() {
            if !std::mem::replace(&mut self.lanes[lane as usize].is_looked_at, true) {
                self.looks.push(lane);
            }
        }
    }

    /// Finds out when a lane can begin its next step, or what it has to be looked at again for.
    fn look_at(&mut self, lane: u32) {
        let position = |rank: u32| self.classes().position(rank);
        match self.machine.ready(lane as usize) {
            Err(Blocked::Finished) => return,
            Err(Blocked::Waits(Wait::Entered { rank } | Wait::Reached { rank, .. })) => {
                let at = position(rank);
                return self.blocked[at].push(lane);
            }
            Err(Blocked::Empty { from: rank } | Blocked::Full { to: rank }) => {
                let at = position(rank);
                return self.blocked[at].push(lane);
            }
            Ok(()) => {}
        }
        let (rank, channel) = self.machine.rank_and_channel(lane as usize);
        let mut lessons: Vec<(Lesson, u32, StepId)> = Vec::new();
        self.machine.learns(lane as usize, |lesson, of, step| lessons.push((lesson, of, *step)));
        if let Some((_, _, step)) =
            lessons.iter().find(|(_, _, step)| self.ended[*step as usize] == UNDER_WAY)
        {
            self.waiting.entry(*step).or_default().push(lane);
            return;
        }
        let mut begin = self.now;
        for (lesson, of, step) in lessons {
            let hop = self.hop(lesson, of, rank, channel, step);
            begin = begin.max(self.ended[step as usize] + hop);
        }
        self.at(begin, Event::Begin(lane));
    }

    /// How long after a step its lesson is there.
    fn hop(&mut self, lesson: Lesson, of: u32, rank: u32, channel: u32, step: StepId) -> Time {
        // All enter a call at once, and a slot is given back while others are being filled.
        if step == 0 || of == rank || lesson == Lesson::Freed {
            return 0;
        }
        let protocol = match lesson {
            Lesson::Received => Some(self.plan.well_formed().channels[channel as usize].protocol),
            _ => None,
        };
        let Ok(wire) = self.wires.wire(of, rank, &mut self.shares) else { return 0 };
        let time = Picoseconds(self.ended[step as usize] - self.began[step as usize]);
        self.charges.hop(&wire, protocol, Sent { bytes: self.chunk_bytes, time }).0
    }

    /// A lane takes its next step.
    fn begin(&mut self, lane: u32) -> Result<(), SimError> {
        let id = self.ended.len() as StepId;
        self.machine.domain().lanes[lane as usize] = id;
        let step = self.machine.step(lane as usize).cloned();
        let (rank, channel) = self.machine.rank_and_channel(lane as usize);
        self.began.push(self.now);
        self.ended.push(UNDER_WAY);
        if self.machine.fire(lane as usize).is_err() {
            return Err(SimError::Stuck { steps: u64::from(id) });
        }
        let position = self.classes().position(rank);
        let woken = std::mem::take(&mut self.blocked[position]);
        self.look_later(woken);
        self.lanes[lane as usize].step = id;
        self.lanes[lane as usize].transfers = 0;
        let copied = match step {
            Some(step) => self.transfers(lane, rank, channel, &step)?,
            None => 0,
        };
        if self.lanes[lane as usize].transfers == 0 {
            self.at(self.now + copied, Event::Over(lane));
        }
        Ok(())
    }

    /// Puts what a step moves on its way, and tells how long it takes if that is a copy within the rank.
    fn transfers(&mut self, lane: u32, rank: u32, channel: u32, step: &Step<u32>) -> Result<Time, SimError> {
        let checked = self.plan.well_formed();
        let protocol = checked.channels.get(channel as usize).map(|channel| channel.protocol);
        let (mut copies, mut moves) = (false, false);
        for input in &step.inputs {
            match *input {
                Input::Peer(remote) if remote.rank != rank => {
                    let wire = self.wires.wire(remote.rank, rank, &mut self.shares)?;
                    self.transfer(lane, &wire, None);
                    moves = true;
                }
                Input::Switch(all) => {
                    let group = &checked.groups[all.group as usize];
                    let wire = self.wires.grouped(rank, group, all.group, true, &mut self.shares)?;
                    self.transfer(lane, &wire, None);
                    moves = true;
                }
                Input::Received { .. } => moves = true,
                Input::Local(_) | Input::Peer(_) => {}
            }
        }
        for output in &step.outputs {
            match *output {
                Output::Sent { to } if to != rank => {
                    let wire = self.wires.wire(rank, to, &mut self.shares)?;
                    self.transfer(lane, &wire, protocol);
                    moves = true;
                }
                Output::Peer(remote) if remote.rank != rank => {
                    let wire = self.wires.wire(rank, remote.rank, &mut self.shares)?;
                    self.transfer(lane, &wire, None);
                    moves = true;
                }
                Output::Multicast(all) => {
                    let group = &checked.groups[all.group as usize];
                    let wire = self.wires.grouped(rank, group, all.group, false, &mut self.shares)?;
                    self.transfer(lane, &wire, None);
                    moves = true;
                }
                Output::Local(_) | Output::Sent { .. } | Output::Peer(_) => copies = true,
            }
        }
        // What passes through anyway is written along.
        let is_copy = copies && !moves;
        Ok(if is_copy { (self.chunk_bytes / self.charges.copy() * 1e12) as Time } else { 0 })
    }

    fn transfer(&mut self, lane: u32, wire: &Wire, protocol: Option<Protocol>) {
        let bytes = self.charges.on_the_wire(wire, protocol, self.chunk_bytes);
        let cap = self.charges.lane(wire, protocol);
        if bytes <= 0.0 {
            return;
        }
        for (resource, weight) in &wire.uses {
            self.wires.resources[*resource as usize].moved += bytes * weight;
        }
        let flow = self.shares.begin(&wire.uses, cap) as usize;
        if flow == self.flows.len() {
            self.flows.push(FlowState::default());
        }
        let version = self.flows[flow].version;
        self.flows[flow] = FlowState { lane, left: bytes, rate: 0.0, since: self.now, version };
        self.lanes[lane as usize].transfers += 1;
    }

    /// A step is over: those who waited for that can go on, and so can its lane.
    fn over(&mut self, lane: u32) {
        let step = self.lanes[lane as usize].step;
        self.ended[step as usize] = self.now;
        let mut woken = self.waiting.remove(&step).unwrap_or_default();
        woken.push(lane);
        self.look_later(woken);
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
            let time = (flow.left.max(0.0) / rate * 1e12).ceil() as Time;
            *count += 1;
            events.push(Reverse((now + time, *count, Event::Through(id, flow.version))));
        });
    }
}

impl Domain for Began {
    type Value = ();
    type Stamp = StepId;
    const REMEMBERS: bool = false;

    fn fresh(&mut self, _call: u32, _cell: Cell) {}
    fn reduce(&mut self, _spot: &Spot, _inputs: &[()]) {}
    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&()>) {}
    fn stamp(&mut self, lane: usize) -> StepId {
        self.lanes[lane]
    }
    fn meet(&mut self, _lane: usize, _stamp: &StepId) {}
    fn touch(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &()) {}
}
