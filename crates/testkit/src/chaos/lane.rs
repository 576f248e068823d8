//! The position of a lane in its program.
//!
//! A step goes through its phases in order: pass the waits; take the messages; reserve the slots; then for each number
//! of the chunk read every input, combine from left to right, write every output; then publish messages and signals,
//! in any order; then release the received slots. Other actors may run between any two of these actions.

use super::flat::{CHUNK, End, FlatStep};
use super::random::Random;

pub(super) struct LaneState {
    pub(super) call: u32,
    pub(super) tile: u32,
    pub(super) step: usize,
    pub(super) phase: Phase,
    /// The index of the current number in the chunk, and its partial result, as bits.
    pub(super) element: usize,
    pub(super) result: u32,
    /// The FIFO slot of each input and each output; 0 for memory.
    pub(super) taken: Vec<usize>,
    pub(super) reserved: Vec<usize>,
    pub(super) publications: Vec<Publication>,
}

/// The next action of a lane, with the index of the wait, input, output or publication that it concerns.
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
    Release(usize),
}

/// A message or signal that the lane publishes after its outputs are complete.
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

    /// Advances to the next action. Returns whether the lane has finished the call.
    pub(super) fn settle(&mut self, steps: &[FlatStep], tiles: u32, random: &mut Random) -> bool {
        loop {
            let Some(step) = steps.get(self.step) else {
                // The tile is complete. An empty lane skips all other tiles.
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
                Phase::Publish(index) if index == self.publications.len() => Phase::Release(0),
                Phase::Release(index) if index == step.inputs.len() => {
                    self.step += 1;
                    self.taken.clear();
                    self.reserved.clear();
                    Phase::Wait(0)
                }
                Phase::Release(index) if memory(&step.inputs, index) => Phase::Release(index + 1),
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
