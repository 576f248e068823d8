//! Elements: the oracle. Every chunk holds real numbers, and steps combine them as an executor would, in the same
//! order, so that results can be compared bit by bit.

use std::ops::Range;
use std::rc::Rc;

use crate::Verified;
use crate::cut::Cut;
use crate::interpret::{Access, Domain, Event, Machine, Shape};
use crate::plan::{Aliasing, Buffer};
use crate::refusal::{Cell, Spot};

/// What a call should give: runs a plan on real elements.
///
/// `inputs` holds one buffer per rank, of as many elements as its blocks have together (none for a rank that gives
/// nothing); `cut` must be the executor's cut of one block, since it decides the order of additions. Returns each rank's
/// output (empty for one that gets nothing), and the steps in an order they may run in.
///
/// # Panics
/// If the number or the lengths of inputs are not the plan's.
pub fn oracle<T: Copy>(
    plan: &Verified,
    cut: Cut,
    aliasing: Aliasing,
    inputs: &[Vec<T>],
    combine: impl Fn(T, T) -> T,
) -> (Vec<Vec<T>>, Vec<Event>) {
    assert_eq!(inputs.len(), plan.ranks as usize, "one input per rank");
    let (input, output) = plan.collective.blocks(plan.ranks);
    let length = |blocks: u32, has: bool| if has { blocks as usize * cut.count() } else { 0 };
    for (rank, buffer) in (0..).zip(inputs) {
        assert_eq!(buffer.len(), length(input, plan.collective.gives(rank)), "the input of rank {rank}");
    }
    let outputs =
        (0..plan.ranks).map(|rank| vec![None; length(output, plan.collective.gets(rank))]).collect();
    let shape = Shape { calls: 1, tiles: cut.tiles() as u32, aliasing };
    let domain = Elements { inputs, outputs, cut, per_block: plan.chunks_per_block(), combine };
    let mut machine = Machine::new(plan.well_formed(), shape, domain);
    let mut events = Vec::new();
    let ran = machine.run(|_, event, _| {
        events.push(event);
        true
    });
    assert!(ran.is_ok() && machine.blocked().is_empty(), "a verified plan runs to its end");
    let outputs = machine.into_domain().outputs;
    let whole = |output: Vec<Option<T>>| output.into_iter().flatten().collect::<Vec<T>>();
    (outputs.into_iter().map(whole).collect(), events)
}

struct Elements<'i, T, F> {
    inputs: &'i [Vec<T>],
    outputs: Vec<Vec<Option<T>>>,
    cut: Cut,
    per_block: u32,
    combine: F,
}

impl<T, F> Elements<'_, T, F> {
    /// Where a chunk lies in its buffer.
    fn range(&self, cell: Cell) -> Range<usize> {
        let (block, index) = (cell.chunk / self.per_block, cell.chunk % self.per_block);
        let range = self.cut.range(cell.tile as usize, index as usize);
        let first = block as usize * self.cut.count();
        first + range.start..first + range.end
    }
}

impl<T: Copy, F: Fn(T, T) -> T> Domain for Elements<'_, T, F> {
    type Value = Rc<[T]>;
    type Stamp = ();

    fn fresh(&mut self, _call: u32, cell: Cell) -> Rc<[T]> {
        self.inputs[cell.rank as usize][self.range(cell)].into()
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
            let range = self.range(cell);
            let values = value.iter().map(|&value| Some(value));
            self.outputs[cell.rank as usize][range]
                .iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to = value);
        }
    }

    fn stamp(&mut self, _lane: usize) {}
    fn meet(&mut self, _lane: usize, _stamp: &()) {}
    fn touch(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &Rc<[T]>) {}
}
