//! Plans run on real numbers under hostile schedules.
//!
//! The verifier proves that a plan is right; this module tries to make it fail. It shares no code with the
//! verifier, the interpreter or the walk over loops, only the plan's types, so that no mistake is made twice.
//!
//! **Execution.** The lanes and the user of every rank are actors. A scheduler picks one actor after another and
//! lets it take one atomic action: pass one wait, take one message, reserve one slot, read one number, write one
//! number, publish one message or signal, release one slot. FIFOs have the depth that the plan says, and all memory
//! is the memory that an executor would use: user buffers are the same in every call, scratch and slots the same in
//! every tile.
//!
//! **The user** is the worst that the contract allows: between calls it fills its buffers with garbage and checks that no rank touches
//! them; it writes new input just before it enters the next call.
//!
//! **Detected failures:** deadlocks, wrong sums, ranks whose results differ in a bit, changed inputs, writes after the call returned,
//! barriers left too early, messages that no rank received. A failure that none of the schedules provokes stays undetected.
//!
//! Not modelled: weak memory. Reads and writes take effect at once and in order.

mod compile;
mod fifo;
mod flat;
mod lane;
mod machine;
mod outcome;
mod random;
mod schedule;
mod user;

#[cfg(test)]
mod tests;

use std::fmt;

use weftlink_plan::{Aliasing, Plan};

pub use flat::{Chaos, Malformed};
pub use outcome::{Deadlock, Outcome, Stuck, Wrong};
pub use schedule::{Policy, Schedule};

/// How a plan is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
    /// Consecutive calls.
    pub calls: u32,
    /// Tiles of each call.
    pub tiles: u32,
}

impl Shape {
    /// Shapes that make calls and tiles of a plan overlap: several calls, and more tiles than any FIFO has slots, for each aliasing that
    /// the plan claims.
    pub fn of(plan: &Plan) -> Vec<Shape> {
        let depth = plan.channels.iter().map(|channel| channel.depth).max().unwrap_or(1);
        let both = |&aliasing| {
            let many_calls = Shape { aliasing, calls: 3, tiles: 1 };
            [many_calls, Shape { aliasing, calls: 2, tiles: depth.saturating_add(1) }]
        };
        plan.aliasing.iter().flat_map(both).collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, calls {}, tiles {}", self.aliasing, self.calls, self.tiles)
    }
}

/// A failure of a plan, and how to reproduce it.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The shape of the calls.
    pub shape: Shape,
    /// The schedule; none if the plan could not start.
    pub schedule: Option<Schedule>,
    /// What happened; never [`Outcome::Ok`].
    pub outcome: Outcome,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.outcome, self.shape)?;
        if let Some(schedule) = self.schedule {
            write!(f, ", {schedule}")?;
        }
        f.write_str(")")
    }
}

/// Runs a plan in every shape that it claims, under `seeds` schedules of each policy, and returns the first failure.
pub fn find_failure(plan: &Plan, seeds: u64) -> Option<Failure> {
    let mut prepared = Vec::new();
    for shape in Shape::of(plan) {
        match Chaos::prepare(plan, shape) {
            Ok(chaos) => prepared.push((shape, chaos)),
            Err(malformed) => {
                return Some(Failure { shape, schedule: None, outcome: Outcome::Malformed(malformed) });
            }
        }
    }
    // Seeds are the outer loop: most bad plans fail with the first seed in some shape.
    for seed in 0..seeds {
        for policy in Policy::ALL {
            for (shape, chaos) in &prepared {
                let schedule = Schedule { policy, seed };
                let outcome = chaos.run(schedule);
                if outcome != Outcome::Ok {
                    return Some(Failure { shape: *shape, schedule: Some(schedule), outcome });
                }
            }
        }
    }
    None
}
