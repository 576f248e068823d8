//! Who is in a group of ranks: the rendezvous, the tree that events travel along, deaths and departures, reparenting, regrouping, and chains of waits.
//!
//! Everything here is a state machine: inputs and the present time go in, actions come out, and `next_timeout` says when to
//! call again. `weftlink-bootstrap` drives it with sockets and threads; the tests in `tests/` drive many ranks in one process
//! under virtual time, with seeds that decide which messages are delayed and which ranks are stopped, killed or cut off.
//!
//! Deliberately absent: sockets, threads, clocks and unsafe code.

#[macro_use]
extern crate weftlink_shm;

pub mod durations;
mod event;
mod group;
pub mod quorum;
pub mod regroup;
pub mod rendezvous;
pub mod tree;
mod waits;

pub use event::Event;
pub use group::{Action, Gone, Group, Input, Probe, WAS_LOST};
pub use waits::Roots;
