//! Plans run on real numbers under hostile schedules.
//!
//! The verifier proves that a plan is right; this module tries to make it fail. It shares no code with the
//! verifier, the interpreter or the walk over loops, only the plan's types, so that no mistake is made twice.
//!
//! **What is run.** Every rank's lanes and every rank's user are actors. A scheduler picks one actor after another and
//! lets it take one smallest action: pass one wait, take one message, reserve one slot, read one number, write one
//! number, publish one message or signal, release one slot. FIFOs have the depth that the plan says, and all memory
//! is the memory that an executor would use: user buffers are the same in every call, scratch and slots the same in
//! every tile.
//!
//! **The user** is the worst one that the contract allows: between calls it fills its buffers with garbage and checks
//! whether anybody else touches them; it writes fresh input just before it enters the next call.
//!
//! **What is detected.** A deadlock, a wrong sum, ranks that disagree in a bit, an input that was changed, memory that was
//! written after the call returned, a barrier left too early, messages that nobody
//! took. Not detected: failures that none of the schedules provokes.
//!
//! Deliberately absent: weak memory. Reads and writes take effect at once and in order.

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
pub use schedule::{Schedule, Temperament};

/// How a plan is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
    /// How many calls follow one another.
    pub calls: u32,
    /// How many tiles each call has.
    pub tiles: u32,
}

impl Shape {
    /// The shapes that show what a plan does to itself: calls in a row, and more tiles than any FIFO has slots, under
    /// each aliasing that the plan claims.
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

/// A failure of a plan, with what it takes to reproduce it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// How it was called.
    pub shape: Shape,
    /// The schedule; nothing if the plan could not even start.
    pub schedule: Option<Schedule>,
    /// What happened; never [`Outcome::Ok`].
    pub outcome: Outcome,
}

impl fmt::Display for Sighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.outcome, self.shape)?;
        if let Some(schedule) = self.schedule {
            write!(f, ", {schedule}")?;
        }
        f.write_str(")")
    }
}

/// Runs a plan in every shape it claims, under `seeds` schedules of each temperament, until it goes wrong.
pub fn hunt(plan: &Plan, seeds: u64) -> Option<Sighting> {
    let mut prepared = Vec::new();
    for shape in Shape::of(plan) {
        match Chaos::prepare(plan, shape) {
            Ok(chaos) => prepared.push((shape, chaos)),
            Err(malformed) => {
                return Some(Sighting { shape, schedule: None, outcome: Outcome::Malformed(malformed) });
            }
        }
    }
    // Seeds are the outer loop: most bad plans fail at once in some shape.
    for seed in 0..seeds {
        for temperament in Temperament::ALL {
            for (shape, chaos) in &prepared {
                let schedule = Schedule { temperament, seed };
                let outcome = chaos.run(schedule);
                if outcome != Outcome::Ok {
                    return Some(Sighting { shape: *shape, schedule: Some(schedule), outcome });
                }
            }
        }
    }
    None
}
