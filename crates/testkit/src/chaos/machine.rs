//! The machine: every lane's place in its program, every FIFO, counter and number, and the smallest things an actor
//! can do to them.
//!
//! A step goes through its phases in order: pass the waits; take the messages; reserve the slots; then for each number
//! of the chunk read every input, combine from left to right, write every output; then publish messages and signals,
//! in any order; then give the received slots back. Between any two of these things other actors may run.

use super::Schedule;
use super::flat::{CHUNK, Chaos, End, FlatStep, FlatWait};
use super::outcome::{Deadlock, Outcome, Stuck, Wrong};
use super::random::Random;
use super::schedule::Scheduler;
use super::user::Users;

impl Chaos {
    /// Runs the plan under a schedule.
    pub fn run(&self, schedule: Schedule) -> Outcome {
        // Actors are the lanes, then the users.
        let ranks: Vec<_> = self.lanes.iter().map(|lane| lane.rank).chain(0..self.ranks).collect();
        let mut scheduler = Scheduler::new(schedule, &ranks);
        let mut machine = Machine::new(self, schedule.seed);
        while let Some(actor) = scheduler.pick(|actor| machine.can_run(actor)) {
            if let Err(wrong) = machine.advance(actor) {
                return Outcome::Wrong(wrong);
            }
        }
        machine.outcome()
    }
}

struct Machine<'c> {
    chaos: &'c Chaos,
    /// All memory, as bits, so that copies keep garbage as it is.
    memory: Vec<u32>,
    lanes: Vec<LaneState>,
    fifos: Vec<Fifo>,
    counters: Vec<u64>,
    users: Users,
    random: Random,
}

struct LaneState {
    call: u32,
    tile: u32,
    step: usize,
    phase: Phase,
    /// Which number of the chunk is being moved, and what it has come to so far.
    element: usize,
    result: u32,
    /// The slot behind each input and output that is a message: its FIFO's slot number.
    taken: Vec<usize>,
    reserved: Vec<usize>,
    publications: Vec<Publication>,
}

#[derive(Clone, Copy)]
enum Phase {
    Outside,
    Wait(usize),
    Take(usize),
    Reserve(usize),
    Read(usize),
    Write(usize),
    Publish(usize),
    GiveBack(usize),
}

#[derive(Clone, Copy)]
enum Publication {
    Message { fifo: usize, slot: usize },
    Signal { counter: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Reserved,
    Full,
    Taken,
}

struct Fifo {
    slots: Vec<Slot>,
    /// How many slots were ever reserved, and how many messages ever taken.
    reserved: usize,
    taken: usize,
}

impl Fifo {
    fn next(&self, count: usize, state: Slot) -> Option<usize> {
        let slot = count.checked_rem(self.slots.len())?;
        (self.slots[slot] == state).then_some(slot)
    }
}

impl<'c> Machine<'c> {
    fn new(chaos: &'c Chaos, seed: u64) -> Self {
        let mut memory = vec![0; chaos.words];
        let users = Users::new(chaos, seed, &mut memory);
        let lane = |_: &_| LaneState {
            call: 0,
            tile: 0,
            step: 0,
            phase: Phase::Outside,
            element: 0,
            result: 0,
            taken: Vec::new(),
            reserved: Vec::new(),
            publications: Vec::new(),
        };
        let fifo = |depth| Fifo { slots: vec![Slot::Free; depth], reserved: 0, taken: 0 };
        Self {
            chaos,
            memory,
            lanes: chaos.lanes.iter().map(lane).collect(),
            fifos: chaos.fifos.iter().map(|flat| fifo(flat.depth)).collect(),
            counters: vec![0; chaos.signals_per_round.len()],
            users,
            // The scheduler's numbers must not be these, or publications would follow its choices.
            random: Random::new(!seed),
        }
    }

