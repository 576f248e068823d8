//! The origin of each step's data: the chunk of some rank's input that it moves or combines. Blocks differ in length and
//! chunks at the end of a block are shorter, so an executor needs the origin to know how many elements a step moves from
//! a message or from scratch.

use crate::Verified;
use crate::interpret::{Access, Domain, Machine, Shape};
use crate::refusal::{Cell, Spot};
use crate::well_formed::WellFormed;

/// A chunk of a rank's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The rank; the first of those that were combined.
    pub rank: u32,
    /// The chunk of its input.
    pub chunk: u32,
}

/// The origin of each step's data, by rank, lane and the order of steps in a tile; nothing for steps that only synchronise.
pub fn origins_of_steps(plan: &Verified) -> Vec<Vec<Vec<Option<Origin>>>> {
    let origins = origins_of(plan.well_formed());
    assert!(origins.is_some(), "a verified plan runs to its end");
    origins.unwrap_or_default()
}

/// The same for a plan that may not have been proved, such as one of this crate's algorithms; nothing if it does not run.
pub fn origins_of(plan: WellFormed<'_>) -> Option<Vec<Vec<Vec<Option<Origin>>>>> {
    let lanes = plan.plan().programs.iter().map(|program| vec![Vec::new(); program.lanes.len()]);
    let mut origins: Vec<Vec<Vec<_>>> = lanes.collect();
    let shape = Shape { calls: 1, tiles: 1, aliasing: *plan.aliasing.first()? };
    let ran = Machine::new(plan, shape, Origins).run(|_, event, origin| {
        origins[event.rank as usize][event.lane as usize].push(origin);
        true
    });
    ran.is_ok().then_some(origins)
}

struct Origins;

impl Domain for Origins {
    type Value = Origin;
    type Stamp = ();

    fn initial(&mut self, _call: u32, cell: Cell) -> Origin {
        Origin { rank: cell.rank, chunk: cell.chunk }
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[Origin]) -> Origin {
        inputs[0]
    }

    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&Origin>) {}
    fn stamp(&mut self, _lane: usize) {}
    fn join(&mut self, _lane: usize, _stamp: &()) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &Origin) {}
}
