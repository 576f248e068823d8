//! Multi-GPU communication, planned from the wiring.
//!
//! The crate a Rust user adds: it re-exports the parts and holds no code of its own.
//!
//! ```
//! let sums = weftlink::on_threads(4, |mut comm| {
//!     let mut values = [comm.rank() as f32, 1.0];
//!     comm.all_reduce(&mut values, weftlink::Reduction::Sum)?;
//!     Ok(values)
//! })?;
//! assert_eq!(sums, [[6.0, 4.0]; 4]);
//! # Ok::<(), weftlink::Error>(())
//! ```
//!
//! - [`Communicator`] runs collectives between ranks: threads ([`on_threads`]) or processes ([`bootstrap`]).
//!   `examples/01-all-reduce.rs` and `examples/02-processes.rs` show both, `examples/05-job.rs` a rank that a launcher starts.
//! - [`Background`] runs calls on a worker thread while the caller computes, and its handles can be awaited;
//!   `examples/04-overlap.rs` shows it, and `docs/async.md` explains it.
//! - [`plan`] describes, verifies and interprets plans; `examples/03-own-plan.rs` writes an algorithm in a few lines, verifies it and
//!   runs it.
//! - [`FlightRecorder`] and [`Counters`] record what a rank did and waits for, [`why`] merges the records of all ranks,
//!   [`attach`] reads them from processes that hang, and [`knobs`] are the settings in the environment.
//! - [`cuda`] runs plans on NVIDIA GPUs: [`cuda::Rank`] has collectives on buffers of a GPU. `examples/07-gpu.rs` shows four ranks on one.
//! - [`fabric`] describes how devices are wired, and how fast the links are; [`sim`] predicts how long calls take on it.
//! - [`bytemuck`] has the traits that make a type [`Data`].

pub use weftlink_comm::{
    Background, Blame, BlameKind, Buffers, Communicator, Completion, Counters, Counts, Data, DataType,
    Endpoint, Error, FlightRecorder, Group, Handle, HandleFuture, Identities, Operation, Options,
    OwnedBuffers, Part, PartMut, PlanId, RawBuffers, RawHandle, ReadOnly, Record, Reduction, Request, Scope,
    ScopedFuture, ScopedHandle, Window, attach, bootstrap, bytemuck, knobs, on_threads, recorder,
    while_waiting, why,
};
pub use weftlink_cuda as cuda;
pub use weftlink_fabric as fabric;
pub use weftlink_plan as plan;
pub use weftlink_sim as sim;

/// Compiles and runs the code of `docs/async.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/async.md")]
struct Async;
