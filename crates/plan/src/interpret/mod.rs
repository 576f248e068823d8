//! The interpreter: the one meaning of a plan.
//!
//! [`Machine`] runs all ranks of a plan, for some calls of some tiles each, over a [`Domain`] that says what a chunk
//! holds and what a synchronisation carries: contribution sets and vector clocks for the verifier, elements and
//! nothing for the oracle, time for a simulator. It has no schedule of its own: [`Machine::ready`] says whether a lane
//! can take its next step and [`Machine::fire`] takes it, and since plans synchronise only through single-writer FIFOs
//! and counters, every order gives the same values. [`Machine::run`] takes steps round robin.
//!
//! A lane runs its program once per tile, one tile after the other, and does not wait for the rank's other lanes
//! in between. When all of them are through with the last tile, the call returns on that rank, its user looks at the
//! result, and enters the next call at once. User buffers have one region per tile, the same in each call; scratch
//! and FIFO slots are the same memory in all tiles and calls.

mod calls;
mod domain;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::classes::{Classes, Turn};
use crate::plan::{Aliasing, Buffer, Grouped, Input, Lane, Op, Output, Place, Remote, Step, Wait};
use crate::refusal::{Cell, Spot};
use crate::walk::Walk;
use crate::well_formed::WellFormed;

pub(crate) use self::calls::cell_position;
pub use self::domain::{Access, Domain};

/// How much is run, and how buffers are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Calls, one after the other, on the same buffers.
    pub calls: u32,
    /// Tiles of each call.
    pub tiles: u32,
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
}

/// A step that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The rank.
    pub rank: u32,
    /// The lane of that rank.
    pub lane: u32,
    /// The call, from 0.
    pub call: u32,
    /// The tile of that call.
    pub tile: u32,
    /// How many steps the lane had taken in this tile before.
    pub ordinal: u32,
}

/// What [`Machine::take`] tells of a step.
pub struct Taken<D: Domain> {
    /// Which it was.
    pub event: Event,
    /// Its result, if it has one.
    pub result: Option<D::Value>,
    /// What it did.
    pub step: Step<u32>,
}

/// Why a lane cannot take its next step now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// All its calls are done, or its rank's other lanes are still in the call that it has finished.
    Finished,
    /// A counter has not got there.
    Waits(Wait<u32>),
    /// There is no message from this rank.
    Empty {
        /// That rank.
        from: u32,
    },
    /// There is no free slot towards this rank.
    Full {
        /// That rank.
        to: u32,
    },
}

/// How a lane learns of another's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// It waited for a counter, or for a rank to enter.
    Waited,
    /// A message came.
    Received,
    /// A slot was given back.
    Freed,
}

/// A step reads a chunk that was never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unset {
    /// The step.
    pub spot: Spot,
    /// The chunk.
    pub cell: Cell,
}

/// All ranks of a plan, somewhere in their run.
pub struct Machine<'p, D: Domain> {
    plan: WellFormed<'p>,
    shape: Shape,
    /// Chunks of a block.
    per_block: u32,
    domain: D,
    classes: Classes,
    lanes: Vec<LaneState<'p>>,
    /// Those that stand for the others.
    ranks: Vec<RankState<D>>,
    fifos: Vec<Fifo<D>>,
    /// By source, target and channel, the source standing for its class.
    fifo_numbers: FxHashMap<(u32, u32, u32), u32>,
    /// Lanes that waited for a FIFO which has something for them now.
    woken: Vec<u32>,
    cells: Vec<Option<D::Value>>,
}

struct LaneState<'p> {
    rank: u32,
    number: u32,
    lane: &'p Lane,
    walk: Walk<'p>,
    /// The step to take next; nothing once the lane is through with its rank's call.
    next: Option<(Spot, Step<u32>)>,
    /// How many of that step's waits, inputs and outputs, in this order, are known to be there. What is there stays
    /// until the step is taken, so whoever asks again goes on from here; a step with many is asked about often.
    there: std::cell::Cell<usize>,
    /// For that step's inputs that come from ranks, and its outputs that go to some: the rank and the number of the FIFO. Lanes mostly
    /// have to do with the same ranks all the time, so what was there for the step before is there for this.
    sources: Vec<(u32, u32)>,
    targets: Vec<(u32, u32)>,
    tile: u32,
    ordinal: u32,
}

