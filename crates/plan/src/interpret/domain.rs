//! The domain of a run: the values that chunks hold, and what lanes learn of each other when they synchronise.

use crate::classes::Turn;
use crate::refusal::{Cell, Spot};

/// What the machine computes with.
pub trait Domain {
    /// What a chunk holds.
    type Value: Clone;
    /// What a message, a free slot or a counter carries of its writer's past.
    type Stamp: Clone;
    /// Whether chunks are remembered. If not, each holds what a [fresh](Domain::fresh) one does, and nobody looks at results.
    const REMEMBERS: bool = true;
    /// Whether lanes learn from each other. If not, [`meet`](Domain::meet) and [`credit`](Domain::credit) are not called.
    const LEARNS: bool = true;

    /// What the user of `cell.rank` has put into a chunk of its input before a call.
    fn fresh(&mut self, call: u32, cell: Cell) -> Self::Value;
    /// The inputs of a step combined, from left to right.
    fn reduce(&mut self, spot: &Spot, inputs: &[Self::Value]) -> Self::Value;
    /// What the members of a group hold, combined by a switch in whatever order.
    fn reduce_unordered(&mut self, spot: &Spot, inputs: &[Self::Value]) -> Self::Value {
        self.reduce(spot, inputs)
    }
    /// What a rank's user finds in a chunk of input or output when a call returns.
    fn returned(&mut self, call: u32, cell: Cell, value: Option<&Self::Value>);

    /// A rank enters a call, as seen by one of its lanes.
    fn entered(&mut self, _rank: u32, _lane: usize) {}
    /// A rank's call is over, as seen by one of its lanes, which knows all that the others know.
    fn left(&mut self, _call: u32, _rank: u32, _lane: usize) {}

    /// What a representative holds, as another rank of its class holds it. Only needed to run by [classes](crate::classes).
    fn turned(&mut self, value: &Self::Value, _turn: Turn) -> Self::Value {
        value.clone()
    }
    /// What a representative knows, as another rank of its class knows it.
    fn turned_stamp(&mut self, stamp: &Self::Stamp, _turn: Turn) -> Self::Stamp {
        stamp.clone()
    }

    /// The past of a lane as of now, to be carried elsewhere.
    fn stamp(&mut self, lane: usize) -> Self::Stamp;
    /// A lane has seen a stamp: what it carries has happened before everything the lane does from now on.
    fn meet(&mut self, lane: usize, stamp: &Self::Stamp);
    /// A lane fills a slot that its receiver gave back, and has seen what that one knew.
    fn credit(&mut self, lane: usize, stamp: &Self::Stamp) {
        self.meet(lane, stamp);
    }
    /// A lane (or, between calls, the user of its rank) reads or writes memory.
    fn touch(&mut self, lane: usize, spot: Option<&Spot>, cell: Cell, access: Access);
    /// A step puts its result into memory.
    fn stored(&mut self, spot: &Spot, cell: Cell, value: &Self::Value);
}

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its value is used.
    Read,
    /// It gets a new value.
    Write,
}
