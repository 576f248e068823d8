//! Why the verifier refuses a plan: the place and the fault.

use std::fmt;

use crate::plan::{Aliasing, Buffer};

/// A plan that must not run. Correct the plan at the step it names; the refusal of a built-in algorithm is a bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The name of the plan.
    pub plan: String,
    /// The faulty step, if it is one.
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
    /// The number of the step among the lane's written steps, from 0.
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

/// A chunk of some rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The rank.
    pub rank: u32,
    /// The buffer; in place, the one that holds both input and output.
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

/// The origin of a memory access.
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
    /// It breaks a rule that can be checked without running it.
    #[error("{0}")]
    Malformed(String),
    /// All unfinished lanes wait.
    #[error("deadlock ({aliasing}): {}", .waiting.join("; "))]
    Deadlock {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The first waiting lanes, and what each waits for.
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
    #[error("{cell} is read before it is written ({aliasing})")]
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
        /// Its content.
        found: String,
        /// The promised content.
        expected: String,
    },
    /// A step combines different chunks.
    #[error("it combines {found}, which are different chunks ({aliasing})")]
    Mixed {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The expressions.
        found: String,
    },
    /// A step stores a chunk in the place of another, which may be shorter.
    #[error(
        "it stores {found} in {cell}, where it does not belong ({aliasing}); keep data in transit in scratch"
    )]
    Misplaced {
        /// How buffers were passed.
        aliasing: Aliasing,
        /// The memory.
        cell: Cell,
        /// The expression that it stores.
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
        /// A rank with another expression.
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
    /// It is too large to be proved.
    #[error("{what} is {value}, more than the {limit} that can be verified")]
    TooLarge {
        /// The quantity.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
}