struct RankState<D: Domain> {
    rank: u32,
    lanes: std::ops::Range<usize>,
    call: u32,
    /// Lanes that are not through with the call.
    running: usize,
    /// What was known when the rank entered each call, and when it signalled each counter for the k-th time.
    entered: Vec<D::Stamp>,
    signalled: Vec<Vec<D::Stamp>>,
    /// How often each counter is signalled in one tile.
    per_tile: Vec<u32>,
}

struct Fifo<D: Domain> {
    messages: VecDeque<(D::Value, D::Stamp)>,
    free: u32,
    /// What the receiver knew when it gave back slots that have not been filled again.
    given_back: VecDeque<D::Stamp>,
    /// The lane that waits for a message, and the one that waits for a slot.
    reader: Option<u32>,
    writer: Option<u32>,
}

impl<'p, D: Domain> Machine<'p, D> {
    /// All ranks having entered their first call.
    pub fn new(plan: WellFormed<'p>, shape: Shape, domain: D) -> Self {
        Self::by_classes(plan, shape, domain, Classes::trivial(plan.ranks))
    }

    /// The representatives of these classes having entered their first call; they stand for all ranks.
    pub fn by_classes(plan: WellFormed<'p>, shape: Shape, domain: D, classes: Classes) -> Self {
        let mut lanes = Vec::new();
        let mut ranks = Vec::new();
        for &rank in classes.representatives() {
            let program = &plan.plan().programs[rank as usize];
            let first = lanes.len();
            for (number, lane) in (0..).zip(&program.lanes) {
                let walk = lane.walk();
                let there = std::cell::Cell::new(0);
                let (sources, targets) = (Vec::new(), Vec::new());
                let (next, tile, ordinal) = (None, 0, 0);
                lanes.push(LaneState {
                    rank,
                    number,
                    lane,
                    walk,
                    next,
                    there,
                    sources,
                    targets,
                    tile,
                    ordinal,
                });
            }
            ranks.push(RankState {
                rank,
                lanes: first..lanes.len(),
                call: 0,
                running: 0,
                entered: Vec::new(),
                signalled: vec![Vec::new(); plan.counters as usize],
                per_tile: plan.signals_per_tile(rank),
            });
        }
        let chunks = plan.chunks;
        let per_rank = shape.tiles as usize * (chunks.input as usize + chunks.output as usize);
        let count = if D::REMEMBERS { ranks.len() * (per_rank + chunks.scratch as usize) } else { 0 };
        let cells = vec![None; count];
        let mut machine = Self {
            plan,
            shape,
            per_block: plan.chunks_per_block(),
            domain,
            classes,
            lanes,
            ranks,
            fifos: Vec::new(),
            fifo_numbers: FxHashMap::default(),
            woken: Vec::new(),
            cells,
        };
        for position in 0..machine.ranks.len() {
            machine.enter(position);
        }
        machine
    }

    /// Takes steps round robin until nothing can go on. Whether all is done is told by [`Machine::blocked`].
    /// `observe` is told each step and its result, and stops the run by returning false.
    pub fn run(
        &mut self,
        mut observe: impl FnMut(&mut D, Event, Option<D::Value>) -> bool,
    ) -> Result<(), Unset> {
        let mut idle = 0;
        let mut lane = 0;
        while idle < self.lanes.len() {
            if self.ready(lane).is_ok() {
                idle = 0;
                let (event, result) = self.fire(lane)?;
                if !observe(&mut self.domain, event, result) {
                    return Ok(());
                }
            } else {
                idle += 1;
                lane = (lane + 1) % self.lanes.len();
            }
        }
        Ok(())
    }

