//! Settings from the environment, and the log that two of them control.
//!
//! [`KNOBS`] is the one registry of settings and [`Knobs`] their typed values; [`log`] is the subscriber of `WEFT_DEBUG`.

mod environment;
mod filter;
pub mod log;
mod parse;
mod paths;
mod registry;

pub use environment::{parsed, variable, variable_names};
pub use filter::Filter;
pub use parse::{Interfaces, Ports, Secret};
pub use paths::{expanded, host};
pub use registry::{
    KNOBS, Knob, KnobError, Knobs, Origin, Setting, nearest, path, unknown, unknown_in_environment,
};
