//! What Weft's tests share.
//!
//! [`chaos`] runs a plan on real numbers under hostile schedules, to see whether it goes wrong; [`mutations`] makes
//! all the small mistakes that a plan's author could make. Together they test the verifier: whatever goes wrong
//! under chaos must have been refused. [`plans`] has good plans that use what no built-in algorithm uses.
//!
//! Deliberately absent: anything a user of Weft would need. No crate that is published depends on this one.

pub mod chaos;
pub mod mutations;
pub mod plans;
