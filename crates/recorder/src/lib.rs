//! The flight recorder: it records the calls of each rank, and explains the records of a job that hangs or failed.
//!
//! [`header`] describes a call as a rank announces it. [`recorder`] keeps the last calls of a communicator, [`attach`] reads the
//! recorders of running processes, and [`why`] explains the records of a job: who waits for whom, and which rank is the cause. [`gpu`] is the
//! memory in which kernels report what they wait for.

#[macro_use]
extern crate weftlink_shm;

pub mod attach;
pub mod gpu;
pub mod header;
pub mod recorder;
pub mod waiting;
pub mod why;
