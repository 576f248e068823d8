//! What is wrong with a multi-GPU machine, a log or a job, what it costs, and how to fix it.
//!
//! A check looks at a [`Machine`], which is a probed fabric and the files, driver reports and command outputs that the probe read, live
//! or from a recording. It returns [`Outcome`]s; a [`Report`] collects them. Logs and jobs have readers of their own, which return the same
//! [`Finding`]s.
//!
//! Deliberately absent: reading hardware and starting commands, which `weftlink_probe` does, and printing.

pub mod bench;
mod check;
pub mod checks;
pub mod compare;
pub mod cost;
pub mod expect;
mod finding;
pub mod host_cost;
pub mod job;
pub mod log;
mod machine;
mod size;

pub use check::{Check, Machine, examine};
pub use finding::{Cost, Evidence, Finding, Outcome, Report, Severity, Uninspected};
pub use machine::examine_machine;
