//! The trace check: the steps of a backend must be a valid run of the interpreter.
//!
//! The interpreter has no schedule of its own, so it can replay a backend's order of steps over all ranks: every step must be the next of its
//! lane, and must be ready at that point. This checks the order and the synchronisation of the compiled program.

use weftlink_plan::interpret::{Access, Domain, Event, Machine, Shape};
use weftlink_plan::{Cell, Spot, Verified};

/// Replays the steps of all ranks in one call, in the order in which they ran.
pub fn replay(plan: &Verified, shape: Shape, order: &[Event]) -> Result<(), String> {
    let mut machine = Machine::new(plan.well_formed(), shape, Nothing);
    for (position, taken) in order.iter().enumerate() {
        let lane = machine.lane_of(taken.rank, taken.lane);
        let lane = lane.ok_or_else(|| format!("{taken:?}: there is no such lane"))?;
        machine.ready(lane).map_err(|why| format!("step {position}, {taken:?}, was not ready: {why:?}"))?;
        let (event, _) = machine.fire(lane).map_err(|unset| format!("{taken:?}: {unset:?}"))?;
        if event != *taken {
            return Err(format!("step {position} was {taken:?}, but the lane's next is {event:?}"));
        }
    }
    match machine.pending().first() {
        None => Ok(()),
        Some(spot) => Err(format!("{spot} was never taken")),
    }
}

/// A domain without values and stamps.
struct Nothing;

impl Domain for Nothing {
    type Value = ();
    type Stamp = ();

    fn initial(&mut self, _call: u32, _cell: Cell) {}
    fn reduce(&mut self, _spot: &Spot, _inputs: &[()]) {}
    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&()>) {}
    fn stamp(&mut self, _lane: usize) {}
    fn join(&mut self, _lane: usize, _stamp: &()) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &()) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_plan::{Algorithm, Aliasing, Cut, domain::elements::oracle, verify};

    #[test]
    fn replay_accepts_the_interpreters_order_and_no_other() {
        let plan = verify(Algorithm::Ring.plan(3, 2)).unwrap();
        let cut = Cut::new(100, 6, 16, 16);
        let shape = Shape { calls: 1, tiles: cut.tiles() as u32, aliasing: Aliasing::InPlace };
        let inputs = vec![vec![1.0; 100]; 3];
        let (_, order) = oracle(&plan, cut, shape.aliasing, &inputs, |a: f32, b| a + b);
        assert_eq!(replay(&plan, shape, &order), Ok(()));

        assert!(replay(&plan, shape, &order[1..]).is_err());
        assert!(replay(&plan, shape, &order[..order.len() - 1]).unwrap_err().contains("never taken"));
        let mut swapped = order.clone();
        let last = swapped.len() - 1;
        swapped.swap(0, last);
        assert!(replay(&plan, shape, &swapped).is_err());
    }
}
