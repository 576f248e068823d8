//! Runs plans between ranks: through shared memory on one host, over TCP between hosts.
//!
//! A [`Communicator`] is one rank's handle of a group whose ranks are threads or processes. They meet through
//! [`bootstrap`], map the same memory, and run [verified plans](weftlink_plan::Verified) in it.
//!
//! The layers below are crates of their own: shared memory and its lock-free protocols (`weftlink_shm`), kernels, the
//! [`bootstrap`] and the [`recorder`]. Here, `layout` places a plan's FIFOs, counters and scratch in its memory, `compile` turns one rank's
//! part of it into flat lists, and `engine` runs them over the ports of a `transport`.
//!
//! Unsafe code is denied except in the modules that UNSAFE.md lists.

#[macro_use]
extern crate weftlink_shm;

mod abort_note;
mod affinity;
mod background;
mod buffers;
mod choose;
mod communicator;
mod compile;
mod data;
mod durations;
mod engine;
mod error;
mod failure;
mod identities;
mod layout;
mod operation;
mod p2p;
mod racy_copy;
mod request;
mod shared;
mod signatures;
mod symmetric;
mod transport;
mod window;

#[cfg(test)]
mod call_tests;

pub use background::{
    Background, Completion, Handle, HandleFuture, OwnedBuffers, QUEUE_MAX, RawBuffers, RawHandle, ReadOnly,
    Scope, ScopedFuture, ScopedHandle,
};
pub use buffers::Buffers;
pub use bytemuck;
pub use choose::tuning::{TuningError, check as check_tuning};
pub use communicator::{Communicator, Group, Open, Options, SIGNALS, TimedStep, TracedStep, on_threads};
pub use data::Data;
pub use error::Error;
pub use identities::Identities;
pub use operation::Operation;
pub use p2p::{Endpoint, MESSAGES_MAX};
pub use request::{Counts, PlanId, Request};
pub use weftlink_bootstrap as bootstrap;
pub use weftlink_bootstrap::{Blame, BlameKind};
pub use weftlink_knobs as knobs;
pub use weftlink_plan::{DataType, Reduction};
pub use weftlink_recorder::recorder::{Counters, FlightRecorder, Record};
pub use weftlink_recorder::{attach, recorder, why};
/// ```
/// use weftlink_comm::{on_threads, while_waiting};
/// use std::{cell::Cell, rc::Rc, time::Duration};
///
/// let looked = on_threads(2, |mut comm| {
///     if comm.rank() == 1 {
///         std::thread::sleep(Duration::from_millis(200));
///     }
///     let looks = Rc::new(Cell::new(0));
///     let work = { let looks = Rc::clone(&looks); move || looks.set(looks.get() + 1) };
///     while_waiting(work, || comm.barrier())?;
///     Ok(looks.get() > 0)
/// })?;
/// assert!(looked[0]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
pub use weftlink_shm::poll_hook::while_waiting;
pub use window::{Part, PartMut, Window};