    /// How many lanes there are, over all ranks.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The position of a rank's lane among all; the rank stands for itself.
    pub fn lane_of(&self, rank: u32, lane: u32) -> Option<usize> {
        let range = self.ranks.iter().find(|state| state.rank == rank)?.lanes.clone();
        Some(range.start + lane as usize).filter(|position| range.contains(position))
    }

    /// Whether a lane can take its next step now, and if not, why.
    pub fn ready(&self, lane: usize) -> Result<(), Blocked> {
        let state = &self.lanes[lane];
        let Some((_, step)) = &state.next else { return Err(Blocked::Finished) };
        let (waits, inputs) = (step.waits.len(), step.waits.len() + step.inputs.len());
        for number in state.there.get()..inputs + step.outputs.len() {
            let lacking = if number < waits {
                self.lacks_wait(state, &step.waits[number])
            } else if number < inputs {
                self.lacks_input(state, number - waits, &step.inputs[number - waits])
            } else {
                self.lacks_output(state, number - inputs, &step.outputs[number - inputs])
            };
            if let Some(blocked) = lacking {
                return Err(blocked);
            }
            state.there.set(number + 1);
        }
        Ok(())
    }

    /// Takes the next step of a lane that is [ready](Machine::ready), and tells its result if it has one.
    ///
    /// # Panics
    /// If the lane is not ready.
    pub fn fire(&mut self, lane: usize) -> Result<(Event, Option<D::Value>), Unset> {
        self.take(lane).map(|taken| (taken.event, taken.result))
    }

    /// The same as [`Machine::fire`], and tells the step.
    ///
    /// # Panics
    /// If the lane is not ready.
    pub fn take(&mut self, lane: usize) -> Result<Taken<D>, Unset> {
        assert_eq!(self.ready(lane), Ok(()), "only a lane that is ready can take a step");
        let state = &mut self.lanes[lane];
        let (rank, tile) = (state.rank, state.tile);
        let event = Event {
            rank,
            lane: state.number,
            call: self.ranks[self.classes.position(rank)].call,
            tile,
            ordinal: state.ordinal,
        };
        state.ordinal += 1;
        let Some((spot, step)) = state.next.take() else { unreachable!("ready() saw a step") };

        for wait in step.waits.iter().filter(|_| D::LEARNS) {
            let (Wait::Entered { rank: of } | Wait::Reached { rank: of, .. }) = *wait;
            let stamp = self.awaited(&self.lanes[lane], wait).cloned();
            stamp.iter().for_each(|stamp| self.meet(lane, stamp, self.classes.turn_of(of)));
        }
        for (number, output) in step.outputs.iter().enumerate() {
            if let Output::Sent { .. } = *output {
                let fifo = &mut self.fifos[self.lanes[lane].targets[number].1 as usize];
                // Slots that were never used come first: a message that fits into one waits for nobody, even if in
                // this run the receiver has already given another back.
                let used_before = fifo.given_back.len() == fifo.free as usize;
                let stamp = if used_before { fifo.given_back.pop_front() } else { None };
                stamp.iter().filter(|_| D::LEARNS).for_each(|stamp| self.domain.credit(lane, stamp));
            }
        }
        let mut values = Vec::with_capacity(step.inputs.len());
        for (number, input) in step.inputs.iter().enumerate() {
            values.push(match *input {
                Input::Received { from } => {
                    let turn = self.classes.turn_of(from);
                    let fifo = self.lanes[lane].sources[number].1 as usize;
                    let Some((value, stamp)) = self.fifos[fifo].messages.pop_front() else {
                        unreachable!("ready() saw a message")
                    };
                    self.meet(lane, &stamp, turn);
                    self.turned(value, turn)
                }
                Input::Local(Place { buffer, chunk }) => self.read(lane, &spot, rank, buffer, tile, chunk)?,
                Input::Peer(Remote { rank: owner, buffer, chunk }) => {
                    self.read(lane, &spot, owner, buffer, tile, chunk)?
                }
                Input::Switch(Grouped { group, buffer, chunk }) => {
                    let plan = self.plan.plan();
                    let members = &plan.groups[group as usize].members;
                    let read = |&owner: &u32| self.read(lane, &spot, owner, buffer, tile, chunk);
                    let parts = members.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                    self.domain.reduce_unordered(&spot, &parts)
                }
            });
        }
        let result = match step.op {
            Op::Sync => None,
            Op::Copy => values.pop(),
            Op::Reduce => Some(self.domain.reduce(&spot, &values)),
        };
        for output in &step.outputs {
            match *output {
                Output::Local(Place { buffer, chunk }) => {
                    self.write(lane, &spot, rank, buffer, chunk, result.as_ref());
                }
                Output::Peer(Remote { rank: owner, buffer, chunk }) => {
                    self.write(lane, &spot, owner, buffer, chunk, result.as_ref());
                }
                Output::Multicast(Grouped { group, buffer, chunk }) => {
                    let plan = self.plan.plan();
                    for &owner in &plan.groups[group as usize].members {
                        self.write(lane, &spot, owner, buffer, chunk, result.as_ref());
                    }
                }
                Output::Sent { .. } => {}
            }
        }
        self.publish(lane, &step, result.as_ref());
        self.advance(lane);
        Ok(Taken { event, result, step })
    }

