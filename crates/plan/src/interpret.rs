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

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::plan::{Aliasing, Buffer, Input, Lane, Op, Output, Place, Remote, Step, Wait};
use crate::refusal::{Cell, Spot};
use crate::walk::{Visit, Walk};
use crate::well_formed::WellFormed;

/// What the machine computes with.
pub trait Domain {
    /// What a chunk holds.
    type Value: Clone;
    /// What a message, a free slot or a counter carries of its writer's past.
    type Stamp: Clone;

    /// What the user of `cell.rank` has put into a chunk of its input before a call.
    fn fresh(&mut self, call: u32, cell: Cell) -> Self::Value;
    /// The inputs of a step combined, from left to right.
    fn reduce(&mut self, spot: &Spot, inputs: &[Self::Value]) -> Self::Value;
    /// What a rank's user finds in a chunk of input or output when a call returns.
    fn returned(&mut self, call: u32, cell: Cell, value: Option<&Self::Value>);

    /// The past of a lane as of now, to be carried elsewhere.
    fn stamp(&mut self, lane: usize) -> Self::Stamp;
    /// A lane has seen a stamp: what it carries has happened before everything the lane does from now on.
    fn meet(&mut self, lane: usize, stamp: &Self::Stamp);
    /// A lane (or, between calls, the user of its rank) reads or writes memory.
    fn touch(&mut self, lane: usize, spot: Option<&Spot>, cell: Cell, access: Access);
    /// A step puts its result into memory.
    fn stored(&mut self, spot: &Spot, cell: Cell, value: &Self::Value);
}

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its value is used.
    Read,
    /// It gets a new value.
    Write,
}

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
    domain: D,
    lanes: Vec<LaneState<'p>>,
    ranks: Vec<RankState<D>>,
    fifos: FxHashMap<(u32, u32, u32), Fifo<D>>,
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
    tile: u32,
    ordinal: u32,
}

struct RankState<D: Domain> {
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
}

