//! How long it would take: plans in virtual time, and what libraries would do.
//!
//! The [engine] runs a plan step by step. A step begins when what it needs is there, its data flows over the links of the fabric,
//! which it shares fairly with everything else under way, and what it sends is seen a hop later. Time is whole picoseconds and
//! nothing depends on a clock, a thread or the order of a hash table: the same question has the same answer to the last digit.
//!
//! What is charged comes from [constants], each with its origin; which plan is run, from what a [library] would choose.

pub mod accuracy;
mod busy;
pub mod constants;
pub mod copy;
pub mod engine;
pub mod estimate;
pub mod execute;
pub mod gpu;
pub mod host;
pub mod library;
pub mod predict;
pub mod published;
mod quantile;
pub mod setup;
mod survey;
mod tuner;
pub mod what_if;
mod wiring;

pub use constants::Constants;
pub use estimate::Estimate;
pub use predict::predict;
pub use setup::Setup;
pub use survey::SurveyError;
