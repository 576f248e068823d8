//! Elements: the oracle. Every chunk holds real numbers, and steps combine them as an executor would, in the same
//! order, so that results can be compared bit by bit.

use std::rc::Rc;

use crate::Verified;
use crate::cut::Cut;
use crate::interpret::{Access, Domain, Event, Machine, Shape};
use crate::plan::{Aliasing, Buffer};
use crate::refusal::{Cell, Spot};

/// What a call should give: runs a plan on real elements.
///
/// `inputs` holds one buffer per rank, all of the same length; `cut` must be the executor's, since it decides the
/// order of additions. Returns each rank's output, and the steps in an order they may run in.
///
/// # Panics
/// If the number of inputs is not the plan's number of ranks.
pub fn oracle<T: Copy>(
    plan: &Verified,
    cut: Cut,
    aliasing: Aliasing,
    inputs: &[Vec<T>],
    combine: impl Fn(T, T) -> T,
) -> (Vec<Vec<T>>, Vec<Event>) {
    assert_eq!(inputs.len(), plan.ranks as usize, "one input per rank");
    let shape = Shape { calls: 1, tiles: cut.tiles() as u32, aliasing };
    let domain = Elements { inputs, outputs: inputs.to_vec(), cut, combine };
    let mut machine = Machine::new(plan.well_formed(), shape, domain);
    let mut events = Vec::new();
    let ran = machine.run(|_, event, _| {
        events.push(event);
        true
    });
    assert!(ran.is_ok() && machine.blocked().is_empty(), "a verified plan runs to its end");
    (machine.into_domain().outputs, events)
}

struct Elements<'i, T, F> {
    inputs: &'i [Vec<T>],
    outputs: Vec<Vec<T>>,
    cut: Cut,
    combine: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Domain for Elements<'_, T, F> {
    type Value = Rc<[T]>;
    type Stamp = ();

    fn fresh(&mut self, _call: u32, cell: Cell) -> Rc<[T]> {
        let range = self.cut.range(cell.tile as usize, cell.chunk as usize);
        self.inputs[cell.rank as usize][range].into()
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[Rc<[T]>]) -> Rc<[T]> {
        let Some((first, others)) = inputs.split_first() else { return Rc::new([]) };
        let fold = |(at, &value): (usize, &T)| {
            others.iter().fold(value, |sum, other| (self.combine)(sum, other[at]))
        };
        first.iter().enumerate().map(fold).collect()
    }

    fn returned(&mut self, _call: u32, cell: Cell, value: Option<&Rc<[T]>>) {
        if let (Buffer::Output, Some(value)) = (cell.buffer, value) {
            let range = self.cut.range(cell.tile as usize, cell.chunk as usize);
            self.outputs[cell.rank as usize][range].copy_from_slice(value);
        }
    }

    fn stamp(&mut self, _lane: usize) {}
    fn meet(&mut self, _lane: usize, _stamp: &()) {}
    fn touch(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &Rc<[T]>) {}
}
