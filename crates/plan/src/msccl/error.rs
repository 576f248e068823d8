//! Why a file is no plan, or a plan no file.

use std::fmt;

use crate::refusal::{Refusal, Spot};

/// A file that cannot be read, or a plan that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MscclError {
    /// The text is not XML, or not of this kind. Mend the line.
    #[error("line {line}: {reason}")]
    Text {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The program makes no sense, to the runtimes either. Mend it where it says.
    #[error("{at}: {reason}")]
    Program {
        /// Where.
        at: At,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The plan uses what the format does not have.
    #[error("{spot}: {reason}; MSCCL's XML has no way to say that")]
    Inexpressible {
        /// The step.
        spot: Spot,
        /// What it uses.
        reason: String,
    },
    /// The plan as a whole uses what the format does not have.
    #[error("{0}; MSCCL's XML has no way to say that")]
    InexpressiblePlan(String),
    /// The plan that was to be written would wait for ever.
    #[error("{spot}: it waits for a signal that never comes; verify the plan before it is written")]
    Stuck {
        /// The step that waits.
        spot: Spot,
    },
    /// The plan that was to be written breaks the rules of plans.
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

    /// What is wrong here.
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
