//! Errors of reading and writing MSCCL's XML.

use std::fmt;

use crate::refusal::{Refusal, Spot};

/// A file that cannot be read, or a plan that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MscclError {
    /// The text is not XML, or not an MSCCL program. Correct the line.
    #[error("line {line}: {reason}")]
    Text {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The program is invalid, for the runtimes too. Correct the named place.
    #[error("{at}: {reason}")]
    Program {
        /// The place.
        at: At,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A step has no equivalent in the format.
    #[error("{spot}: {reason}, which MSCCL's XML cannot express")]
    Inexpressible {
        /// The step.
        spot: Spot,
        /// The operation without an equivalent.
        reason: String,
    },
    /// The plan as a whole has no equivalent in the format.
    #[error("{0}, which MSCCL's XML cannot express")]
    InexpressiblePlan(String),
    /// The plan deadlocks.
    #[error("{spot}: it waits for a signal that is never given; verify the plan before writing it")]
    Stuck {
        /// The step that waits.
        spot: Spot,
    },
    /// The plan is not well-formed.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// The `id` of the gpu, which is the rank.
    pub gpu: Option<u32>,
    /// The `id` of its tb, which is the lane.
    pub tb: Option<u32>,
    /// The `s` of its step.
    pub step: Option<u32>,
}

impl At {
    /// A step.
    pub(super) fn step(gpu: u32, tb: u32, step: u32) -> Self {
        Self { gpu: Some(gpu), tb: Some(tb), step: Some(step) }
    }

    /// An error at this place.
    pub(super) fn error(self, reason: impl Into<String>) -> MscclError {
        MscclError::Program { at: self, reason: reason.into() }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(gpu) = self.gpu else { return f.write_str("algo") };
        write!(f, "gpu {gpu}")?;
        self.tb.iter().try_for_each(|tb| write!(f, ", tb {tb}"))?;
        self.step.iter().try_for_each(|step| write!(f, ", step {step}"))
    }
}
