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

#[macro_use]
mod mutants;

pub mod attach;
mod available;
mod background;
mod blame;
pub mod bootstrap;
mod buffers;
mod choose;
mod communicator;
mod compile;
#[doc(hidden)]
pub mod counter;
mod data;
mod engine;
mod error;
mod failure;
#[doc(hidden)]
pub mod fifo;
mod foreign;
mod header;
pub mod kernels;
pub mod knobs;
mod known;
mod layout;
mod limits;
#[doc(hidden)]
pub mod line;
mod log;
mod meanwhile;
pub mod memory;
mod operation;
mod post;
mod reach;
pub mod recorder;
mod shared;
mod symmetric;
mod sync;
#[doc(hidden)]
pub mod wait;
pub mod why;
mod window;
mod wire;

#[cfg(test)]
#[cfg(not(loom))]
mod call_tests;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod stress_tests;

pub use available::memory_bytes as available_memory_bytes;
pub use background::{
    Background, Done, Ended, Handle, OwnedBuffers, OwnedOperation, OwnedRequest, QUEUE_MAX, RawBuffers,
    RawHandle, RawRequest, ReadOnly, Scope, ScopedHandle,
};
pub use blame::{Blame, BlameKind};
pub use buffers::Buffers;
pub use choose::tuning::{TuningError, check as check_tuning};
pub use communicator::{
    Communicator, Group, Open, Options, PlanId, Request, SIGNALS, Taken, TimedStep, on_threads,
};
pub use data::Data;
pub use error::Error;
pub use limits::{address_space_bytes as available_address_space_bytes, no_thread};
pub use meanwhile::while_waiting;
pub use operation::Operation;
pub use post::{MESSAGES_MAX, Post};
pub use recorder::{Counters, FlightRecorder, Record};
pub use weftlink_plan::{DataType, Reduction};
pub use window::{Part, PartMut, Window};
