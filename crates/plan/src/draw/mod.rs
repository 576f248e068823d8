//! Pictures of plans: [`svg`] shows the data over time, [`dot`] the traffic between ranks.
//!
//! Both run the plan or count on its steps, so a picture always shows the plan itself. A picture of hundreds of ranks is
//! possible, but not readable.

mod dot;
mod space_time;
mod svg;

pub use dot::dot;
pub use svg::svg;
