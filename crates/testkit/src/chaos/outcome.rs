//! The outcome of a run.

use std::fmt;

use thiserror::Error;

use super::Malformed;

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Every call on every rank returned the right result.
    Ok,
    /// No actor can run, and some lanes have not finished.
    Deadlock(Deadlock),
    /// A result is wrong, or memory was changed that should not.
    Wrong(Wrong),
    /// The plan names things that do not exist, so it cannot start.
    Malformed(Malformed),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Ok => f.write_str("ok"),
            Outcome::Deadlock(deadlock) => write!(f, "deadlock: {deadlock}"),
            Outcome::Wrong(wrong) => write!(f, "wrong: {wrong}"),
            Outcome::Malformed(malformed) => write!(f, "malformed: {malformed}"),
        }
    }
}

/// The blocked lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The lanes, with their positions.
    pub stuck: Vec<Stuck>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, stuck) in self.stuck.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let Stuck { rank, lane, call, tile, step } = stuck;
            write!(f, "{comma}rank {rank} lane {lane} in call {call} tile {tile} at its step {step}")?;
        }
        Ok(())
    }
}

/// A blocked lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its rank.
    pub rank: usize,
    /// Which of the rank's lanes.
    pub lane: usize,
    /// In which call.
    pub call: u32,
    /// In which tile.
    pub tile: u32,
    /// At which step, counted as they run.
    pub step: usize,
}

/// What was wrong.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Wrong {
    /// The output is not the sum.
    #[error(
        "rank {rank} returned {found} instead of {expected} from call {call}, tile {tile}, number {index}"
    )]
    Sum {
        /// Where.
        rank: usize,
        /// In which call.
        call: u32,
        /// In which tile.
        tile: u32,
        /// Which number of the tile's output.
        index: usize,
        /// The sum of all inputs.
        expected: f64,
        /// The value found.
        found: f32,
    },
    /// The sum is right to within rounding, but not the same on all ranks.
    #[error(
        "rank {rank} returned other bits than another rank from call {call}, tile {tile}, number {index}"
    )]
    Bits {
        /// The later rank.
        rank: usize,
        /// In which call.
        call: u32,
        /// In which tile.
        tile: u32,
        /// Which number of the tile's output.
        index: usize,
    },
    /// An input was written, though it is not part of the output.
    #[error("rank {rank}'s input was changed in call {call}")]
    Input {
        /// Whose.
        rank: usize,
        /// In which call.
        call: u32,
    },
    /// Buffers were written while they belonged to the user.
    #[error("rank {rank}'s buffers were written while it was in no call, after {returned} calls")]
    BetweenCalls {
        /// Whose.
        rank: usize,
        /// How many calls had returned on that rank.
        returned: u32,
    },
    /// A rank left a barrier before all ranks had entered it.
    #[error("rank {rank} left the barrier of call {call} before rank {other} had entered it")]
    Early {
        /// The rank that left.
        rank: usize,
        /// Which call.
        call: u32,
        /// A rank that had not entered.
        other: usize,
    },
    /// A message was never taken.
    #[error("a message from rank {from} to rank {to} was never taken")]
    Leftover {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
}
