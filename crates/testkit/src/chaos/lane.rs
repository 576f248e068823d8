//! A lane's place in its program.
//!
//! A step goes through its phases in order: pass the waits; take the messages; reserve the slots; then for each number
//! of the chunk read every input, combine from left to right, write every output; then publish messages and signals,
//! in any order; then give the received slots back. Between any two of these things other actors may run.

use super::flat::{CHUNK, End, FlatStep};
use super::random::Random;

pub(super) struct LaneState {
    pub(super) call: u32,
    pub(super) tile: u32,
    pub(super) step: usize,
    pub(super) phase: Phase,
    /// Which number of the chunk is being moved, and what it has come to so far, as bits.
    pub(super) element: usize,
    pub(super) result: u32,
    /// The slot behind each input and each output; of no meaning where that is memory.
    pub(super) taken: Vec<usize>,
    pub(super) reserved: Vec<usize>,
    pub(super) publications: Vec<Publication>,
}

/// What a lane does next, and to which of the step's waits, inputs, outputs or publications.
#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// It is not in a call.
    Outside,
    Wait(usize),
    Take(usize),
    Reserve(usize),
    Read(usize),
    Write(usize),
    Publish(usize),
    GiveBack(usize),
}

/// What others may learn once the outputs are in place.
#[derive(Clone, Copy)]
pub(super) enum Publication {
    Message { fifo: usize, slot: usize },
    Signal { counter: usize },
}

impl LaneState {
    pub(super) fn new() -> Self {
        Self {
            call: 0,
            tile: 0,
            step: 0,
            phase: Phase::Outside,
            element: 0,
            result: 0,
            taken: Vec::new(),
            reserved: Vec::new(),
            publications: Vec::new(),
        }
    }

    /// Goes to the next thing to do, past all that is nothing. Returns whether the call is over for this lane.
    pub(super) fn settle(&mut self, steps: &[FlatStep], tiles: u32, random: &mut Random) -> bool {
        loop {
            let Some(step) = steps.get(self.step) else {
                // A tile is over. An empty lane has nothing to do in the others either.
                (self.step, self.tile) = (0, self.tile + 1);
                if self.tile < tiles && !steps.is_empty() {
                    continue;
                }
                (self.tile, self.call, self.phase) = (0, self.call + 1, Phase::Outside);
                return true;
            };
            let memory = |ends: &[End], index: usize| matches!(ends[index], End::Memory { .. });
            self.phase = match self.phase {
                Phase::Wait(index) if index == step.waits.len() => Phase::Take(0),
                Phase::Take(index) if index == step.inputs.len() => Phase::Reserve(0),
                Phase::Take(index) if memory(&step.inputs, index) => {
                    self.taken.push(0);
                    Phase::Take(index + 1)
                }
                Phase::Reserve(index) if index == step.outputs.len() => {
                    self.element = 0;
                    self.publications.clear();
                    self.publications.extend(publications(step, &self.reserved));
                    random.shuffle(&mut self.publications);
                    if step.inputs.is_empty() { Phase::Publish(0) } else { Phase::Read(0) }
                }
                Phase::Reserve(index) if memory(&step.outputs, index) => {
                    self.reserved.push(0);
                    Phase::Reserve(index + 1)
                }
                Phase::Read(index) if index == step.inputs.len() => Phase::Write(0),
                Phase::Write(index) if index == step.outputs.len() => {
                    self.element += 1;
                    if self.element == CHUNK { Phase::Publish(0) } else { Phase::Read(0) }
                }
                Phase::Publish(index) if index == self.publications.len() => Phase::GiveBack(0),
                Phase::GiveBack(index) if index == step.inputs.len() => {
                    self.step += 1;
                    self.taken.clear();
                    self.reserved.clear();
                    Phase::Wait(0)
                }
                Phase::GiveBack(index) if memory(&step.inputs, index) => Phase::GiveBack(index + 1),
                _ => return false,
            };
        }
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
