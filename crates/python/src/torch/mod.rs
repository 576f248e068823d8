//! The primitives of `weftlink.torch`: one rank's end of a process group, and calls in progress.
//!
//! A blocking call runs on its caller's thread if no other call of the group is in progress (`start.rs`). All others are queued for the
//! communicator's worker. Work that needs the GIL after a call (copying results, completing futures) runs on a callback thread
//! (`callbacks.rs`), never on the worker. Calls on tensors of a GPU are enqueued on streams that Python chooses (`gpu.rs`).

mod call;
mod error;
mod gpu;
mod group;
mod lanes;
mod messages;
mod operation;
mod pieces;
mod record;
mod start;
mod tensor;

pub(crate) use call::Call;
pub(crate) use gpu::{GpuEnd, GpuWindow, GroupOnGpu};
pub(crate) use group::Group;
pub(crate) use record::{flight_record, forget_flight_record};
