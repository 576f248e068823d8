//! Pictures of plans: [`svg`] shows what moves when, [`dot`] who sends how much to whom.
//!
//! Both are drawn from the plan itself, by running it or counting on its steps, so a picture cannot show an algorithm that
//! the plan is not. They are for eyes: a plan of hundreds of ranks is drawn, but not readable.

mod dot;
mod space_time;
mod svg;

pub use dot::dot;
pub use svg::svg;
