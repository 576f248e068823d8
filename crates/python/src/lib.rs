//! The native module of the Python package `weftlink`: what Python calls, nothing of its own.
//!
//! No call waits while it holds Python's lock (the GIL), and whoever waits on the main thread looks for signals now and then, so that Ctrl-C
//! works (`wait.rs`).
//!
//! Unsafe code is denied in this crate but in the modules that say why they need it; UNSAFE.md lists them.

mod array;
mod call;
mod communicator;
mod error;
mod fabric;
mod plan;
mod request;
mod sim;
mod start;
mod tell;
mod torch;
mod vouched;
mod wait;
mod window;

use pyo3::prelude::*;

/// What the package's Python files import.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::call::Started;
    #[pymodule_export]
    use crate::communicator::Communicator;
    #[pymodule_export]
    use crate::fabric::Fabric;
    #[pymodule_export]
    use crate::plan::{Plan, build, choose};
    #[pymodule_export]
    use crate::sim::predict;
    #[pymodule_export]
    use crate::start::{init, launched, meet, threads};
    #[pymodule_export]
    use crate::tell::stop_telling;
    #[pymodule_export]
    use crate::torch::{Call, Group, flight_record, forget_flight_record};
    #[pymodule_export]
    use crate::window::Window;
}
