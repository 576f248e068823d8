//! The native module of the Python package `weftlink`: bindings only, no logic of its own.
//!
//! No call waits while it holds the GIL, and a wait on the main thread polls for signals, so that Ctrl-C works (`wait.rs`).
//!
//! Unsafe code is denied except in the modules that UNSAFE.md lists.

mod array;
mod call;
mod callbacks;
mod communicator;
mod cuda;
mod error;
mod fabric;
mod plan;
mod raw;
mod request;
mod sim;
mod start;
mod torch;
mod wait;
mod window;

use pyo3::prelude::*;

/// The module that the Python files import.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::call::Started;
    #[pymodule_export]
    use crate::callbacks::stop_callbacks;
    #[pymodule_export]
    use crate::communicator::Communicator;
    #[pymodule_export]
    use crate::fabric::Fabric;
    #[pymodule_export]
    use crate::plan::{Plan, build, choose};
    #[pymodule_export]
    use crate::sim::predict;
    #[pymodule_export]
    use crate::start::{init, launcher_variables, meet, threads};
    #[pymodule_export]
    use crate::torch::{Call, GpuEnd, GpuWindow, Group, GroupOnGpu, flight_record, forget_flight_record};
    #[pymodule_export]
    use crate::window::Window;
}
