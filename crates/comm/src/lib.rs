//! Runs plans between the ranks of one host, through shared memory.
//!
//! Ranks are threads or processes that have mapped the same zeroed memory. Everything they tell each other is a
//! [`line::Line`]: a cache line whose first word says which message it is and which call it belongs to. Two kinds of
//! conversation are built from it, a [`fifo`] and a [`counter`]; both only ever answer at once, and [`wait`] is the one
//! place where a rank waits.

#[doc(hidden)]
pub mod counter;
#[doc(hidden)]
pub mod fifo;
#[doc(hidden)]
pub mod line;
mod sync;
#[doc(hidden)]
pub mod wait;

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod stress_tests;
