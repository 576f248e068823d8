//! What can be seen of a run.

use std::fmt;

use thiserror::Error;

use super::Malformed;

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Every call on every rank gave what it should.
    Ok,
    /// Nobody can go on, and not everybody is done.
    Deadlock(Deadlock),
    /// Something came out that should not.
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

/// The lanes that could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Each of them.
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

/// A lane that could not go on.
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

/// What came out that should not.
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
        /// What was there.
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
    /// An input that is not the output too was written.
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
    /// A barrier was left before everybody had come to it.
    #[error("rank {rank} left the barrier of call {call} before rank {other} had entered it")]
    Early {
        /// Who left.
        rank: usize,
        /// Which call.
        call: u32,
        /// Who was missing.
        other: usize,
    },
    /// A message was never taken.
    #[error("a message from rank {from} to rank {to} was never taken")]
    Leftover {
        /// Who sent it.
        from: usize,
        /// To whom.
        to: usize,
    },
}