    fn can_run(&self, actor: usize) -> bool {
        let Some(state) = self.lanes.get(actor) else {
            return self.users.can_run(self.chaos, actor - self.lanes.len());
        };
        let lane = &self.chaos.lanes[actor];
        let fifo_of = |end: &End| match end {
            End::Fifo(fifo) => Some(&self.fifos[*fifo]),
            End::Memory { .. } => None,
        };
        match state.phase {
            Phase::Outside => self.users.entered(lane.rank) > state.call,
            Phase::Wait(index) => self.is_over(&lane.steps[state.step].waits[index], state),
            Phase::Take(index) => fifo_of(&lane.steps[state.step].inputs[index])
                .is_none_or(|fifo| fifo.next(fifo.taken, Slot::Full).is_some()),
            Phase::Reserve(index) => fifo_of(&lane.steps[state.step].outputs[index])
                .is_none_or(|fifo| fifo.next(fifo.reserved, Slot::Free).is_some()),
            Phase::Read(_) | Phase::Write(_) | Phase::Publish(_) | Phase::GiveBack(_) => true,
        }
    }

    fn is_over(&self, wait: &FlatWait, state: &LaneState) -> bool {
        match *wait {
            FlatWait::Entered { rank } => self.users.entered(rank) > state.call,
            FlatWait::Reached { counter, count } => {
                let round = u64::from(state.call) * u64::from(self.chaos.shape.tiles) + u64::from(state.tile);
                self.counters[counter] >= round * self.chaos.signals_per_round[counter] + count
            }
        }
    }

    /// Lets an actor that can run do one thing.
    fn advance(&mut self, actor: usize) -> Result<(), Wrong> {
        let Some(state) = self.lanes.get_mut(actor) else {
            return self.users.advance(self.chaos, actor - self.lanes.len(), &mut self.memory);
        };
        let steps = &self.chaos.lanes[actor].steps;
        if let Phase::Outside = state.phase {
            state.phase = Phase::Wait(0);
            (state.tile, state.step) = (0, 0);
            self.settle(actor);
            return Ok(());
        }
        let step: &FlatStep = &steps[state.step];
        let (tile, element) = (state.tile as usize, state.element);
        let address = |end: &End, slot: usize| match *end {
            End::Memory { base, stride } => base + tile * stride + element,
            End::Fifo(fifo) => self.chaos.fifos[fifo].base + slot * CHUNK + element,
        };
        state.phase = match state.phase {
            Phase::Outside => Phase::Outside,
            Phase::Wait(index) => Phase::Wait(index + 1),
            Phase::Take(index) => {
                let fifo = fifo_mut(&mut self.fifos, &step.inputs[index]);
                let slot = fifo.and_then(|fifo| {
                    let slot = fifo.next(fifo.taken, Slot::Full)?;
                    (fifo.slots[slot], fifo.taken) = (Slot::Taken, fifo.taken + 1);
                    Some(slot)
                });
                state.taken.push(slot.unwrap_or_default());
                Phase::Take(index + 1)
            }
            Phase::Reserve(index) => {
                let fifo = fifo_mut(&mut self.fifos, &step.outputs[index]);
                let slot = fifo.and_then(|fifo| {
                    let slot = fifo.next(fifo.reserved, Slot::Free)?;
                    (fifo.slots[slot], fifo.reserved) = (Slot::Reserved, fifo.reserved + 1);
                    Some(slot)
                });
                state.reserved.push(slot.unwrap_or_default());
                Phase::Reserve(index + 1)
            }
            Phase::Read(index) => {
                let bits = self.memory[address(&step.inputs[index], state.taken[index])];
                state.result = match index {
                    0 => bits,
                    _ => (f32::from_bits(state.result) + f32::from_bits(bits)).to_bits(),
                };
                Phase::Read(index + 1)
            }
            Phase::Write(index) => {
                self.memory[address(&step.outputs[index], state.reserved[index])] = state.result;
                Phase::Write(index + 1)
            }
            Phase::Publish(index) => {
                match state.publications[index] {
                    Publication::Message { fifo, slot } => self.fifos[fifo].slots[slot] = Slot::Full,
                    Publication::Signal { counter } => self.counters[counter] += 1,
                }
                Phase::Publish(index + 1)
            }
            Phase::GiveBack(index) => {
                if let Some(fifo) = fifo_mut(&mut self.fifos, &step.inputs[index]) {
                    fifo.slots[state.taken[index]] = Slot::Free;
                }
                Phase::GiveBack(index + 1)
            }
        };
        self.settle(actor);
        Ok(())
    }

