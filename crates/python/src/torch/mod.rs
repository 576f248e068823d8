//! What `weftlink.torch` is made of: one rank's end of a process group, and calls that are under way.
//!
//! A call that the program waits for at once is made on its own thread, if no other is under way (`start.rs`). All others are
//! queued for the communicator's worker. When one is over, what is left to do with Python's lock (copying results apart, completing
//! futures) is done by a thread of its own (`tell.rs`), never by the worker.

mod call;
mod group;
mod lanes;
mod messages;
mod operation;
mod pieces;
mod record;
mod start;
mod tensor;

pub(crate) use call::Call;
pub(crate) use group::Group;
pub(crate) use record::{flight_record, forget_flight_record};
