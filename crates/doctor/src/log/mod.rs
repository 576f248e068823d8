//! Logs of NCCL and RCCL: what they say, in words, and what is wrong.
//!
//! [`read`] takes the output of any number of processes with `NCCL_DEBUG=INFO`, as launchers interleave it, and returns a [`Log`]: processes,
//! communicators, the wires between ranks, settings, warnings. [`summary`] puts it into words, [`wires`] draws its rings and trees,
//! and [`explain`] says what is wrong.
//!
//! Deliberately absent: what only newer or private plugins print, and any guess at a line that is not understood.

mod explain;
mod line;
mod model;
mod read;
mod summary;
mod topology;
mod wires;

pub use explain::{LogCheck, checks, explain};
pub use model::{
    Call, Channels, Choice, Communicator, Edge, Exception, Interface, Log, Process, Rank, Seen, Setting,
    Stage, Timeout, Transport, TransportKind, TreePlace, Version, Warning, Xid,
};
pub use read::read;
pub use summary::{Summary, summary};
pub use topology::{Gpu, Path, Topology};
pub use wires::{Hop, Link, Ring, Tree, Wires, wires};
