//! `libnccl-profiler-weft.so`: NCCL reports its events to it.
//!
//! [`abi`] has the interface, a file per version: it turns what NCCL passes into an [`event::Start`]. The events of the process are in one
//! [`pool`], a ring. `communicator/trace.rs` writes it as a file for Perfetto (`WEFT_PROFILE`). Collectives are also calls in the flight record of their
//! communicator ([`calls`], [`communicator`]), which `weft why` explains (`WEFT_RECORD_DIR`); `communicator/monitor.rs` is a thread that notes there what a
//! rank waits for.
//!
//! What NCCL holds of an event or a communicator is its number, not an address: a number that is stale, repeated or of another process is
//! counted and has no effect.
//!
//! Deliberately absent: signal handlers, and any error that reaches NCCL.

mod abi;
mod calls;
mod communicator;
mod event;
mod interned;
mod lanes;
mod pool;
mod settings;
