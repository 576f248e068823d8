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
//!   `examples/01-all-reduce.rs` and `examples/02-processes.rs` show both.
//! - [`plan`] describes, proves and interprets what moves when; `examples/03-own-plan.rs` writes an algorithm in a few
//!   lines, has it proved and runs it.
//! - [`FlightRecorder`] and [`Counters`] tell what a rank did and waits for, [`why`] merges what all ranks recorded, [`knobs`]
//!   are the settings in the environment.
//! - [`fabric`] describes what is wired to what, and how fast.

pub use weftlink_comm::{
    Buffers, Communicator, Counters, Data, DataType, Error, FlightRecorder, Operation, Options, Part,
    PartMut, PlanId, Record, Reduction, Request, Window, bootstrap, knobs, on_threads, recorder, why,
};
pub use weftlink_fabric as fabric;
pub use weftlink_plan as plan;
