//! What Weft's tests share.
//!
//! [`cases`] are the calls that every backend must pass, and [`trace`] compares what it did with the plan. The oracle for the
//! results is [`weftlink_plan::domain::elements::oracle`], the interpreter over real elements.
//!
//! [`chaos`] runs a plan on real numbers under hostile schedules; [`mutations`] makes all the small mistakes that a plan's author
//! could make. Together they test the verifier: it must have refused every plan that fails under chaos. Their subjects are the [`catalogue`] of all that the algorithms can do, and [`plans`]
//! that use what no built-in algorithm uses. [`promise`] is a second list of what each collective promises.
//!
//! [`hosts`] are network namespaces, for tests of ranks on several hosts. [`processes`] starts programs that inherit nothing from
//! the shell in which the tests run, and [`ports`] reserves the ports at which they meet. [`schedule`] has what tests of state machines
//! under virtual time need.
//!
//! Deliberately absent: anything a user of Weft would need. No crate that is published depends on this one.

pub mod cases;
pub mod catalogue;
pub mod chaos;
pub mod hosts;
pub mod mutations;
pub mod peak;
pub mod plans;
pub mod ports;
#[allow(unsafe_code, reason = "what runs between fork and exec")]
pub mod processes;
pub mod promise;
pub mod schedule;
pub mod trace;