    /// Takes a lane to the next thing that it has to do, past all that is nothing.
    fn settle(&mut self, actor: usize) {
        let lane = &self.chaos.lanes[actor];
        let state = &mut self.lanes[actor];
        loop {
            let Some(step) = lane.steps.get(state.step) else {
                // A tile is over. An empty lane has nothing to do in the others either.
                (state.step, state.tile) = (0, state.tile + 1);
                if state.tile < self.chaos.shape.tiles && !lane.steps.is_empty() {
                    continue;
                }
                (state.tile, state.call, state.phase) = (0, state.call + 1, Phase::Outside);
                self.users.lane_returned(lane.rank);
                return;
            };
            let memory = |ends: &[End], index: usize| matches!(ends[index], End::Memory { .. });
            state.phase = match state.phase {
                Phase::Wait(index) if index == step.waits.len() => Phase::Take(0),
                Phase::Take(index) if index == step.inputs.len() => Phase::Reserve(0),
                Phase::Take(index) if memory(&step.inputs, index) => {
                    state.taken.push(0);
                    Phase::Take(index + 1)
                }
                Phase::Reserve(index) if index == step.outputs.len() => {
                    state.element = 0;
                    state.publications.clear();
                    state.publications.extend(publications(step, &state.reserved));
                    self.random.shuffle(&mut state.publications);
                    if step.inputs.is_empty() { Phase::Publish(0) } else { Phase::Read(0) }
                }
                Phase::Reserve(index) if memory(&step.outputs, index) => {
                    state.reserved.push(0);
                    Phase::Reserve(index + 1)
                }
                Phase::Read(index) if index == step.inputs.len() => Phase::Write(0),
                Phase::Write(index) if index == step.outputs.len() => {
                    state.element += 1;
                    if state.element == CHUNK { Phase::Publish(0) } else { Phase::Read(0) }
                }
                Phase::Publish(index) if index == state.publications.len() => Phase::GiveBack(0),
                Phase::GiveBack(index) if index == step.inputs.len() => {
                    state.step += 1;
                    state.taken.clear();
                    state.reserved.clear();
                    Phase::Wait(0)
                }
                Phase::GiveBack(index) if memory(&step.inputs, index) => Phase::GiveBack(index + 1),
                _ => return,
            };
        }
    }

    /// What to say when nobody can run.
    fn outcome(&self) -> Outcome {
        let calls = self.chaos.shape.calls;
        let stuck: Vec<_> =
            self.lanes.iter().zip(&self.chaos.lanes).filter(|(state, _)| state.call < calls).collect();
        if !stuck.is_empty() {
            let stuck = stuck.into_iter().map(|(state, lane)| Stuck {
                rank: lane.rank,
                lane: lane.lane,
                call: state.call,
                tile: state.tile,
                step: state.step,
            });
            return Outcome::Deadlock(Deadlock { stuck: stuck.collect() });
        }
        if let Err(wrong) = self.users.look_again(self.chaos, &self.memory) {
            return Outcome::Wrong(wrong);
        }
        for (fifo, flat) in self.fifos.iter().zip(&self.chaos.fifos) {
            if fifo.slots.contains(&Slot::Full) {
                return Outcome::Wrong(Wrong::Leftover { from: flat.from, to: flat.to });
            }
        }
        Outcome::Ok
    }
}

fn fifo_mut<'f>(fifos: &'f mut [Fifo], end: &End) -> Option<&'f mut Fifo> {
    match end {
        End::Fifo(fifo) => Some(&mut fifos[*fifo]),
        End::Memory { .. } => None,
    }
}

fn publications<'s>(step: &'s FlatStep, reserved: &'s [usize]) -> impl Iterator<Item = Publication> + 's {
    let message = |(end, &slot): (&End, &usize)| match *end {
        End::Fifo(fifo) => Some(Publication::Message { fifo, slot }),
        End::Memory { .. } => None,
    };
    let signal = |&counter: &usize| Publication::Signal { counter };
    step.outputs.iter().zip(reserved).filter_map(message).chain(step.signals.iter().map(signal))
}
