//! The oracle: every chunk holds elements, and steps combine them in the order in which an executor does, so that results
//! can be compared bit by bit.

use std::ops::Range;
use std::rc::Rc;

use crate::Verified;
use crate::collective::Promise;
use crate::cut::Cut;
use crate::interpret::{Access, Domain, Event, Machine, Shape};
use crate::plan::{Aliasing, Buffer};
use crate::reducer::Reducer;
use crate::refusal::{Cell, Spot};

/// The result that a call should give: runs a plan on elements, with all blocks cut in the same way.
///
/// `inputs` holds one buffer per rank, as long as its blocks together (empty for a rank without input blocks). `cut` must be
/// the executor's cut of one block, since it decides the order of additions. Returns each rank's output (empty for a rank
/// without output blocks), and the steps in an order in which they may run.
///
/// # Panics
/// If the number or the lengths of inputs do not match the plan.
pub fn oracle<T: Copy>(
    plan: &Verified,
    cut: Cut,
    aliasing: Aliasing,
    inputs: &[Vec<T>],
    combine: impl Fn(T, T) -> T + Send + Sync,
) -> (Vec<Vec<T>>, Vec<Event>) {
    oracle_uneven(plan, |_, _| cut, aliasing, inputs, combine)
}

/// The same for blocks of different lengths: `cuts` returns the cut of a block of a rank's input. Where blocks are reduced,
/// all ranks must cut them alike.
///
/// # Panics
/// If the number or the lengths of inputs do not match the plan.
pub fn oracle_uneven<T: Copy>(
    plan: &Verified,
    cuts: impl Fn(u32, u32) -> Cut,
    aliasing: Aliasing,
    inputs: &[Vec<T>],
    combine: impl Fn(T, T) -> T + Send + Sync,
) -> (Vec<Vec<T>>, Vec<Event>) {
    oracle_with(plan, cuts, aliasing, inputs, &Reducer::user_defined(true, combine))
}

/// The same for any reduction. Does not check whether the plan [allows](Verified::allows) it.
///
/// # Panics
/// If the number or the lengths of inputs do not match the plan.
pub fn oracle_with<T: Copy>(
    plan: &Verified,
    cuts: impl Fn(u32, u32) -> Cut,
    aliasing: Aliasing,
    inputs: &[Vec<T>],
    reducer: &Reducer<'_, T>,
) -> (Vec<Vec<T>>, Vec<Event>) {
    assert_eq!(inputs.len(), plan.ranks as usize, "one input per rank");
    let (collective, ranks) = (&plan.collective, plan.ranks);
    let of_input = |rank| (0..collective.gives(rank, ranks)).map(|block| cuts(rank, block)).collect();
    let of_output = |rank| {
        let cut = |block| match collective.promise(rank, ranks, block) {
            Some(Promise::Copy { rank, block }) => cuts(rank, block),
            Some(Promise::Reduction { block, .. }) => cuts(0, block),
            None => Cut::whole(0, 1, 1),
        };
        (0..collective.gets(rank, ranks)).map(cut).collect()
    };
    let cuts: [Vec<Vec<Cut>>; 2] = [(0..ranks).map(of_input).collect(), (0..ranks).map(of_output).collect()];
    let length = |cuts: &[Cut]| cuts.iter().map(Cut::count).sum::<usize>();
    for (rank, (buffer, cuts)) in inputs.iter().zip(&cuts[0]).enumerate() {
        assert_eq!(buffer.len(), length(cuts), "the input of rank {rank}");
    }
    let outputs = cuts[1].iter().map(|cuts| vec![None; length(cuts)]).collect();
    let tiles = cuts.iter().flatten().flatten().map(Cut::tiles).max().unwrap_or(1);
    let shape = Shape { calls: 1, tiles: tiles as u32, aliasing };
    let domain = Elements { plan, inputs, outputs, cuts, reducer };
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

struct Elements<'i, T> {
    plan: &'i Verified,
    inputs: &'i [Vec<T>],
    outputs: Vec<Vec<Option<T>>>,
    /// The cuts of the input and output blocks of each rank.
    cuts: [Vec<Vec<Cut>>; 2],
    reducer: &'i Reducer<'i, T>,
}

impl<T> Elements<'_, T> {
    /// The elements of a chunk in its buffer.
    fn range(&self, cell: Cell) -> Range<usize> {
        let per_block = self.plan.chunks_per_block();
        let (block, index) = ((cell.chunk / per_block) as usize, cell.chunk % per_block);
        let blocks = &self.cuts[usize::from(cell.buffer == Buffer::Output)][cell.rank as usize];
        let range = blocks[block].range(cell.tile as usize, index as usize);
        let first: usize = blocks[..block].iter().map(Cut::count).sum();
        first + range.start..first + range.end
    }
}

impl<T: Copy> Domain for Elements<'_, T> {
    type Value = Rc<[T]>;
    type Stamp = ();

    fn initial(&mut self, _call: u32, cell: Cell) -> Rc<[T]> {
        let input = &self.inputs[cell.rank as usize][self.range(cell)];
        if !self.plan.collective.reduces() {
            return input.into();
        }
        input.iter().map(|&value| self.reducer.before(cell.rank, value)).collect()
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[Rc<[T]>]) -> Rc<[T]> {
        let Some((first, others)) = inputs.split_first() else { return Rc::new([]) };
        let combine =
            |(at, &value): (usize, &T)| self.reducer.combine(value, others.iter().map(|other| other[at]));
        first.iter().enumerate().map(combine).collect()
    }

    fn returned(&mut self, _call: u32, cell: Cell, value: Option<&Rc<[T]>>) {
        if let (Buffer::Output, Some(value)) = (cell.buffer, value) {
            let range = self.range(cell);
            let block = cell.chunk / self.plan.chunks_per_block();
            let promised = self.plan.collective.promise(cell.rank, self.plan.ranks, block);
            let values = value.iter().map(|&value| match promised {
                Some(Promise::Reduction { below, .. }) => Some(self.reducer.after(value, below)),
                _ => Some(value),
            });
            self.outputs[cell.rank as usize][range]
                .iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to = value);
        }
    }

    fn stamp(&mut self, _lane: usize) {}
    fn join(&mut self, _lane: usize, _stamp: &()) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &Rc<[T]>) {}
}
