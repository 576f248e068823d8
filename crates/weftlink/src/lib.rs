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
//! - [`Background`] makes calls on a thread of its own while the caller computes; `examples/04-overlap.rs` shows it, and
//!   `docs/async.md` tells what there is to know.
//! - [`plan`] describes, proves and interprets what moves when; `examples/03-own-plan.rs` writes an algorithm in a few
//!   lines, has it proved and runs it.
//! - [`FlightRecorder`] and [`Counters`] tell what a rank did and waits for, [`why`] merges what all ranks recorded,
//!   [`attach`] reads it from processes that hang, [`knobs`] are the settings in the environment.
//! - [`fabric`] describes what is wired to what, and how fast; [`sim`] predicts how long calls take on it.

pub use weftlink_comm::{
    Background, Blame, BlameKind, Buffers, Communicator, Counters, Data, DataType, Done, Ended, Endpoint,
    Error, FlightRecorder, Group, Handle, Identities, Operation, Options, OwnedBuffers, OwnedOperation,
    OwnedRequest, Part, PartMut, PlanId, RawBuffers, RawHandle, RawRequest, ReadOnly, Record, Reduction,
    Request, Scope, ScopedHandle, Window, attach, bootstrap, knobs, on_threads, recorder, while_waiting, why,
};
pub use weftlink_fabric as fabric;
pub use weftlink_plan as plan;
pub use weftlink_sim as sim;

/// What `docs/async.md` shows is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/async.md")]
struct Async;
