//! The machine: the position of every lane, all FIFOs, counters and numbers, and the atomic actions of actors.

use super::Schedule;
use super::fifo::Fifo;
use super::flat::{CHUNK, Chaos, End, FlatStep, FlatWait};
use super::lane::{LaneState, Phase, Publication};
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

impl<'c> Machine<'c> {
    fn new(chaos: &'c Chaos, seed: u64) -> Self {
        let mut memory = vec![0; chaos.words];
        let users = Users::new(chaos, seed, &mut memory);
        Self {
            chaos,
            memory,
            lanes: chaos.lanes.iter().map(|_| LaneState::new()).collect(),
            fifos: chaos.fifos.iter().map(|flat| Fifo::new(flat.depth)).collect(),
            counters: vec![0; chaos.signals_per_round.len()],
            users,
            // Independent of the scheduler's random numbers, or the order of publications would correlate with its choices.
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
            Phase::Take(index) => fifo_of(&lane.steps[state.step].inputs[index]).is_none_or(Fifo::can_take),
            Phase::Reserve(index) => {
                fifo_of(&lane.steps[state.step].outputs[index]).is_none_or(Fifo::can_reserve)
            }
            Phase::Read(_) | Phase::Write(_) | Phase::Publish(_) | Phase::Release(_) => true,
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

    /// Lets a runnable actor take one action.
    fn advance(&mut self, actor: usize) -> Result<(), Wrong> {
        let Some(state) = self.lanes.get_mut(actor) else {
            return self.users.advance(self.chaos, actor - self.lanes.len(), &mut self.memory);
        };
        let steps = &self.chaos.lanes[actor].steps;
        if let Phase::Outside = state.phase {
            state.phase = Phase::Wait(0);
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
                let slot = fifo_mut(&mut self.fifos, &step.inputs[index]).and_then(Fifo::take);
                state.taken.push(slot.unwrap_or_default());
                Phase::Take(index + 1)
            }
            Phase::Reserve(index) => {
                let slot = fifo_mut(&mut self.fifos, &step.outputs[index]).and_then(Fifo::reserve);
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
                    Publication::Message { fifo, slot } => self.fifos[fifo].publish(slot),
                    Publication::Signal { counter } => self.counters[counter] += 1,
                }
                Phase::Publish(index + 1)
            }
            Phase::Release(index) => {
                if let Some(fifo) = fifo_mut(&mut self.fifos, &step.inputs[index]) {
                    fifo.release(state.taken[index]);
                }
                Phase::Release(index + 1)
            }
        };
        self.settle(actor);
        Ok(())
    }

    /// Advances a lane to its next action, and notifies its user when the call is over.
    fn settle(&mut self, actor: usize) {
        let lane = &self.chaos.lanes[actor];
        if self.lanes[actor].settle(&lane.steps, self.chaos.shape.tiles, &mut self.random) {
            self.users.lane_returned(lane.rank);
        }
    }

    /// The outcome when no actor can run.
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
        if let Err(wrong) = self.users.check_after_calls(self.chaos, &self.memory) {
            return Outcome::Wrong(wrong);
        }
        for (fifo, flat) in self.fifos.iter().zip(&self.chaos.fifos) {
            if fifo.has_messages() {
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
