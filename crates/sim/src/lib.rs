//! How long it would take: what libraries choose on a machine, and what their choice costs.

pub mod accuracy;
pub mod constants;
pub mod estimate;
pub mod library;
pub mod published;
pub mod setup;

pub use constants::Constants;
pub use estimate::Estimate;
pub use setup::Setup;
