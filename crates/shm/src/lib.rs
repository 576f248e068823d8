//! Memory that processes of one host share, and the lock-free protocols in it.
//!
//! Every message between ranks is a [`line::Line`], a cache line whose first word carries a sequence number and a signature. [`fifo`] and
//! [`counter`] are the two protocols built from lines, [`slot`] a sequence lock for records. None of them blocks: [`wait`] is the one
//! place where a rank waits. [`memory`] maps the memory.
//!
//! The crate also holds what the code around it needs from the operating system: the process's [`limits`], the memory that is
//! [`available`], a [`clock`] and the [`poll_hook`] of long waits.
//!
//! All atomics come from [`sync`], which replaces them with loom's under `--cfg loom`.
//!
//! Deliberately absent: plans, ranks and processes. This crate does not know the rank at the other end of a line.

#[macro_use]
#[doc(hidden)]
pub mod mutants;

pub mod available;
pub mod clock;
pub mod counter;
mod durations;
pub mod fifo;
pub mod limits;
pub mod line;
pub mod memory;
pub mod poll_hook;
pub mod slot;
pub mod sync;
pub mod wait;

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod stress_tests;
