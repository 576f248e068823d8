//! How many ranks' inputs each step's result combines. The step that combines all of them finishes the result (divides an average, say);
//! from then on it is only copied.

use weftlink_plan::interpret::{Access, Domain, Machine, Shape};
use weftlink_plan::{Cell, Spot, Verified};

/// The ranks that each step's result combines, by rank, lane and the order of steps in a tile; 0 for steps that only synchronise.
pub(crate) fn contributions_of_steps(plan: &Verified) -> Vec<Vec<Vec<u32>>> {
    let lanes = plan.programs.iter().map(|program| vec![Vec::new(); program.lanes.len()]);
    let mut contributions: Vec<Vec<Vec<_>>> = lanes.collect();
    let shape = Shape { calls: 1, tiles: 1, aliasing: plan.aliasing[0] };
    let ran = Machine::new(plan.well_formed(), shape, Contributions).run(|_, event, ranks| {
        contributions[event.rank as usize][event.lane as usize].push(ranks.unwrap_or(0));
        true
    });
    assert!(ran.is_ok(), "a verified plan runs to its end");
    contributions
}

struct Contributions;

impl Domain for Contributions {
    type Value = u32;
    type Stamp = ();

    fn initial(&mut self, _call: u32, _cell: Cell) -> u32 {
        1
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[u32]) -> u32 {
        inputs.iter().sum()
    }

    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&u32>) {}
    fn stamp(&mut self, _lane: usize) {}
    fn join(&mut self, _lane: usize, _stamp: &()) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &u32) {}
}