    /// The next step of a lane; nothing once the lane is through.
    pub fn step(&self, lane: usize) -> Option<&Step<u32>> {
        self.lanes[lane].next.as_ref().map(|(_, step)| step)
    }

    /// Lets a lane that is not [ready](Machine::ready) wait for the FIFO that lacks something, if that is why; [`Machine::woken`] tells when to ask
    /// again. A FIFO has one lane at each end.
    pub fn wait_for_fifo(&mut self, lane: usize) -> bool {
        let state = &self.lanes[lane];
        let Some((_, step)) = &state.next else { return false };
        let Some(number) = state.there.get().checked_sub(step.waits.len()) else { return false };
        match number.checked_sub(step.inputs.len()) {
            None => self.fifos[state.sources[number].1 as usize].reader = Some(lane as u32),
            Some(number) => self.fifos[state.targets[number].1 as usize].writer = Some(lane as u32),
        }
        true
    }

    /// A lane that waited for a FIFO which has something for it now, the last first, each told once.
    pub fn woken(&mut self) -> Option<u32> {
        self.woken.pop()
    }

    /// The rank of a lane and the channel of its messages.
    pub fn rank_and_channel(&self, lane: usize) -> (u32, u32) {
        (self.lanes[lane].rank, self.lanes[lane].lane.channel)
    }

    /// How much is run.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The classes that the ranks are run by.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// What a lane that is [ready](Machine::ready) will learn when it takes its next step, and from whom; free slots are told by the
    /// rank they lead to. Starts with the step's wait, input or output of this number, in this order, stops where `tell` does not want more, and
    /// returns the number of what was told last, or how many there are.
    pub fn learns(
        &self,
        lane: usize,
        from: usize,
        mut tell: impl FnMut(Lesson, u32, &D::Stamp) -> bool,
    ) -> usize {
        let state = &self.lanes[lane];
        let Some((_, step)) = &state.next else { return from };
        let (waits, inputs) = (step.waits.len(), step.waits.len() + step.inputs.len());
        let total = inputs + step.outputs.len();
        for number in from..total {
            let told = if number < waits {
                let (Wait::Entered { rank } | Wait::Reached { rank, .. }) = step.waits[number];
                self.awaited(state, &step.waits[number]).map(|stamp| (Lesson::Waited, rank, stamp))
            } else if number < inputs {
                let Input::Received { from } = step.inputs[number - waits] else { continue };
                let message = self.fifos[state.sources[number - waits].1 as usize].messages.front();
                message.map(|(_, stamp)| (Lesson::Received, from, stamp))
            } else {
                let Output::Sent { to } = step.outputs[number - inputs] else { continue };
                let fifo = &self.fifos[state.targets[number - inputs].1 as usize];
                let slot = fifo.given_back.front().filter(|_| fifo.given_back.len() == fifo.free as usize);
                slot.map(|stamp| (Lesson::Freed, to, stamp))
            };
            if let Some((lesson, of, stamp)) = told
                && !tell(lesson, of, stamp)
            {
                return number;
            }
        }
        total
    }

