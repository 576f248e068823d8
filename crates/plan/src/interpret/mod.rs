//! The interpreter: the one meaning of a plan.
//!
//! A [`Machine`] runs all ranks of a plan, for a number of calls and tiles, over a [`Domain`] that defines what a chunk
//! holds and what a synchronisation carries: expressions and vector clocks for the verifier, elements for the oracle,
//! time for a simulator. It has no schedule of its own: [`Machine::ready`] says whether a lane can take its next step and
//! [`Machine::fire`] takes it. Plans synchronise only through single-writer FIFOs and counters, so every order gives the
//! same values. [`Machine::run`] takes steps round robin.
//!
//! A lane runs its program once per tile and does not wait for the rank's other lanes between tiles. When all lanes of a
//! rank have finished the last tile, the call returns on that rank, its user reads the result and enters the next call
//! at once. User buffers have one region per tile, the same in each call; all tiles and calls share scratch and FIFO
//! slots.

mod calls;
mod domain;
mod edges;
mod fifo;
mod memory;

use rustc_hash::FxHashMap;

use self::fifo::Fifo;
use crate::classes::Classes;
use crate::plan::{Aliasing, Grouped, Input, Lane, Op, Output, Place, Remote, Step, Wait};
use crate::refusal::{Cell, Spot};
use crate::walk::Walk;
use crate::well_formed::WellFormed;

pub use self::domain::{Access, Domain};
pub(crate) use self::memory::cell_position;

/// The size of a run, and how buffers are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Calls, one after the other, on the same buffers.
    pub calls: u32,
    /// Tiles of each call.
    pub tiles: u32,
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
}

/// A step that a lane has taken.
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
    /// The number of steps that the lane took in this tile before.
    pub ordinal: u32,
}

/// A step and its result, returned by [`Machine::take`].
pub struct Taken<D: Domain> {
    /// Rank, lane, call and tile.
    pub event: Event,
    /// The result, unless the step only synchronises.
    pub result: Option<D::Value>,
    /// The step.
    pub step: Step<u32>,
}

/// Why a lane cannot take its next step now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The lane has finished all calls, or has finished a call that other lanes of its rank are still in.
    Finished,
    /// A counter is below the threshold, or a rank has not entered.
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

/// A happens-before edge from another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A wait for a counter, or for a rank to enter.
    Wait,
    /// A message.
    Message,
    /// A slot that the receiver has freed.
    Credit,
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
    /// The representatives.
    ranks: Vec<RankState<D>>,
    fifos: Vec<Fifo<D>>,
    /// By source, target and channel; the source is a representative.
    fifo_numbers: FxHashMap<(u32, u32, u32), u32>,
    /// Lanes that waited for a FIFO and can be polled again.
    woken: Vec<u32>,
    cells: Vec<Option<D::Value>>,
}

struct LaneState<'p> {
    rank: u32,
    number: u32,
    lane: &'p Lane,
    walk: Walk<'p>,
    /// The next step; nothing once the lane has finished its rank's call.
    next: Option<(Spot, Step<u32>)>,
    /// How many of that step's waits, inputs and outputs, in this order, are satisfied. A satisfied one stays so until the
    /// step is taken, so the next poll continues here; steps with many of them are polled often.
    satisfied: std::cell::Cell<usize>,
    /// For each received input and each sent output of that step, the peer and the number of the FIFO. Kept from step to step,
    /// because a lane mostly has the same peers.
    sources: Vec<(u32, u32)>,
    targets: Vec<(u32, u32)>,
    tile: u32,
    ordinal: u32,
}

struct RankState<D: Domain> {
    rank: u32,
    lanes: std::ops::Range<usize>,
    call: u32,
    /// Lanes that have not finished the call.
    running: usize,
    /// The stamp of the rank's entry into each call, and of the k-th signal of each counter.
    entered: Vec<D::Stamp>,
    signalled: Vec<Vec<D::Stamp>>,
    /// Signals of each counter in one tile.
    per_tile: Vec<u32>,
}

impl<'p, D: Domain> Machine<'p, D> {
    /// A machine whose ranks have all entered their first call.
    pub fn new(plan: WellFormed<'p>, shape: Shape, domain: D) -> Self {
        Self::by_classes(plan, shape, domain, Classes::trivial(plan.ranks))
    }

