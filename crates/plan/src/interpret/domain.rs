//! The domain of a run: the values that chunks hold, and what lanes learn of each other when they synchronise.

use crate::classes::Turn;
use crate::refusal::{Cell, Spot};

/// The values and stamps of a run.
pub trait Domain {
    /// The content of a chunk.
    type Value: Clone;
    /// The writer's past that a message, a freed slot or a counter carries.
    type Stamp: Clone;
    /// Whether memory holds values. If not, every read gives the [initial](Domain::initial) value, and results are not checked.
    const KEEPS_VALUES: bool = true;
    /// Whether lanes join stamps. If not, [`join`](Domain::join) and [`credit`](Domain::credit) are not called.
    const JOINS_STAMPS: bool = true;

    /// The value that the user of `cell.rank` writes into a chunk of its input before a call.
    fn initial(&mut self, call: u32, cell: Cell) -> Self::Value;
    /// The inputs of a step, combined from left to right.
    fn reduce(&mut self, spot: &Spot, inputs: &[Self::Value]) -> Self::Value;
    /// The values of a group's members, combined by a switch in any order.
    fn reduce_unordered(&mut self, spot: &Spot, inputs: &[Self::Value]) -> Self::Value {
        self.reduce(spot, inputs)
    }
    /// A rank's user reads a chunk of input or output after a call has returned.
    fn returned(&mut self, call: u32, cell: Cell, value: Option<&Self::Value>);

    /// A rank enters a call; `lane` is its first lane.
    fn entered(&mut self, _rank: u32, _lane: usize) {}
    /// A rank leaves a call; `lane` is its first lane, joined with all others.
    fn left(&mut self, _call: u32, _rank: u32, _lane: usize) {}

    /// A representative's value, turned to another rank of its class. Only needed to run by [classes](crate::classes).
    fn turned(&mut self, value: &Self::Value, _turn: Turn) -> Self::Value {
        value.clone()
    }
    /// A representative's stamp, turned to another rank of its class.
    fn turned_stamp(&mut self, stamp: &Self::Stamp, _turn: Turn) -> Self::Stamp {
        stamp.clone()
    }

    /// A lane's past up to now.
    fn stamp(&mut self, lane: usize) -> Self::Stamp;
    /// Adds a stamp to a lane's past: it happened before everything that the lane does from now on.
    fn join(&mut self, lane: usize, stamp: &Self::Stamp);
    /// The same for the stamp of a slot that the receiver has freed and the lane fills again.
    fn credit(&mut self, lane: usize, stamp: &Self::Stamp) {
        self.join(lane, stamp);
    }
    /// A lane (or, between calls, the user of its rank) reads or writes memory.
    fn access(&mut self, lane: usize, spot: Option<&Spot>, cell: Cell, access: Access);
    /// A step puts its result into memory.
    fn stored(&mut self, spot: &Spot, cell: Cell, value: &Self::Value);
}

/// A kind of memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Access {
    Read,
    Write,
}
