//! Collectives as plans that are proved before they run.
//!
//! A [`Plan`] says, for one collective on `n` ranks, which chunks each rank reads, how it combines them and where it puts
//! the result. Algorithms ([`algorithms`]) write plans, the verifier proves them, the interpreter defines their meaning,
//! and executors in other crates compile them. This crate is pure: no clock, no IO, no threads, no unsafe code; one
//! function, [`Proof::of`], is unsafe to call.

mod affine;
pub mod algorithms;
mod blocks;
mod buffer;
mod builder;
pub mod choose;
pub mod classes;
pub mod collective;
pub mod cost;
pub mod cut;
pub mod domain;
pub mod draw;
pub mod element;
pub mod formula;
pub mod interpret;
mod json;
mod kind;
pub mod layout;
mod limits;
mod lower;
pub mod msccl;
mod order;
pub mod plan;
pub mod ratio;
mod recipe;
mod reducer;
pub mod reduction;
mod refusal;
mod symmetry;
pub mod traffic;
mod verify;
pub mod walk;
mod well_formed;
pub mod wiring;

pub use affine::Affine;
pub use algorithms::Algorithm;
pub use algorithms::header::{Cost, Header, Work};
pub use blocks::{Blocks, Lengths, Shape};
pub use choose::choose;
pub use collective::Collective;
pub use cut::Cut;
pub use element::{DataType, Element};
pub use json::JsonError;
pub use kind::{Kind, UnknownKind};
pub use layout::Layout;
pub use msccl::MscclError;
pub use order::Order;
pub use plan::{Aliasing, Plan};
pub use ratio::Ratio;
pub use recipe::{Partial, Recipe};
pub use reducer::Reducer;
pub use reduction::Reduction;
pub use refusal::{Accessor, Cell, Fault, Refusal, Spot};
pub use traffic::Traffic;
pub use verify::{Proof, Verified, verify, verify_by_classes};
pub use well_formed::WellFormed;