impl<'p, D: Domain> Machine<'p, D> {
    /// All ranks having entered their first call.
    pub fn new(plan: WellFormed<'p>, shape: Shape, domain: D) -> Self {
        let mut lanes = Vec::new();
        let mut ranks = Vec::new();
        for (rank, program) in (0..).zip(&plan.plan().programs) {
            let first = lanes.len();
            for (number, lane) in (0..).zip(&program.lanes) {
                let walk = lane.walk();
                let there = std::cell::Cell::new(0);
                lanes.push(LaneState { rank, number, lane, walk, next: None, there, tile: 0, ordinal: 0 });
            }
            ranks.push(RankState {
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
        let cells = vec![None; ranks.len() * (per_rank + chunks.scratch as usize)];
        let mut machine = Self { plan, shape, domain, lanes, ranks, fifos: FxHashMap::default(), cells };
        for rank in 0..machine.plan.ranks {
            machine.enter(rank);
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

    /// The position of a rank's lane among all.
    pub fn lane_of(&self, rank: u32, lane: u32) -> Option<usize> {
        let range = self.ranks.get(rank as usize)?.lanes.clone();
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
                self.lacks_input(state, &step.inputs[number - waits])
            } else {
                self.lacks_output(state, &step.outputs[number - inputs])
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
        assert_eq!(self.ready(lane), Ok(()), "only a lane that is ready can take a step");
        let state = &mut self.lanes[lane];
        let (rank, tile, channel) = (state.rank, state.tile, state.lane.channel);
        let event = Event {
            rank,
            lane: state.number,
            call: self.ranks[rank as usize].call,
            tile,
            ordinal: state.ordinal,
        };
        state.ordinal += 1;
        let Some((spot, step)) = state.next.take() else { unreachable!("ready() saw a step") };

        for wait in &step.waits {
            let stamp = self.awaited(&self.lanes[lane], wait).cloned();
            stamp.iter().for_each(|stamp| self.domain.meet(lane, stamp));
        }
        for output in &step.outputs {
            if let Output::Sent { to } = *output {
                let fifo = self.fifo((rank, to, channel));
                // Slots that were never used come first: a message that fits into one waits for nobody, even if in
                // this run the receiver has already given another back.
                let used_before = fifo.given_back.len() == fifo.free as usize;
                let stamp = if used_before { fifo.given_back.pop_front() } else { None };
                stamp.iter().for_each(|stamp| self.domain.meet(lane, stamp));
            }
        }
        let mut values = Vec::with_capacity(step.inputs.len());
        for input in &step.inputs {
            values.push(match *input {
                Input::Received { from } => {
                    let Some((value, stamp)) = self.fifo((from, rank, channel)).messages.pop_front() else {
                        unreachable!("ready() saw a message")
                    };
                    self.domain.meet(lane, &stamp);
                    value
                }
                Input::Local(Place { buffer, chunk }) | Input::Peer(Remote { buffer, chunk, .. }) => {
                    let owner = if let Input::Peer(remote) = input { remote.rank } else { rank };
                    let cell = self.cell(owner, buffer, tile, chunk);
                    self.domain.touch(lane, Some(&spot), cell, Access::Read);
                    match &self.cells[self.position(cell)] {
                        Some(value) => value.clone(),
                        None => return Err(Unset { spot, cell }),
                    }
                }
            });
        }
        let result = match step.op {
            Op::Sync => None,
            Op::Copy => values.pop(),
            Op::Reduce => Some(self.domain.reduce(&spot, &values)),
        };
        for output in &step.outputs {
            let (owner, buffer, chunk) = match *output {
                Output::Local(Place { buffer, chunk }) => (rank, buffer, chunk),
                Output::Peer(Remote { rank, buffer, chunk }) => (rank, buffer, chunk),
                Output::Sent { .. } => continue,
            };
            let cell = self.cell(owner, buffer, tile, chunk);
            self.domain.touch(lane, Some(&spot), cell, Access::Write);
            if let Some(value) = &result {
                self.domain.stored(&spot, cell, value);
            }
            let position = self.position(cell);
            self.cells[position] = result.clone();
        }
        self.publish(lane, &step, result.as_ref());
        self.advance(lane);
        Ok((event, result))
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

    /// Gives messages, slots and signals of a finished step to those who wait for them.
    fn publish(&mut self, lane: usize, step: &Step<u32>, result: Option<&D::Value>) {
        let (rank, channel) = (self.lanes[lane].rank, self.lanes[lane].lane.channel);
        let stamp = self.domain.stamp(lane);
        for input in &step.inputs {
            if let Input::Received { from } = *input {
                let fifo = self.fifo((from, rank, channel));
                fifo.free += 1;
                fifo.given_back.push_back(stamp.clone());
            }
        }
        for output in &step.outputs {
            if let (Output::Sent { to }, Some(value)) = (output, result) {
                let fifo = self.fifo((rank, *to, channel));
                fifo.free -= 1;
                fifo.messages.push_back((value.clone(), stamp.clone()));
            }
        }
        for &counter in &step.signals {
            self.ranks[rank as usize].signalled[counter as usize].push(stamp.clone());
        }
    }

    /// Finds the lane's next step: in this tile, in the next one, or in the next call of its rank.
    fn advance(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        loop {
            if let Some(Visit { step, index, iterations }) = state.walk.next() {
                let Some(step) = step.at(&iterations) else {
                    unreachable!("a well-formed plan has such steps only")
                };
                let spot = Spot { rank: state.rank, lane: state.number, step: index, iterations };
                state.next = Some((spot, step));
                state.there.set(0);
                return;
            }
            state.tile += 1;
            state.ordinal = 0;
            if state.tile == self.shape.tiles {
                break;
            }
            state.walk = state.lane.walk();
        }
        let rank = &mut self.ranks[state.rank as usize];
        rank.running -= 1;
        if rank.running == 0 {
            let number = state.rank;
            self.leave(number);
        }
    }

    /// Starts a rank's next call: its user, whose acts count as the first lane's, fills the input, and its lanes begin.
    fn enter(&mut self, rank: u32) {
        let RankState { lanes, call, .. } = &self.ranks[rank as usize];
        let (lanes, call) = (lanes.clone(), *call);
        let gives = self.plan.collective.gives(rank);
        // Outputs first: where both are one buffer, the input is what the user writes there.
        for (buffer, chunk, tile) in self.user_chunks() {
            let cell = self.cell(rank, buffer, tile, chunk);
            self.domain.touch(lanes.start, None, cell, Access::Write);
            let home = Cell { rank, buffer, tile, chunk };
            let value = (buffer == Buffer::Input && gives).then(|| self.domain.fresh(call, home));
            let position = self.position(cell);
            self.cells[position] = value;
        }
        self.join(lanes.clone());
        let stamp = self.domain.stamp(lanes.start);
        self.ranks[rank as usize].entered.push(stamp);
        self.ranks[rank as usize].running = lanes.len();
        for lane in lanes {
            let state = &mut self.lanes[lane];
            state.tile = 0;
            state.ordinal = 0;
            state.walk = state.lane.walk();
            self.advance(lane);
        }
    }

    /// Returns from a rank's call: its user looks at the buffers, and enters the next call if there is one.
    fn leave(&mut self, rank: u32) {
        let RankState { lanes, call, .. } = &mut self.ranks[rank as usize];
        let (lanes, done) = (lanes.clone(), *call);
        *call += 1;
        self.join(lanes.clone());
        let collective = self.plan.collective;
        for (buffer, chunk, tile) in self.user_chunks() {
            let cell = self.cell(rank, buffer, tile, chunk);
            self.domain.touch(lanes.start, None, cell, Access::Read);
            let looks = match buffer {
                Buffer::Input => collective.gives(rank) && self.shape.aliasing == Aliasing::OutOfPlace,
                _ => collective.gets(rank),
            };
            if looks {
                let position = self.position(cell);
                let home = Cell { rank, buffer, tile, chunk };
                self.domain.returned(done, home, self.cells[position].as_ref());
            }
        }
        if done + 1 < self.shape.calls {
            self.enter(rank);
        }
    }

    /// Lets lanes of a rank learn each other's past.
    fn join(&mut self, lanes: std::ops::Range<usize>) {
        let stamps: Vec<_> = lanes.clone().map(|lane| self.domain.stamp(lane)).collect();
        for lane in lanes {
            stamps.iter().for_each(|stamp| self.domain.meet(lane, stamp));
        }
    }

    fn lacks_wait(&self, state: &LaneState<'p>, wait: &Wait<u32>) -> Option<Blocked> {
        self.awaited(state, wait).is_none().then(|| Blocked::Waits(wait.clone()))
    }

    fn lacks_input(&self, state: &LaneState<'p>, input: &Input<u32>) -> Option<Blocked> {
        let Input::Received { from } = *input else { return None };
        let fifo = self.fifos.get(&(from, state.rank, state.lane.channel));
        fifo.is_none_or(|fifo| fifo.messages.is_empty()).then_some(Blocked::Empty { from })
    }

    fn lacks_output(&self, state: &LaneState<'p>, output: &Output<u32>) -> Option<Blocked> {
        let Output::Sent { to } = *output else { return None };
        let fifo = self.fifos.get(&(state.rank, to, state.lane.channel));
        fifo.is_some_and(|fifo| fifo.free == 0).then_some(Blocked::Full { to })
    }

    /// What a wait brings, once it is over.
    fn awaited(&self, state: &LaneState<'p>, wait: &Wait<u32>) -> Option<&D::Stamp> {
        let call = self.ranks[state.rank as usize].call;
        match *wait {
            Wait::Entered { rank } => self.ranks[rank as usize].entered.get(call as usize),
            Wait::Reached { rank, counter, count } => {
                let (rank, counter) = (&self.ranks[rank as usize], counter as usize);
                let round = (call * self.shape.tiles + state.tile) as usize;
                let before = round * rank.per_tile[counter] as usize;
                rank.signalled[counter].get(before + count as usize - 1)
            }
        }
    }

    fn fifo(&mut self, key: (u32, u32, u32)) -> &mut Fifo<D> {
        let depth = self.plan.channels[key.2 as usize].depth;
        let new = || Fifo { messages: VecDeque::new(), free: depth, given_back: VecDeque::new() };
        self.fifos.entry(key).or_insert_with(new)
    }

    /// Every chunk of the user's buffers: buffer, chunk, tile.
    fn user_chunks(&self) -> Vec<(Buffer, u32, u32)> {
        let (chunks, tiles) = (self.plan.chunks, self.shape.tiles);
        let of = |buffer, count| (0..tiles).flat_map(move |tile| (0..count).map(move |c| (buffer, c, tile)));
        of(Buffer::Output, chunks.output).chain(of(Buffer::Input, chunks.input)).collect()
    }

    /// The memory behind a chunk: in place, input and output lie in the larger of the two.
    fn cell(&self, rank: u32, buffer: Buffer, tile: u32, chunk: u32) -> Cell {
        if buffer == Buffer::Scratch {
            return Cell { rank, buffer, tile: 0, chunk };
        }
        if self.shape.aliasing == Aliasing::OutOfPlace {
            return Cell { rank, buffer, tile, chunk };
        }
        let per_block = self.plan.chunks_per_block();
        let (buffer, block) = self.plan.collective.in_place(rank, buffer, chunk / per_block);
        Cell { rank, buffer, tile, chunk: block * per_block + chunk % per_block }
    }

    fn position(&self, cell: Cell) -> usize {
        cell_position(self.plan, self.shape, cell)
    }
}

/// Where a cell stands among all cells of a machine of this shape.
pub(crate) fn cell_position(plan: WellFormed<'_>, shape: Shape, cell: Cell) -> usize {
    let (chunks, tiles) = (plan.chunks, shape.tiles as usize);
    let [input, output, scratch] = [chunks.input, chunks.output, chunks.scratch].map(|count| count as usize);
    let first = cell.rank as usize * (tiles * (input + output) + scratch);
    let (tile, chunk) = (cell.tile as usize, cell.chunk as usize);
    first
        + match cell.buffer {
            Buffer::Input => tile * input + chunk,
            Buffer::Output => tiles * input + tile * output + chunk,
            Buffer::Scratch => tiles * (input + output) + chunk,
        }
}
