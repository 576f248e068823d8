//! Why a plan was refused: where, and what is wrong, in a sentence.

use std::fmt;

use crate::plan::{Aliasing, Buffer};

/// A plan that must not run. Mend the plan at the place it names; a built-in algorithm that is refused is a bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The name of the plan.
    pub plan: String,
    /// The step, if one can be blamed.
    pub spot: Option<Spot>,
    /// What is wrong.
    pub fault: Box<Fault>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan {:?} is refused: ", self.plan)?;
        if let Some(spot) = &self.spot {
            write!(f, "{spot}: ")?;
        }
        write!(f, "{}", self.fault)
    }
}

/// A step of a lane of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spot {
    /// The rank.
    pub rank: u32,
    /// The lane of that rank.
    pub lane: u32,
    /// Which of the lane's written steps, from 0.
    pub step: u32,
    /// The iteration of each loop around it.
    pub iterations: Vec<u32>,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, lane {}, step {}", self.rank, self.lane, self.step)?;
        if !self.iterations.is_empty() {
            let iterations: Vec<_> = self.iterations.iter().map(u32::to_string).collect();
            write!(f, " (iteration {})", iterations.join("."))?;
        }
        Ok(())
    }
}

/// A chunk of memory, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Whose memory.
    pub rank: u32,
    /// Which buffer; the output stands for both where they are one.
    pub buffer: Buffer,
    /// The tile it belongs to; 0 for scratch, which all tiles share.
    pub tile: u32,
    /// The chunk.
    pub chunk: u32,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chunk {} of rank {}", self.buffer, self.chunk, self.rank)
    }
}

/// Who touches memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accessor {
    /// A step.
    Step(Spot),
    /// The user of a rank, before or after a call.
    User(u32),
}

impl fmt::Display for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accessor::Step(spot) => write!(f, "{spot}"),
            Accessor::User(rank) => write!(f, "the caller on rank {rank}, outside the call"),
        }
    }
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It breaks a rule that needs no execution to see.
    #[error("{0}")]
    Malformed(String),
    /// Everybody waits.
    #[error("nothing can go on ({aliasing}): {}", .waiting.join("; "))]
    Deadlock {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// Who waits for what, at most a few of them.
        waiting: Vec<String>,
    },
    /// Two accesses, at least one of them a write, in no fixed order.
    #[error("{cell} is {mine} here while {other} may still be {theirs} it ({aliasing}); a wait is missing")]
    Race {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The memory.
        cell: Cell,
        /// "read" or "written".
        mine: &'static str,
        /// "reading" or "writing".
        theirs: &'static str,
        /// The other access.
        other: Accessor,
    },
    /// A step reads memory that nothing has written.
    #[error("{cell} is read before anything was written there ({aliasing})")]
    Unset {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The memory.
        cell: Cell,
    },
    /// The result is not what the collective promises.
    #[error("{cell} ends as {found}, but should be {expected} ({aliasing})")]
    Wrong {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The memory.
        cell: Cell,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// A step combines what does not belong together.
    #[error("it combines {found}, which are different chunks ({aliasing})")]
    Mixed {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// What it combines.
        found: String,
    },
    /// A step puts a chunk where another belongs, which may be shorter.
    #[error("it puts {found} into {cell} ({aliasing}); use scratch for what is on its way")]
    Misplaced {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The memory.
        cell: Cell,
        /// What it puts there.
        found: String,
    },
    /// Ranks combine in different orders, so their results differ in the last bits.
    #[error(
        "{cell} is combined as {found}, but rank {other} combines it as {theirs}: results would differ in the last bits"
    )]
    Order {
        /// The memory.
        cell: Cell,
        /// The expression here.
        found: String,
        /// A rank that does otherwise.
        other: u32,
        /// Its expression.
        theirs: String,
    },
    /// A rank leaves a barrier that another may not have entered.
    #[error("rank {rank} may leave before rank {other} has entered")]
    Unmet {
        /// The rank that leaves.
        rank: u32,
        /// The rank it does not wait for.
        other: u32,
    },
    /// It is too large to be proved here.
    #[error("{what} is {value}, more than the {limit} that can be verified")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How much.
        value: u64,
        /// The limit.
        limit: u64,
    },
}
