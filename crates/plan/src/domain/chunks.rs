//! Chunk numbers: which chunk of the user's data each step is about. Chunks at the end of a buffer are shorter, so an
//! executor needs this to know how many elements a step moves when it has only a message or scratch to look at.

use crate::Verified;
use crate::interpret::{Access, Domain, Machine, Shape};
use crate::refusal::{Cell, Spot};

/// The chunk that each step is about, by rank, lane and the order of steps in a tile; nothing for steps that move
/// nothing.
pub fn chunks_of_steps(plan: &Verified) -> Vec<Vec<Vec<Option<u32>>>> {
    let lanes = plan.programs.iter().map(|program| vec![Vec::new(); program.lanes.len()]);
    let mut chunks: Vec<Vec<Vec<_>>> = lanes.collect();
    let shape = Shape { calls: 1, tiles: 1, aliasing: plan.aliasing[0] };
    let ran = Machine::new(plan.well_formed(), shape, Chunks).run(|_, event, chunk| {
        chunks[event.rank as usize][event.lane as usize].push(chunk);
        true
    });
    assert!(ran.is_ok(), "a verified plan runs to its end");
    chunks
}

struct Chunks;

impl Domain for Chunks {
    type Value = u32;
    type Stamp = ();

    fn fresh(&mut self, _call: u32, cell: Cell) -> u32 {
        cell.chunk
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[u32]) -> u32 {
        inputs[0]
    }

    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&u32>) {}
    fn stamp(&mut self, _lane: usize) {}
    fn meet(&mut self, _lane: usize, _stamp: &()) {}
    fn touch(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &u32) {}
}