    /// The domain, as far as the run has come.
    pub fn domain(&mut self) -> &mut D {
        &mut self.domain
    }

    /// The lanes that cannot go on although their calls are not done, and why. Empty after a complete run.
    pub fn blocked(&self) -> Vec<(Spot, Blocked)> {
        let stuck = |lane: usize| Some((self.lanes[lane].next.as_ref()?.0.clone(), self.ready(lane).err()?));
        (0..self.lanes.len()).filter_map(stuck).collect()
    }

    /// The next step of every lane whose calls are not done.
    pub fn pending(&self) -> Vec<&Spot> {
        self.lanes.iter().filter_map(|lane| lane.next.as_ref()).map(|(spot, _)| spot).collect()
    }

    /// The domain, with what it has seen.
    pub fn into_domain(self) -> D {
        self.domain
    }

    /// A step's look at a chunk of some rank's memory.
    fn read(
        &mut self,
        lane: usize,
        spot: &Spot,
        owner: u32,
        buffer: Buffer,
        tile: u32,
        chunk: u32,
    ) -> Result<D::Value, Unset> {
        let cell = self.cell(owner, buffer, tile, chunk);
        if !D::REMEMBERS {
            return Ok(self.domain.fresh(0, cell));
        }
        self.domain.touch(lane, Some(spot), cell, Access::Read);
        match &self.cells[self.position(cell)] {
            Some(value) => {
                let value = value.clone();
                Ok(self.turned(value, self.classes.turn_of(owner)))
            }
            None => Err(Unset { spot: spot.clone(), cell }),
        }
    }

    /// A step's result put into a chunk of some rank's memory.
    fn write(
        &mut self,
        lane: usize,
        spot: &Spot,
        owner: u32,
        buffer: Buffer,
        chunk: u32,
        result: Option<&D::Value>,
    ) {
        if !D::REMEMBERS {
            return;
        }
        let cell = self.cell(owner, buffer, self.lanes[lane].tile, chunk);
        self.domain.touch(lane, Some(spot), cell, Access::Write);
        if let Some(value) = result {
            self.domain.stored(spot, cell, value);
        }
        let position = self.position(cell);
        let back = self.classes.back(self.classes.turn_of(owner));
        self.cells[position] = result.map(|value| self.turned(value.clone(), back));
    }

    /// A lane learns what is known elsewhere, told by a representative for the rank that is turned from it.
    fn meet(&mut self, lane: usize, stamp: &D::Stamp, turn: Turn) {
        if !D::LEARNS {
            return;
        }
        if turn == Turn::NONE {
            return self.domain.meet(lane, stamp);
        }
        let stamp = self.domain.turned_stamp(stamp, turn);
        self.domain.meet(lane, &stamp);
    }

    fn turned(&mut self, value: D::Value, turn: Turn) -> D::Value {
        if turn == Turn::NONE { value } else { self.domain.turned(&value, turn) }
    }

    /// The FIFO from a rank to a rank, named by the one that stands for the source.
    fn key(&self, source: u32, target: u32, channel: u32) -> (u32, u32, u32) {
        let back = self.classes.back(self.classes.turn_of(source));
        (self.classes.rank(source, back), self.classes.rank(target, back), channel)
    }

