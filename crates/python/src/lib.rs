//! The native module of the Python package `weftlink`: what Python calls, nothing of its own.
//!
//! No call waits while it holds Python's lock (the GIL), and whoever waits on the main thread looks for signals now and then, so that Ctrl-C
//! works (`wait.rs`).

mod error;
mod torch;
mod wait;

use pyo3::prelude::*;

/// What the package's Python files import.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::torch::{Call, Group, Memory, flight_record, forget_flight_record};
}
