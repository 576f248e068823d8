//! Predicts how long collectives take: a simulator that runs plans in virtual time, and models of what libraries choose.
//!
//! The [engine] runs a plan step by step. A step begins when its dependencies are met; its data then flows over the links of the fabric,
//! sharing them fairly with all other transfers, and the receiver sees it one hop later. Time is in whole picoseconds, and nothing depends
//! on a clock, a thread or the order of a hash table: the same input gives the same result to the last digit.
//!
//! Costs come from the [constants] of `weftlink_plan`'s cost model, each with its origin; the [library] module chooses the plan as a library would.

pub mod accuracy;
mod busy;
pub mod calibrate;
mod change;
pub mod copy;
pub mod corrections;
pub mod engine;
pub mod estimate;
pub mod execute;
pub mod gpu;
pub mod host;
pub mod library;
pub mod parallel;
pub mod predict;
pub mod published;
mod quantile;
pub mod setup;
mod survey;
mod tuner;
pub mod what_if;
mod wiring;

pub use estimate::Estimate;
pub use predict::predict;
pub use setup::Setup;
pub use survey::SurveyError;
pub use weftlink_plan::cost::constants::{self, Constants};