    /// Gives messages, slots and signals of a finished step to those who wait for them.
    fn publish(&mut self, lane: usize, step: &Step<u32>, result: Option<&D::Value>) {
        let rank = self.lanes[lane].rank;
        let stamp = self.domain.stamp(lane);
        for (number, input) in step.inputs.iter().enumerate() {
            if let Input::Received { from } = *input {
                let back = self.classes.back(self.classes.turn_of(from));
                let seen =
                    if back == Turn::NONE { stamp.clone() } else { self.domain.turned_stamp(&stamp, back) };
                let fifo = &mut self.fifos[self.lanes[lane].sources[number].1 as usize];
                fifo.free += 1;
                fifo.given_back.push_back(seen);
                self.woken.extend(fifo.writer.take());
            }
        }
        for (number, output) in step.outputs.iter().enumerate() {
            if let (Output::Sent { .. }, Some(value)) = (output, result) {
                let fifo = &mut self.fifos[self.lanes[lane].targets[number].1 as usize];
                fifo.free -= 1;
                fifo.messages.push_back((value.clone(), stamp.clone()));
                self.woken.extend(fifo.reader.take());
            }
        }
        for &counter in &step.signals {
            let position = self.classes.position(rank);
            self.ranks[position].signalled[counter as usize].push(stamp.clone());
        }
    }

    fn lacks_wait(&self, state: &LaneState<'p>, wait: &Wait<u32>) -> Option<Blocked> {
        self.awaited(state, wait).is_none().then(|| Blocked::Waits(wait.clone()))
    }

    fn lacks_input(&self, state: &LaneState<'p>, number: usize, input: &Input<u32>) -> Option<Blocked> {
        let Input::Received { from } = *input else { return None };
        self.fifos[state.sources[number].1 as usize].messages.is_empty().then_some(Blocked::Empty { from })
    }

    fn lacks_output(&self, state: &LaneState<'p>, number: usize, output: &Output<u32>) -> Option<Blocked> {
        let Output::Sent { to } = *output else { return None };
        (self.fifos[state.targets[number].1 as usize].free == 0).then_some(Blocked::Full { to })
    }

    /// What a wait brings, once it is over.
    fn awaited(&self, state: &LaneState<'p>, wait: &Wait<u32>) -> Option<&D::Stamp> {
        let call = self.ranks[self.classes.position(state.rank)].call;
        match *wait {
            Wait::Entered { rank } => self.ranks[self.classes.position(rank)].entered.get(call as usize),
            Wait::Reached { rank, counter, count } => {
                let (rank, counter) = (&self.ranks[self.classes.position(rank)], counter as usize);
                let round = (call * self.shape.tiles + state.tile) as usize;
                let before = round * rank.per_tile[counter] as usize;
                rank.signalled[counter].get(before + count as usize - 1)
            }
        }
    }

    /// Finds the FIFOs of a lane's next step.
    fn find_fifos(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        let (rank, channel) = (state.rank, state.lane.channel);
        let (mut sources, mut targets) =
            (std::mem::take(&mut state.sources), std::mem::take(&mut state.targets));
        let next = state.next.take();
        if let Some((_, step)) = &next {
            sources.resize(sources.len().max(step.inputs.len()), NO_FIFO);
            targets.resize(targets.len().max(step.outputs.len()), NO_FIFO);
            for (input, known) in step.inputs.iter().zip(&mut sources) {
                if let Input::Received { from } = *input
                    && (known.0 != from || *known == NO_FIFO)
                {
                    *known = (from, self.fifo(self.key(from, rank, channel)));
                }
            }
            for (output, known) in step.outputs.iter().zip(&mut targets) {
                if let Output::Sent { to } = *output
                    && (known.0 != to || *known == NO_FIFO)
                {
                    *known = (to, self.fifo((rank, to, channel)));
                }
            }
        }
        let state = &mut self.lanes[lane];
        (state.sources, state.targets, state.next) = (sources, targets, next);
    }

    fn fifo(&mut self, key: (u32, u32, u32)) -> u32 {
        let number = *self.fifo_numbers.entry(key).or_insert(self.fifos.len() as u32);
        if number as usize == self.fifos.len() {
            let depth = self.plan.channels[key.2 as usize].depth;
            self.fifos.push(Fifo {
                messages: VecDeque::new(),
                free: depth,
                given_back: VecDeque::new(),
                reader: None,
                writer: None,
            });
        }
        number
    }
}

/// No rank, and no FIFO.
const NO_FIFO: (u32, u32) = (u32::MAX, u32::MAX);
