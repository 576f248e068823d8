//! Runs plans between the ranks of one host, through shared memory.
//!
//! A [`Communicator`] is one rank's end of a group whose ranks are threads or processes. They meet through
//! [`bootstrap`], map the same memory, and run [verified plans](weftlink_plan::Verified) in it.
//!
//! From the bottom: everything ranks tell each other is a [`line::Line`], a cache line whose first word says which
//! message it is and of which call. Two kinds of conversation are built from it, [`fifo`] and [`counter`]; both only
//! ever answer at once, and [`wait`] is the one place where a rank waits. `layout` places a plan's FIFOs, counters and
//! scratch in its memory, `compile` turns one rank's part of it into flat lists, `engine` runs them.
//!
//! Unsafe code is denied in this crate but in the modules that say why they need it; UNSAFE.md lists them.

// Loom tries the interleavings of the lock-free core; the rest stands on it and on real memory.
#[cfg(not(loom))]
mod available;
#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
mod choose;
#[cfg(not(loom))]
mod communicator;
#[cfg(not(loom))]
mod compile;
#[doc(hidden)]
pub mod counter;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod failure;
#[doc(hidden)]
pub mod fifo;
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
pub mod kernels;
#[cfg(not(loom))]
mod layout;
#[doc(hidden)]
pub mod line;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
mod shared;
mod sync;
#[doc(hidden)]
pub mod wait;
#[cfg(not(loom))]
mod window;

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod stress_tests;

#[cfg(not(loom))]
pub use available::memory_bytes as available_memory_bytes;
#[cfg(not(loom))]
pub use communicator::{Communicator, Options, PlanId, Taken, on_threads};
#[cfg(not(loom))]
pub use error::Error;
#[cfg(not(loom))]
pub use window::{Buffers, Part, PartMut, Window};