    /// The same by classes: only their representatives run.
    pub fn by_classes(plan: WellFormed<'p>, shape: Shape, domain: D, classes: Classes) -> Self {
        let mut lanes = Vec::new();
        let mut ranks = Vec::new();
        for &rank in classes.representatives() {
            let program = &plan.plan().programs[rank as usize];
            let first = lanes.len();
            for (number, lane) in (0..).zip(&program.lanes) {
                let walk = lane.walk();
                let satisfied = std::cell::Cell::new(0);
                let (sources, targets) = (Vec::new(), Vec::new());
                let (next, tile, ordinal) = (None, 0, 0);
                lanes.push(LaneState {
                    rank,
                    number,
                    lane,
                    walk,
                    next,
                    satisfied,
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
        let count = if D::KEEPS_VALUES { ranks.len() * (per_rank + chunks.scratch as usize) } else { 0 };
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

    /// Takes steps round robin until no lane is ready; [`Machine::blocked`] says whether the run is complete. Calls
    /// `observe` with each step and its result, and stops when it returns false.
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

    /// The number of lanes of all ranks.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The position of a rank's lane among all lanes; nothing if the rank is not a representative.
    pub fn lane_of(&self, rank: u32, lane: u32) -> Option<usize> {
        let range = self.ranks.iter().find(|state| state.rank == rank)?.lanes.clone();
        Some(range.start + lane as usize).filter(|position| range.contains(position))
    }

    /// Whether a lane can take its next step now, and if not, why.
    pub fn ready(&self, lane: usize) -> Result<(), Blocked> {
        let state = &self.lanes[lane];
        let Some((_, step)) = &state.next else { return Err(Blocked::Finished) };
        let (waits, inputs) = (step.waits.len(), step.waits.len() + step.inputs.len());
        for number in state.satisfied.get()..inputs + step.outputs.len() {
            let missing = if number < waits {
                self.missing_wait(state, &step.waits[number])
            } else if number < inputs {
                self.missing_input(state, number - waits, &step.inputs[number - waits])
            } else {
                self.missing_output(state, number - inputs, &step.outputs[number - inputs])
            };
            if let Some(blocked) = missing {
                return Err(blocked);
            }
            state.satisfied.set(number + 1);
        }
        Ok(())
    }

    /// Takes the next step of a lane that is [ready](Machine::ready), and returns its result if it has one.
    ///
    /// # Panics
    /// If the lane is not ready.
    pub fn fire(&mut self, lane: usize) -> Result<(Event, Option<D::Value>), Unset> {
        self.take(lane).map(|taken| (taken.event, taken.result))
    }

    /// The same as [`Machine::fire`], and returns the step too.
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

        for wait in step.waits.iter().filter(|_| D::JOINS_STAMPS) {
            let (Wait::Entered { rank: of } | Wait::Reached { rank: of, .. }) = *wait;
            let stamp = self.awaited(&self.lanes[lane], wait).cloned();
            stamp.iter().for_each(|stamp| self.join_turned(lane, stamp, self.classes.turn_of(of)));
        }
        for (number, output) in step.outputs.iter().enumerate() {
            if let Output::Sent { .. } = *output {
                let fifo = &mut self.fifos[self.lanes[lane].targets[number].1 as usize];
                // Slots that were never used come first: such a message does not depend on the receiver, even if the
                // receiver has already freed another slot in this run.
                let used_before = fifo.freed.len() == fifo.free as usize;
                let stamp = if used_before { fifo.freed.pop_front() } else { None };
                stamp.iter().filter(|_| D::JOINS_STAMPS).for_each(|stamp| self.domain.credit(lane, stamp));
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
                    self.join_turned(lane, &stamp, turn);
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

    /// The next step of a lane; nothing once the lane has finished.
    pub fn step(&self, lane: usize) -> Option<&Step<u32>> {
        self.lanes[lane].next.as_ref().map(|(_, step)| step)
    }

    /// The rank of a lane and the channel of its messages.
    pub fn rank_and_channel(&self, lane: usize) -> (u32, u32) {
        (self.lanes[lane].rank, self.lanes[lane].lane.channel)
    }

    /// The size of the run.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The classes of the ranks.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The domain, in the middle of a run.
    pub fn domain(&mut self) -> &mut D {
        &mut self.domain
    }

    /// The unfinished lanes that cannot take their next step, and why. Empty after a complete run.
    pub fn blocked(&self) -> Vec<(Spot, Blocked)> {
        let stuck = |lane: usize| Some((self.lanes[lane].next.as_ref()?.0.clone(), self.ready(lane).err()?));
        (0..self.lanes.len()).filter_map(stuck).collect()
    }

    /// The next step of every unfinished lane.
    pub fn pending(&self) -> Vec<&Spot> {
        self.lanes.iter().filter_map(|lane| lane.next.as_ref()).map(|(spot, _)| spot).collect()
    }

    /// The domain, at the end of a run.
    pub fn into_domain(self) -> D {
        self.domain
    }
}
