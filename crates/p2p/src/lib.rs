//! The protocol of messages between two ranks, as a state machine: operations, frames and the present time go in; frames, copies
//! and completions come out; [`Protocol::next_timeout`] says when to call again.
//!
//! `weftlink-comm` drives one [`Protocol`] per endpoint with rings, sockets and threads. The tests in `tests/` drive 2 to 8 of
//! them in one process under virtual time, with a seed that decides what is delayed and which ranks are stopped, killed or cut off.
//!
//! **Transfers.** A short message is sent *eagerly*: whole, before the receiver asks for it, as long as the sender has
//! [credit](Credit). A long message takes a *rendezvous*: the sender offers it, with its length and address. When a receive
//! matches, the receiver either *pulls* the message out of the sender's memory and reports that it is over, or accepts it, and the
//! sender sends it in pieces.
//!
//! **Order.** All frames to one peer go through one link in order, and are matched in that order. Messages of one
//! rank with one tag therefore match receives in the order in which they were sent.
//!
//! **Ends.** Every operation completes exactly once, by its deadline at the latest, with two exceptions: a receive that is being
//! pulled completes when the pull ends, and so does the send of a rank to itself that is being copied. A send that its receiver
//! has heard of cannot be cancelled by one side, because the receiver may be pulling it: if it times out, the communicator aborts.
//!
//! Deliberately absent: sockets, threads, clocks, unsafe code. The driver copies payloads; an address is a number here.

#[macro_use]
extern crate weftlink_shm;

mod credit;
pub mod durations;
mod frame;
mod matching;
mod op;
mod protocol;

pub use credit::{Credit, MESSAGE_COST};
pub use frame::{Frame, INLINE_BYTES, Kind, Verdict};
pub use op::{Direction, Outcome, PendingOp, elements};
pub use protocol::{Config, LocalCopy, MESSAGES_MAX, Payload, Protocol, Pull, Route, Transmit};
