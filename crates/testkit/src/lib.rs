//! Shared test support.
//!
//! [`cases`] are the calls that every backend must pass, and [`trace`] compares the steps of a backend with the plan. The oracle for
//! results is [`weftlink_plan::domain::elements::oracle`], the interpreter over real elements.
//!
//! [`chaos`] runs a plan on real numbers under hostile schedules; [`mutations`] makes the small mistakes that a plan's author
//! could make. Together they test the verifier: it must have refused every plan that fails under chaos. Their subjects are the [`catalogue`]
//! of all plans of the built-in algorithms, and [`plans`] with features that no built-in algorithm uses. [`promise`] is an independent
//! definition of the results of each collective.
//!
//! [`schedules`] runs seeded schedules of many ranks under virtual time, with the numbers of [`random`].
//!
//! [`hosts`] are network namespaces, for tests of ranks on several hosts. [`processes`] starts programs that inherit nothing from the shell
//! in which the tests run, and [`ports`] reserves ports for their rendezvous.
//!
//! No published crate depends on this one.

pub mod cases;
pub mod catalogue;
pub mod chaos;
pub mod hosts;
pub mod mutations;
pub mod peak;
pub mod plans;
pub mod ports;
#[allow(unsafe_code, reason = "code between fork and exec")]
pub mod processes;
pub mod promise;
pub mod random;
pub mod schedules;
pub mod trace;
